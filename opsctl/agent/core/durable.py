"""What has to outlive the agent on the host (journals, locks, records of processes): where it lies, writes that survive
a crash, and reading only what is ours.

What lies there is acted on, so nobody but its user and root may have written it. As sshd does with the keys of a user,
the owner and the mode of the folder and of every folder above it are looked at each time.
"""

from __future__ import annotations

import errno
import json
import os
import stat as st
import threading
import zlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

from opsctl.agent.core.dispatch import KINDS
from opsctl.wire.protocol import AgentError

_SUM = b',"sum":"'


def folder(*parts: str) -> str:
    """A folder under the state directory, made where missing. Raises AgentError that names the state directory."""
    with explained():
        return state_dir(*parts)


def state_dir(*parts: str) -> str:
    """The state folder, or a folder below it, made if need be and readable by its owner alone.

    OPSCTL_STATE_DIR if set, else /var/lib/opsctl for root, else $XDG_STATE_HOME/opsctl (~/.local/state/opsctl).
    Raises AgentError unsafe where somebody else could have written into it.
    """
    path = base()
    demand_safe(path)
    for part in ("", *parts):  # one by one: the mode is for the last folder alone
        path = os.path.join(path, part) if part else path
        os.makedirs(path, mode=0o700, exist_ok=True)
    demand_safe(path)
    return path


def base() -> str:
    """The state folder, which need not be there yet."""
    named = os.environ.get("OPSCTL_STATE_DIR")
    if named:
        return named
    if os.geteuid() == 0:
        return "/var/lib/opsctl"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "opsctl")


def demand_safe(path: str) -> None:
    """Raise AgentError unsafe if anybody but root and ourselves can change what a folder of ours holds.

    Symbolic links are resolved, and the folders that hold them are looked at, too.
    """
    why = _unsafe(path)
    if why:
        raise AgentError("unsafe", "what opsctl keeps in %s is not acted on: %s" % (path, why), path=path, state=True)


@contextmanager
def explained() -> Iterator[None]:
    """Have a failed write say that it was opsctl's own state, not the user's files: `state` is true in its fields."""
    try:
        yield
    except OSError as error:
        kind = KINDS.get(error.errno or 0)
        kind = kind if kind in ("no-space", "read-only", "permission") else "failed"
        message = "cannot keep opsctl's state in %s: %s" % (error.filename or "its folder", error.strerror)
        raise AgentError(kind, message, path=error.filename, state=True) from error


def write(path: str, data: bytes) -> None:
    """Replace a file so that after a crash it is the old or the new one, whole."""
    temporary = "%s.%d-%d.new" % (path, os.getpid(), threading.get_ident())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`; os.write may take less."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def take_room(fd: int, start: int, length: int) -> None:
    """Have blocks of the disk for a part of a file, as zeros. Raises OSError where it is full."""
    try:
        if length:
            os.posix_fallocate(fd, start, length)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # this file system knows of no such thing
            raise


def sync_folder(path: str, dir_fd: Optional[int] = None) -> None:
    """Make the entries of a folder survive a crash, where the file system and its permissions let us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise
    finally:
        os.close(fd)


def opened(path: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a file of our own. Raises AgentError unsafe if it is a link or somebody else's, OSError."""
    try:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise AgentError("unsafe", "%s is a link: it is not followed" % path, path=path, state=True) from None
    info = os.fstat(fd)
    why = foreign(info) if st.S_ISREG(info.st_mode) else "it is no file"
    if why:
        os.close(fd)
        raise AgentError("unsafe", "%s is not read: %s" % (path, why), path=path, state=True)
    return fd


def read(path: str) -> bytes:
    """All of a file of our own. Raises AgentError unsafe, OSError."""
    with os.fdopen(opened(path), "rb") as file:
        return file.read()


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The object in a file of our own, None if there is no such file or no whole object in it.

    Raises AgentError unsafe if somebody else can have written it.
    """
    try:
        value = json.loads(read(path))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def json_bytes(value: Any) -> bytes:
    """A value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def pack(record: Dict[str, Any]) -> bytes:
    """A record (not empty) as a line of JSON that ends with the CRC-32 of the rest of it, as `sum`."""
    text = json_bytes(record)
    return b'%s%s%08x"}\n' % (text[:-1], _SUM, zlib.crc32(text))


def unpack(line: bytes) -> Optional[Dict[str, Any]]:
    """The record of a packed line, with its `sum`; None if the line is not as it was written."""
    text, mark, end = line.rstrip(b"\n").rpartition(_SUM)
    if not mark or end != b'%08x"}' % zlib.crc32(text + b"}"):
        return None
    record = json.loads(text + mark + end)
    return record if isinstance(record, dict) else None


def foreign(info: os.stat_result) -> Optional[str]:
    """Why a file or folder of ours may be somebody else's work, in words; None if it is ours or root's alone."""
    if info.st_uid not in (0, os.geteuid()):
        return "it belongs to user %d" % info.st_uid
    if info.st_mode & st.S_IWOTH or (info.st_mode & st.S_IWGRP and not private_group(info)):
        return "others can write to it (mode %04o)" % st.S_IMODE(info.st_mode)
    return None


def _unsafe(path: str) -> Optional[str]:
    """Why it is not safe, in words. What is not there yet is."""
    here, links = os.sep, 0
    todo = os.path.join(os.getcwd(), path).split(os.sep)
    while True:
        try:
            info = os.lstat(here)
        except FileNotFoundError:
            return None
        if st.S_ISLNK(info.st_mode):
            links += 1
            if links > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), here)
            if info.st_uid not in (0, os.geteuid()):
                return "the link %s belongs to user %d" % (here, info.st_uid)
            target = os.readlink(here)
            todo = target.split(os.sep) + todo
            here = os.sep if os.path.isabs(target) else os.path.dirname(here)
            continue
        why = foreign(info)
        # In a sticky folder of root's, as /tmp, nobody can take away or replace what is ours.
        shared = info.st_uid == 0 and info.st_mode & st.S_ISVTX and any(todo)
        if why and not shared:
            return "%s: %s" % (here, why)
        if not todo:
            return None
        part = todo.pop(0)
        here = os.path.dirname(here) if part == ".." else os.path.join(here, part) if part not in ("", ".") else here


def private_group(info: os.stat_result) -> bool:
    """Whether a group is its owner's alone: where every user has one, folders are made writable for it."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == info.st_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
