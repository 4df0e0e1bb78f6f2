"""Whose a checkout is. Its configuration, hooks and filters name programs that git runs, so git runs as its owner.

As root, git runs only in what is root's alone: nobody else may be able to change what it reads as instructions, nor to
put another checkout in its place. That is asked of every folder on the way to it (one that everybody may write is
fine where it is sticky, as /tmp is), of the whole of its git folder but the objects, and of the checkouts inside it.
"""

from __future__ import annotations

import os
import stat as st
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from opsctl.agent.core import rights, users
from opsctl.agent.core.users import User
from opsctl.agent.files import safepath
from opsctl.wire.protocol import AgentError

# What git is told whoever runs it. The hooks of a checkout are never run.
SETTINGS = ("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.quotePath=false")
ENVIRONMENT = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}
_OURS_ALONE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")  # which a git that has called us left in the environment
_MOST_LINKS = 40


class Command(NamedTuple):
    """A git command: to be run with this environment, as it is, in the folder /."""

    argv: List[str]
    env: Dict[str, str]
    who: User


def command(path: str, words: List[str], settings: Tuple[str, ...] = ()) -> Command:
    """git in the checkout that `path` is in, as its owner. Raises AgentError not-found | permission | missing-tool."""
    who, top = owner(path)
    if (
        who.uid == 0 and os.geteuid() != 0
    ):  # root's, and we are not root: what root has named may be run, and git is to do it
        settings = (*settings, "safe.directory=" + top)
    return command_of(who, os.path.realpath(path), words, settings)


def command_of(who: User, folder: str, words: List[str], settings: Tuple[str, ...] = ()) -> Command:
    """git in a folder as `who`, or as ourselves where they are root and we are not."""
    who = who if os.geteuid() == 0 else User(os.geteuid(), os.getegid())
    git = rights.program(who, "git")
    if git is None:
        raise AgentError("missing-tool", "git is not installed on this host", tool="git")
    told = [word for setting in (*SETTINGS, *settings) for word in ("-c", setting)]
    environment = {name: value for name, value in rights.environment(who).items() if name not in _OURS_ALONE}
    return Command([*rights.words(who), git, *told, "-C", folder, *words], dict(environment, **ENVIRONMENT), who)


def owner(path: str) -> Tuple[User, str]:
    """Who owns the checkout that `path` is in, and its top folder, links resolved.

    Raises AgentError not-found where it is in none, and permission where git must not run there: it is somebody else's
    and we are not root, it belongs to several, or we are root and others can change it.
    """
    found = _found(path)
    if found is None:
        raise AgentError("not-found", "%s is in no git checkout" % path, path=path)
    top, parts, folders = found
    owners = {part: os.lstat(part).st_uid for part in parts}
    uids = set(owners.values())
    ours = os.geteuid()
    if ours != 0 and not uids <= {0, ours}:
        theirs = next(part for part in parts if owners[part] not in (0, ours))
        text = "%s belongs to %s, and we are %s: git would run what its configuration names" % (
            theirs,
            _name(owners[theirs]),
            _name(ours),
        )
        raise AgentError("permission", "%s. Become %s" % (text, _name(owners[theirs])), path=theirs)
    if ours == 0 and len(uids) > 1:
        told = ", ".join("%s is %s's" % (part, _name(uid)) for part, uid in owners.items())
        text = "a checkout of several owners: %s. Give it to one: chown -R" % told
        raise AgentError("permission", text, path=top)
    if ours == 0 and owners[top] == 0:
        for part in (os.path.join(path, ".git"), *parts):
            demand_safe_way(part)
        for folder in folders:
            _demand_roots_alone(folder)
    return users.user(owners[top], os.lstat(top).st_gid), top


def maker(path: str) -> User:
    """Whose a checkout at `path`, where there is none, is going to be: the owner's of the folder it is made in.

    Raises AgentError permission where that is somebody else and we are not root, or root and others can change it.
    """
    above = os.path.dirname(os.path.realpath(path))
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    info = os.stat(above)
    if os.geteuid() != 0:
        return User(os.geteuid(), os.getegid())  # whether we may write there, the system says
    if info.st_uid == 0:
        demand_safe_way(os.path.join(above, "x"))
    return users.user(info.st_uid, info.st_gid)


