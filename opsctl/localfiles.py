"""Local files: those that a user has named, and those that opsctl ships.

Opening what a user has named ends, whatever it is. A pipe that nobody writes to, or a device, would keep the program
for ever. What a shell hands over (`<(command)`, `/dev/stdin`) is a pipe too, but has a writer.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from io import BufferedReader
from pathlib import Path

_PACKAGE = Path(__file__).parent

_NAMES = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def shipped(name: str) -> Path:
    """Returns a folder that is shipped, such as `playbooks`: inside the wheel, or beside the package in a checkout."""
    inside = _PACKAGE / "shipped" / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def from_home(path: str | Path) -> Path:
    """`path` with the home folder for `~`; as it stands where nobody has that name, so that it is told as not there."""
    return Path(os.path.expanduser(path))


def opened(path: Path, *, piped: bool = False) -> BufferedReader:
    """A regular file, or with `piped` a pipe that was handed over, to be read.

    Raises OSError; its `strerror` says what the thing is where it is no file.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise _no_file(path, stat.S_IFSOCK) from None
        raise
    kind = stat.S_IFMT(os.fstat(fd).st_mode)
    if kind != stat.S_IFREG and not (piped and kind == stat.S_IFIFO and _handed_over(path)):
        os.close(fd)
        raise _no_file(path, kind)
    os.set_blocking(fd, True)
    return os.fdopen(fd, "rb")


def read(path: Path, *, piped: bool = False) -> bytes:
    """All of it. Raises OSError."""
    with opened(path, piped=piped) as stream:
        return stream.read()


def read_text(path: Path, *, piped: bool = False) -> str:
    """All of it, as UTF-8. Raises OSError, UnicodeDecodeError."""
    return read(path, piped=piped).decode("utf-8")


def replace(path: Path, text: str) -> None:
    """Put `text` in the place of what a file holds: all of it or, on OSError, nothing. Its mode stays, and a link."""
    path = path.resolve()
    fd, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(fd)
        os.chmod(name, stat.S_IMODE(path.stat().st_mode))
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def demand_file(path: Path) -> None:
    """Raise OSError unless it is a regular file that can be read."""
    kind = stat.S_IFMT(path.stat().st_mode)
    if kind != stat.S_IFREG:
        raise _no_file(path, kind)
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def _no_file(path: Path, kind: int) -> OSError:
    what = f"it is {_NAMES.get(kind, 'something else')}, not a file"
    return OSError(errno.EISDIR if kind == stat.S_IFDIR else errno.EINVAL, what, str(path))


def _handed_over(path: Path) -> bool:
    return os.path.realpath(path).startswith("/proc/")
