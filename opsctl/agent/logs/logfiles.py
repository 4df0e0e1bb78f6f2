"""Which files a log consists of, rotated ones too, where in a file a time is, and what a file holds, unpacked."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import time
import zlib
from datetime import datetime, timedelta
from io import BufferedReader
from typing import TYPE_CHECKING, Any, BinaryIO, Iterator, List, Optional

from opsctl.agent.files.safepath import descriptor
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import LogFile, LogFiles

MOST_FILES = 40
BLOCK = 4 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_STAMP = re.compile(rb"(?:^|\n)\[?(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)")
_ENDING = r"(?:[.-]\d[\w:-]{0,30})?"
_PACKED = r"(?:\.gz|\.zst)?\Z"
_LOOK = 256 << 10  # bytes in which a line with a time is to be found


def family(path: str) -> List[str]:
    """The files of the log at `path`, oldest first: what logrotate and size rotation leave beside it, and itself."""
    folder, base = os.path.split(path)
    stem, extension = os.path.splitext(base)
    name = re.compile(
        "(?:%s%s|%s%s%s)%s"
        % (re.escape(base), _ENDING, re.escape(stem), _ENDING.rstrip("?"), re.escape(extension), _PACKED)
    )
    try:
        names = [other for other in os.listdir(folder or ".") if name.match(other) and other != base]
    except OSError:
        names = []
    aged = []
    for other in names:
        try:
            status = os.stat(os.path.join(folder, other))
        except OSError:  # rotated away meanwhile
            continue
        if status.st_size:
            aged.append((status.st_mtime, os.path.join(folder, other)))
    return [other for _, other in sorted(aged)[-MOST_FILES:]] + ([path] if os.path.exists(path) else [])


def recent(paths: List[str], seconds: float) -> List[str]:
    """Those of `paths` that were written to within the last `seconds`; the last one always."""
    limit = time.time() - seconds
    return [path for path in paths[:-1] if _changed(path) >= limit] + paths[-1:]


def offset_of(path: str, seconds: float) -> int:
    """Where the lines of the last `seconds` begin in a plain file; 0 where its lines have no time.

    Times are counted back from the file's last line and its time of change, so the time zone does not matter.
    """
    size = os.path.getsize(path)
    with os.fdopen(descriptor(path), "rb") as file:
        if _packed(file.read(4)):
            return 0
        last = _last_time(file, size)
        if last is None:
            return 0
        limit = last - timedelta(seconds=max(0.0, seconds - max(0.0, time.time() - _changed(path))))
        low, high = 0, size  # everything before `low` is older
        while high - low > 4096:
            middle = (low + high) // 2
            found = _first_time(file, middle, high)
            if found is None or found >= limit:
                high = middle
            else:
                low = middle
        file.seek(low)
        return low + file.read(_LOOK).find(b"\n") + 1 if low else 0


def blocks(path: str, offset: int = 0, limit: int = 0, block: int = BLOCK, once: bool = False) -> Iterator[bytes]:
    """Give the unpacked bytes of a log in blocks, from `offset` of them, at most `limit` where it is set.

    What a growing file gains while it is read is read as well; the end is where a read finds nothing more. A packed
    file that ends too early gives what it holds. once: leave nothing of it in the page cache, where a server's weights
    may be. Raises AgentError: not-found, permission, missing-tool.
    """
    try:
        file = os.fdopen(descriptor(path), "rb")
    except FileNotFoundError:
        raise AgentError("not-found", "no such log: %s" % path, path=path) from None
    except OSError as error:
        kind = "permission" if isinstance(error, PermissionError) else "failed"
        raise AgentError(kind, "%s: %s" % (path, error.strerror), path=path) from None
    return _unpacked(file, path, offset, limit, block, once)


def look(call: Context, path: str = "") -> LogFiles:
    """Agent call `logfiles.look`: the files of a log, oldest first, with their sizes and times of change; and `now`."""
    found: List[LogFile] = []
    for name in family(path) if path else ():
        status = os.stat(name)
        found.append({"path": name, "size": status.st_size, "changed": status.st_mtime})
    return {"files": found, "now": time.time()}


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _first_time(file: Any, start: int, end: int) -> "Optional[datetime]":
    file.seek(start)
    found = _STAMP.search(file.read(min(_LOOK, end - start)), 1)
    return _time(found.group(1)) if found else None


def _last_time(file: Any, size: int) -> "Optional[datetime]":
    file.seek(max(0, size - _LOOK))
    found = _STAMP.findall(file.read(_LOOK))
    return _time(found[-1]) if found else None


def _time(text: bytes) -> "Optional[datetime]":
    try:
        return datetime.strptime(text.decode().replace("T", " "), "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None


def _packed(head: bytes) -> str:
    """How a file that begins with `head` is packed: 'gzip', 'zstd' or ''."""
    return "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith(_ZSTD) else ""


def _unpacked(
    file: BufferedReader, path: str, offset: int = 0, limit: int = 0, block: int = BLOCK, once: bool = False
) -> Iterator[bytes]:
    """The same of an open file, which is closed at the end."""
    with file:
        kind = _packed(file.peek(4)[:4])
        if kind == "gzip":
            source = _gunzip(file, block)
        elif kind == "zstd":
            source = _unzstd(path, file, block)
        else:
            if offset:
                file.seek(offset)
            source, offset = _plain(file, block, once), 0
        left = limit or -1
        for data in source:
            if offset:
                skip = min(offset, len(data))
                data, offset = data[skip:], offset - skip
            if left >= 0:
                data = data[:left]
                left -= len(data)
            if data:
                yield data
            if left == 0:
                return


def _plain(file: BinaryIO, block: int, once: bool) -> Iterator[bytes]:
    while True:
        data = file.read(block)
        if not data:
            return
        yield data
        if once and hasattr(os, "posix_fadvise"):
            end = file.tell()
            os.posix_fadvise(file.fileno(), end - len(data), len(data), os.POSIX_FADV_DONTNEED)


def _gunzip(file: BinaryIO, block: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        while True:
            try:
                data = unpacked.read1(block)
            except (EOFError, zlib.error, OSError):
                return  # cut short, or still being written
            if not data:
                return
            yield data


def _unzstd(path: str, file: BinaryIO, block: int) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        yield from _zstd_command(path, file, block)
        return
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    while True:
        try:
            data = reader.read(block)
        except zstandard.ZstdError:
            return
        if not data:
            return
        yield data


def _zstd_command(path: str, file: BinaryIO, block: int) -> Iterator[bytes]:
    tool = shutil.which("zstd") or shutil.which("unzstd")
    if tool is None:
        raise AgentError(
            "missing-tool", "%s is packed with zstd, and this host has no zstd" % path, tool="zstd", path=path
        )
    os.lseek(file.fileno(), 0, os.SEEK_SET)  # its buffer has read from it
    process = subprocess.Popen(
        [tool, "-dcq"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=file,
    )
    assert process.stdout is not None
    try:
        while True:
            data = process.stdout.read(block)
            if not data:
                return
            yield data
    finally:
        process.stdout.close()
        process.kill()
        process.wait()


CALLS = {"look": look}
