"""Looking at files on the host. Apart from `files`, which changes them and is twice as long to send.

With the state of a path it is told what would keep it from being changed (rights, a missing folder, a disk that is
read-only or full), so that check mode says what a run would fail with: `barred`, by the name of the change, the folder
in which something would be made (`ground`), and the free bytes there. A change has the name of a call of `files`,
"inside" for anything in a folder, or "owner" where it may not be given to whom it is meant for.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat as st
from typing import TYPE_CHECKING, Dict, List, Optional

from opsctl.agent.core import users
from opsctl.agent.files import safepath, states
from opsctl.agent.files.safepath import Place, opened, told, whole
from opsctl.wire.digests import temporary_name
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.files import Bar, Owner, Part, State, Tree

MOST_ENTRIES = 100000  # of a tree


def stat(
    call: Context,
    path: str,
    digest: bool = True,
    content: int = 0,
    follow: bool = False,
    owner: Owner = None,
    group: Owner = None,
) -> Reply[State]:
    """The state of a path, and the bytes of a regular file of at most `content` bytes as the body.

    The bytes of what may be somebody's hard link to a file that is not theirs stay here: `planted` is true then.
    With `follow` a symbolic link is resolved; the state then has the `real` path. It also has what would keep a change
    from being made; `owner` and `group`: whom it may be given to.
    """
    path = states.absolute(path)
    with told("look at", path):
        real = safepath.resolved(path) if follow else path
        body = b""
        with safepath.there(real) as at:
            found = states.of(at, False) if at else states.ABSENT.copy()
            if at and found["kind"] == "file" and found["size"] <= content:
                with opened(at.name, os.O_NOFOLLOW, at.folder) as stream:
                    data, info = whole(stream, content + 1), os.fstat(stream.fileno())
                found["size"], found["sha256"] = len(data), hashlib.sha256(data).hexdigest()
                if at.planted(info) and info.st_uid != os.fstat(at.folder).st_uid:
                    found["planted"] = True  # what is in it is not for whom this path is of
                else:
                    body, found["content"] = data, True
            elif at and found["kind"] == "file" and digest:
                found["sha256"] = states.sha256(at.name, call, at.folder)
            foresee(real, at, found, owner, group)
    if follow:
        found["real"] = real
    return Reply(found, body)


def read(call: Context, path: str, offset: int = 0, limit: int = 1 << 20) -> Reply[Part]:
    """Up to `limit` bytes from `offset` (negative: from the end) and the size of the whole."""
    path = states.absolute(path)
    with told("read", path), opened(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else offset
        stream.seek(start)
        return Reply({"size": size, "offset": start}, whole(stream, limit))


def tree(call: Context, path: str, digest: bool = True, owner: Owner = None, group: Owner = None) -> Tree:
    """States of a folder and of everything below it, by relative path. Links are listed, not followed."""
    path = states.absolute(path)
    entries: Dict[str, State] = {}

    def visit(folder: int, above: str) -> None:
        shut = why_closed(folder, os.path.join(path, above))
        for name in sorted(os.listdir(folder)):
            if call.cancelled() or len(entries) >= MOST_ENTRIES:
                raise AgentError("invalid", "more than %d entries below %s" % (MOST_ENTRIES, path), path=path)
            at = Place(folder, name, os.path.join(path, above, name))
            with told("look at", at.path):
                try:
                    found = states.of(at, digest, call)
                except PermissionError:  # perhaps nobody wants to change it
                    found = states.of(at, False)
                entries[os.path.join(above, name)] = found
                found["barred"] = barred(at, found, shut, owner, group)
                if found["kind"] == "dir":
                    with contextlib.suppress(PermissionError), at.entered() as below:
                        visit(below, os.path.join(above, name))

    with told("list", path), safepath.there(path) as at:
        top = states.of(at, False) if at else states.ABSENT.copy()
        foresee(path, at, top, owner, group)
        if at and top["kind"] == "dir":
            with at.entered() as folder:
                visit(folder, "")
    return {"top": top, "entries": entries}


def foresee(path: str, at: Optional[Place], found: State, owner: Owner, group: Owner) -> None:
    """Add to the state of a path what would keep it from being changed.

    at: its place, None where the folder that would hold it is missing.
    """
    parent = ground = os.path.dirname(path)
    in_the_way = None  # type: Optional[Bar]
    while not _is_folder(ground):
        with safepath.there(ground) as above:
            if above and above.exists():
                in_the_way = ["not-found", "%s is not a folder" % ground]
        ground = os.path.dirname(ground)
    with safepath.folder(path if found["kind"] == "dir" else ground) as fd:
        info = os.fstatvfs(fd)
        free = info.f_bavail * info.f_frsize + _begun(fd, os.path.basename(path))
    with safepath.folder(ground) as fd:
        shut = why_closed(fd, ground)
        if at:
            bars = barred(at, found, shut, owner, group)
        else:
            missing = in_the_way or ["not-found", "the folder %s does not exist" % parent]
            bars = barred(Place(fd, ".", path), found, missing, owner, group)
            bars.pop("mkdir", None)
            unmade = in_the_way or shut
            if unmade:
                bars["mkdir"] = unmade
    found["barred"], found["ground"], found["free"] = bars, ground, free


def barred(at: Place, found: State, shut: Optional[Bar], owner: Owner, group: Owner) -> Dict[str, Bar]:
    """What bars changes of something in a folder. `shut`: why nothing can be put into it, as of `why_closed`."""
    stuck = shut or (_stuck(at, found) if found["kind"] != "absent" else None)
    bars: Dict[str, Optional[Bar]] = dict.fromkeys(("write", "link", "remove"), stuck)
    bars["mkdir"] = shut
    writable = found["kind"] in ("file", "dir") and _writable(at)
    us = (0, found.get("uid", os.geteuid()))
    if found["kind"] == "file" and not (os.geteuid() in us and (not os.geteuid() or found["gid"] in _groups())):
        bars["write"] = stuck or ["permission", "only root may replace %s, which is %s's" % (at.path, found["owner"])]
    if found["kind"] == "file" and writable:
        bars["write"] = None  # it is overwritten where it cannot be replaced
    if found["kind"] == "dir" and not writable:  # its entry `..` is to be another one
        bars["remove"] = stuck or ["permission", "%s cannot move %s" % (users.name_of(os.geteuid()), at.path)]
    if found["kind"] == "dir":
        fd = at.open(os.O_PATH | os.O_DIRECTORY)
        try:
            bars["inside"] = why_closed(fd, at.path)
        finally:
            os.close(fd)
    if found["kind"] in ("file", "dir"):
        bars["attributes"] = _fixed(at, found)
    bars["owner"] = _kept(at, found, owner, group)
    return {change: bar for change, bar in bars.items() if bar}


def why_closed(folder: int, path: str) -> Optional[Bar]:
    """Why nothing can be made, replaced or removed in an open folder; None where it can."""
    if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        return ["read-only", "the file system of %s is mounted read-only" % path]
    if os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
        return None
    info = os.fstat(folder)
    why = "it belongs to %s, mode %04o" % (users.name_of(info.st_uid), st.S_IMODE(info.st_mode))
    if not os.geteuid():
        why = "it is immutable (chattr), or the system keeps root from it"
    return ["permission", "%s cannot write in %s: %s" % (users.name_of(os.geteuid()), path, why)]


def _stuck(at: Place, found: State) -> Optional[Bar]:
    """Why something cannot be renamed, though its folder can be written."""
    info, us = os.fstat(at.folder), os.geteuid()
    if info.st_mode & st.S_ISVTX and us not in (0, info.st_uid, found["uid"]):
        return ["permission", "only %s and root may replace or remove %s" % (found["owner"], at.path)]
    if found["kind"] in ("file", "dir") and not us and not _writable(at):
        return ["permission", "%s is immutable (chattr), or the system keeps root from it" % at.path]
    return None


def _writable(at: Place) -> bool:
    return os.access(at.name, os.W_OK, dir_fd=at.folder, follow_symlinks=False)


def _groups() -> List[int]:
    return [os.getegid(), *os.getgroups()]


def _fixed(at: Place, found: State) -> Optional[Bar]:
    if os.fstatvfs(at.folder).f_flag & os.ST_RDONLY:
        return ["read-only", "the file system of %s is mounted read-only" % at.path]
    if os.geteuid() in (0, found["uid"]):
        return _stuck(at, found) if not os.geteuid() else None
    return ["permission", "only %s and root may change the attributes of %s" % (found["owner"], at.path)]


def _kept(at: Place, found: State, owner: Owner, group: Owner) -> Optional[Bar]:
    """Why it cannot be given to an owner and group."""
    try:
        uid, gid = states.uid_of(owner), states.gid_of(group)
    except AgentError as error:
        return [error.kind, error.message]
    us = os.geteuid()
    if us and uid not in (-1, found.get("uid", us)):
        return ["permission", "only root may give %s to %s, and this is %s" % (at.path, owner, users.name_of(us))]
    if us and gid not in (-1, found.get("gid"), *_groups()):
        return ["permission", "only root and members may give %s to the group %s" % (at.path, group)]
    return None


def _is_folder(path: str) -> bool:
    try:
        with safepath.folder(path):
            return True
    except (FileNotFoundError, NotADirectoryError):
        return False


def _begun(folder: int, name: str) -> int:
    """Bytes of what has arrived in a folder for a file that was not put in place yet: there will be room for those.

    Another run may finish or remove it meanwhile.
    """
    prefix = temporary_name(name, "").rpartition("-")[0]
    total = 0
    try:
        names = os.listdir("/proc/self/fd/%d" % folder)
    except OSError:
        return 0
    for one in (one for one in names if one.rpartition("-")[0] == prefix):
        at = Place(folder, one, one)
        with contextlib.suppress(FileNotFoundError):
            info = at.stat()
            if not st.S_ISDIR(info.st_mode) or safepath.changeable_by_others(info):
                continue
            with at.entered() as fd:
                total += sum(512 * os.stat(part, dir_fd=fd, follow_symlinks=False).st_blocks for part in os.listdir(fd))
    return total


CALLS = {"stat": stat, "read": read, "tree": tree}
