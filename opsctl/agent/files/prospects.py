"""What would keep a file from being changed: rights, a folder that is missing, a disk that is read-only or full.

It is told with the state of a path, so that check mode says what a run would fail with: what bars each change, the
folder in which something would be made (`ground`), and the free bytes there.

A change has the name of a call of `files`, "inside" for anything in a folder, or "owner" where it may not be given to
whom it is meant for; changes that nothing bars are left out.
"""

from __future__ import annotations

import contextlib
import os
import stat as st
from typing import TYPE_CHECKING, Dict, List, Optional

from opsctl.agent.files import safepath
from opsctl.agent.files import state as fs
from opsctl.agent.files.safepath import Place
from opsctl.wire.protocol import AgentError

if TYPE_CHECKING:
    from opsctl.wire.calls.files import Bar, Owner, State


def of(path: str, at: Optional[Place], found: State, owner: Owner, group: Owner) -> None:
    """Add all of it to the state of a path. `at`: its place, None where the folder that would hold it is missing."""
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
        shut = closed(fd, ground)
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
    """What bars changes of something in a folder. `shut`: why nothing can be put into it, as of `closed`."""
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
        bars["remove"] = stuck or ["permission", "%s cannot move %s" % (safepath.user(os.geteuid()), at.path)]
    if found["kind"] == "dir":
        fd = at.open(os.O_PATH | os.O_DIRECTORY)
        try:
            bars["inside"] = closed(fd, at.path)
        finally:
            os.close(fd)
    if found["kind"] in ("file", "dir"):
        bars["attributes"] = _fixed(at, found)
    bars["owner"] = _kept(at, found, owner, group)
    return {change: bar for change, bar in bars.items() if bar}


def closed(folder: int, path: str) -> Optional[Bar]:
    """Why nothing can be made, replaced or removed in an open folder; None where it can."""
    if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
        return ["read-only", "the file system of %s is mounted read-only" % path]
    if os.access(".", os.W_OK | os.X_OK, dir_fd=folder):
        return None
    info = os.fstat(folder)
    why = "it belongs to %s, mode %04o" % (safepath.user(info.st_uid), st.S_IMODE(info.st_mode))
    if not os.geteuid():
        why = "it is immutable (chattr), or the system keeps root from it"
    return ["permission", "%s cannot write in %s: %s" % (safepath.user(os.geteuid()), path, why)]


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
        uid, gid = fs.uid_of(owner), fs.gid_of(group)
    except AgentError as error:
        return [error.kind, error.message]
    us = os.geteuid()
    if us and uid not in (-1, found.get("uid", us)):
        return ["permission", "only root may give %s to %s, and this is %s" % (at.path, owner, safepath.user(us))]
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
    prefix = fs.hidden(name, "").rpartition("-")[0]
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
