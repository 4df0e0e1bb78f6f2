"""Opening files that a user has named: whatever it is, opening it ends.

A pipe that nobody writes to, or a device, would keep the program for ever. What a shell hands over (`<(command)`,
`/dev/stdin`) is a pipe too, but has a writer.
"""

from __future__ import annotations

import os
import stat
from io import BufferedReader
from pathlib import Path

from opsctl.errors import UsageError

_NAMES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def opened(path: Path) -> BufferedReader:
    """A regular file, or a pipe that was handed over, to be read. Raises UsageError for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        what = "a socket" if path.is_socket() else error.strerror
        raise UsageError(f"{path}: {what}", hint=None if what == error.strerror else "a file is expected") from None
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG and not (kind == stat.S_IFIFO and _handed_over(path)):
        os.close(fd)
        raise UsageError(f"{path}: {_NAMES.get(kind, 'no file')}, not a file", hint="a file is expected")
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def read(path: Path) -> bytes:
    """All of it. Raises UsageError."""
    with opened(path) as stream:
        return stream.read()


def read_text(path: Path) -> str:
    """All of it, as UTF-8. Raises UsageError, UnicodeDecodeError."""
    return read(path).decode("utf-8")


def demand_file(path: Path) -> None:
    """Raise UsageError unless it is a regular file that can be read."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise UsageError(f"{path}: {_NAMES.get(kind, 'no file')}, not a file", hint="a file is expected")
    if not os.access(path, os.R_OK):
        raise UsageError(f"{path}: it cannot be read", hint="look at its permissions")


def _handed_over(path: Path) -> bool:
    return os.path.realpath(path).startswith("/proc/")
