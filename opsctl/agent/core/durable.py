"""Writes that survive a crash, for what has to outlive the agent."""

from __future__ import annotations

import errno
import json
import os
import stat as st
import threading
import zlib
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

from opsctl.agent.core.statedir import foreign, state_dir
from opsctl.wire.protocol import AgentError

_SUM = b',"sum":"'


def folder(*parts: str) -> str:
    """A folder under the state directory, made where missing. Raises AgentError that names the state directory."""
    with explained():
        return state_dir(*parts)


@contextmanager
def explained() -> Iterator[None]:
    """Have a failed write say that it was opsctl's own state, not the user's files: `state` is true in its fields."""
    try:
        yield
    except OSError as error:
        kind = {errno.ENOSPC: "no-space", errno.EDQUOT: "no-space", errno.EROFS: "read-only"}.get(
            error.errno or 0, "permission" if isinstance(error, PermissionError) else "failed"
        )
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