def demand_usable(source: str, who: User) -> None:
    """Refuse to fetch, as root, from a folder of somebody else: git runs programs of the checkout it fetches from.

    Raises AgentError permission.
    """
    folder = source[len("file://") :] if source.startswith("file://") else source
    if os.geteuid() != 0 or who.uid != 0 or not os.path.isdir(folder):
        return
    theirs, top = owner(folder)
    if theirs.uid != 0:
        text = "%s belongs to %s: root does not fetch from there, as git runs what its configuration names" % (
            top,
            theirs.name,
        )
        raise AgentError("permission", text, path=top)


def _found(path: str) -> Optional[Tuple[str, List[str], List[str]]]:
    """The top of the checkout, what git finds its git folders by, and these: its own, and the one it has in common."""
    top = os.path.realpath(path)
    while not os.path.lexists(os.path.join(top, ".git")) and not _bare(top):
        if top == os.path.dirname(top):
            return None
        top = os.path.dirname(top)
    entry = os.path.join(top, ".git")
    if not os.path.lexists(entry):
        entry = top
    folders = [os.path.realpath(entry if os.path.isdir(entry) else _pointed(entry, "gitdir: "))]
    parts = [top, entry, folders[0]]
    common = os.path.join(folders[0], "commondir")
    if os.path.lexists(common):
        folders.append(os.path.realpath(_pointed(common, "")))
        parts += [common, folders[1]]
    return top, [part for part in dict.fromkeys(parts) if os.path.lexists(part)], folders


def _bare(folder: str) -> bool:
    return all(os.path.exists(os.path.join(folder, name)) for name in ("HEAD", "objects", "refs"))


def _pointed(file: str, prefix: str) -> str:
    """The folder that a file of git names. Raises AgentError permission: who cannot read it does not run git there."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            text = os.fsdecode(stream.read(1 << 16)).rstrip("\r\n")
    except OSError as error:
        raise AgentError("permission", "cannot read %s: %s" % (file, error.strerror), path=file) from None
    if not text.startswith(prefix):
        raise AgentError("failed", "%s does not name a git folder" % file, path=file)
    return os.path.join(os.path.dirname(file), text[len(prefix) :])


def _demand_roots_alone(folder: str) -> None:
    """Refuse a git folder in which anything but the objects is somebody else's, or may be written by others."""
    for top, folders, names in os.walk(folder):
        if "objects" in folders:  # contents by their digests: nothing there is an instruction
            folders.remove("objects")
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        for path in (top, *(os.path.join(top, name) for name in (*names, *links))):
            if os.path.islink(path):
                demand_safe_way(path)
            info = os.stat(path) if os.path.exists(path) else os.lstat(path)
            if info.st_uid != 0 or (_others_write(info) and not st.S_ISLNK(info.st_mode)):
                raise _not_alone(path, info, "git would run as root by what it says")


def demand_safe_way(path: str) -> None:
    """Refuse where somebody else can give a name on the way to `path` another meaning. Raises AgentError permission."""
    for folder in _way(path):
        info = os.stat(folder)
        if safepath.changeable_by_others(info):
            raise _not_alone(folder, info, "git would run as root in %s" % path)


def _not_alone(path: str, info: os.stat_result, what: str) -> AgentError:
    if info.st_uid != 0:
        why = "%s is %s's" % (path, _name(info.st_uid))
    else:
        why = "%s may be written by others (mode %04o)" % (path, st.S_IMODE(info.st_mode))
    remedy = "give the checkout to its user (chown -R), or put it where root alone can write"
    return AgentError("permission", "%s, but %s: %s" % (what, why, remedy), path=path)


def _others_write(info: os.stat_result) -> bool:
    return bool(info.st_mode & st.S_IWOTH or (info.st_mode & st.S_IWGRP and info.st_gid != 0))


def _way(path: str) -> Iterator[str]:
    """The folders in which the names of a path are looked up, those of links on the way too."""
    at, todo, links = "/", [part for part in os.path.abspath(path).split("/") if part], 0
    while todo:
        yield at
        full = os.path.join(at, todo.pop(0))
        if os.path.islink(full) and links < _MOST_LINKS:
            links += 1
            target = os.readlink(full)
            todo = [part for part in target.split("/") if part not in ("", ".")] + todo
            full = "/" if target.startswith("/") else at
        at = os.path.normpath(full)


def _name(uid: int) -> str:
    return User(uid, -1).name
