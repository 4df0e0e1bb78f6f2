"""Writes that survive a crash, for what has to outlive the agent."""

from __future__ import annotations

import errno
import json
import os
import threading
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional

from opsctl.agent.protocol import AgentError
from opsctl.agent.statedir import state_dir


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


def sync_folder(path: str) -> None:
    """Make the entries of a folder survive a crash, where the file system and its permissions let us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise
    finally:
        os.close(fd)


def read_json(path: str) -> Optional[Dict[str, Any]]:
    """The object in a file, None if there is no such file or no whole object in it."""
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def json_bytes(value: Any) -> bytes:
    """A value as compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()
