"""How a path is, as plain data; whether it is as expected; replacing it in one step.

A state is `wire.calls.files.State`; `other` is for sockets, devices and pipes.
"""

from __future__ import annotations

import errno
import grp
import hashlib
import os
import pwd
import stat as st
from typing import TYPE_CHECKING, Any, BinaryIO, Iterable, List, Optional, Union

from opsctl.agent.core import users
from opsctl.agent.files.safepath import Place, opened
from opsctl.wire.digests import temporary_name
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.files import Owner, State

CHUNK = 1 << 20
SHAPE = ("kind", "sha256", "target")  # what a path is
ATTRIBUTES = ("mode", "uid", "gid")  # changed one by one, so a change cut half way leaves a mixture
_CAPABILITY = "security.capability"
_LABELS = ("security.selinux", "security.ima", "security.evm")  # the system gives each file its own
ABSENT: State = {"kind": "absent"}


def absolute(path: str) -> str:
    """`path` with ~ expanded. Raises AgentError for a relative path: the agent has no working folder of its own."""
    full = os.path.expanduser(path)
    if not os.path.isabs(full) or "\0" in full:
        raise AgentError("invalid", "not an absolute path: %r" % path, path=path)
    return os.path.normpath(full)


def state(path: str, digest: bool = True, call: Optional[Context] = None, dir_fd: Optional[int] = None) -> State:
    """The state of `path` itself, in the folder `dir_fd`; a symbolic link is not followed."""
    try:
        info = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT.copy()
    found: State = {
        "kind": "other",
        "uid": info.st_uid,
        "gid": info.st_gid,
        "owner": users.name_of(info.st_uid),
        "group": _group(info.st_gid),
    }
    if st.S_ISLNK(info.st_mode):
        found["kind"], found["target"] = "link", os.readlink(path, dir_fd=dir_fd)
        return found
    found["mode"] = st.S_IMODE(info.st_mode)
    if st.S_ISDIR(info.st_mode):
        found["kind"] = "dir"
    elif st.S_ISREG(info.st_mode):
        found["kind"], found["size"] = "file", info.st_size
        if digest:
            found["sha256"] = sha256(path, call, dir_fd)
    return found


def of(at: Place, digest: bool = True, call: Optional[Context] = None) -> State:
    """The state of what has a name in a folder that is held open."""
    return state(at.name, digest, call, at.folder)


def fingerprint(path: str) -> Optional[List[int]]:
    """What tells whether a file is still as it was, without reading it: size, mtime, inode; None if it is no file."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ino] if st.S_ISREG(info.st_mode) else None


def sha256(path: str, call: Optional[Context] = None, dir_fd: Optional[int] = None) -> str:
    """The digest of a regular file's content, in hex."""
    digest = hashlib.sha256()
    with opened(path, os.O_NOFOLLOW if dir_fd is not None else 0, dir_fd) as stream:
        for part in parts(stream):
            if call is not None and call.cancelled():
                raise AgentError("failed", "cancelled while reading %s" % path, path=path)
            digest.update(part)
    return digest.hexdigest()


def parts(stream: BinaryIO) -> Iterable[bytes]:
    while True:
        part = stream.read(CHUNK)
        if not part:
            return
        yield part


def differs(now: State, expected: State) -> Optional[str]:
    """How `now` is not as expected, in words; None if it is. Only what `expected` mentions is compared."""
    for key in SHAPE + ATTRIBUTES:
        if key in expected and key in now and now.get(key) != expected.get(key):
            return "%s is %s, not %s" % (key, _shown(key, now.get(key)), _shown(key, expected.get(key)))
        if key in ("kind", "target") and key in expected and key not in now:
            return "it is a %s" % now["kind"]
    return None


def demand(path: str, now: State, expected: Optional[State]) -> None:
    """Raise a conflict unless `path` is as it was observed."""
    difference = differs(now, expected) if expected else None
    if difference:
        raise AgentError("conflict", "%s has changed since it was looked at: %s" % (path, difference), path=path)


def between(now: State, before: State, after: State) -> bool:
    """Whether `now` is the before state, the after state, or what a change cut half way leaves of the two."""
    shaped = any(all(now.get(k) == side.get(k) for k in SHAPE) for side in (before, after))
    return shaped and all(now.get(k) in (before.get(k), after.get(k)) for k in ATTRIBUTES)


def uid_of(owner: Owner) -> int:
    """-1 (leave) for None. Raises AgentError for an unknown user."""
    if owner is None:
        return -1
    if isinstance(owner, int) or owner.isdigit():
        return int(owner)
    try:
        return pwd.getpwnam(owner).pw_uid
    except KeyError:
        raise AgentError("invalid", "there is no user %r on this host" % owner) from None


def gid_of(group: Owner) -> int:
    if group is None:
        return -1
    if isinstance(group, int) or group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise AgentError("invalid", "there is no group %r on this host" % group) from None


def dress(target: Union[str, int], mode: Optional[int], uid: int, gid: int) -> None:
    """Set owner and mode of an open file or folder: a descriptor, or a path of one in /proc.

    What is not given stays: set-user-id bits and file capabilities, too, which the system drops with the owner.
    """
    info = os.stat(target)
    if uid in (-1, info.st_uid) and gid in (-1, info.st_gid):
        if mode not in (None, st.S_IMODE(info.st_mode)):
            os.chmod(target, mode)
        return
    capability = _xattr(target, _CAPABILITY)
    os.chown(target, uid, gid)
    os.chmod(target, st.S_IMODE(info.st_mode) if mode is None else mode)
    if capability is not None:
        os.setxattr(target, _CAPABILITY, capability)


def _xattr(target: Union[str, int], name: str) -> Optional[bytes]:
    try:
        return os.getxattr(target, name)
    except OSError:  # it has none, or its file system has none
        return None


def beside(at: Place, seed: Optional[str] = None) -> Place:
    """The place of a temporary thing in the same folder, so that a rename replaces `at` in one step.

    With a `seed` (where the change keeps what it needs to go back) it is always the same, so that an undo finds what a
    crash left of it.
    """
    return at.beside(temporary_name(at.name, seed or os.urandom(6).hex()))


def copy_xattrs(source: Union[str, int], target: Union[str, int]) -> List[str]:
    """Extended attributes (ACLs, labels, capabilities) as far as the file system and our rights go; gives the others.

    Both are descriptors, or paths of such in /proc. To be done after the owner is set, which drops capabilities, and
    before the mode, which an ACL changes.
    """
    try:
        names = os.listxattr(source)
    except OSError:
        return []
    left = []
    for name in names:
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EACCES, errno.ENODATA, errno.EINVAL):
                raise
            if name not in _LABELS:
                left.append(name)
    return left


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _shown(key: str, value: Any) -> str:
    if key == "mode" and isinstance(value, int):
        return "%04o" % value
    return value[:12] if key == "sha256" else str(value)
