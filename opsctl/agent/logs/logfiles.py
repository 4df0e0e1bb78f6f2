"""Which files a log consists of, rotated ones too, and where in a file a time is."""

from __future__ import annotations

import os
import re
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Iterator, List, Optional

from opsctl.agent.files.safepath import descriptor
from opsctl.wire import log_source
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import LogFile, LogFiles

MOST_FILES = 40
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
        if log_source.packed(file.read(4)):
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


def blocks(
    path: str, offset: int = 0, limit: int = 0, block: int = log_source.BLOCK, once: bool = False
) -> Iterator[bytes]:
    """The bytes of a log as `log_source.blocks` gives them. Raises AgentError: not-found, permission, missing-tool."""
    try:
        file = os.fdopen(descriptor(path), "rb")
    except FileNotFoundError:
        raise AgentError("not-found", "no such log: %s" % path, path=path) from None
    except OSError as error:
        kind = "permission" if isinstance(error, PermissionError) else "failed"
        raise AgentError(kind, "%s: %s" % (path, error.strerror), path=path) from None
    return log_source.blocks(file, path, offset, limit, block, once)


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


CALLS = {"look": look}
