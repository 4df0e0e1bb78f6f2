"""Following a log file by its bytes, through rotation and truncation."""

from __future__ import annotations

import os
from typing import BinaryIO, List, Optional

from opsctl.agent.files.safepath import opened
from opsctl.wire.protocol import AgentError
from opsctl.wire.redact import Redactor

CHUNK = 1 << 20
LONGEST = 64 << 10  # bytes of a line that is still kept whole


def file_of(path: str) -> Optional[List[int]]:
    """Which file is at a path now: its device and inode; None if there is none."""
    try:
        seen = os.stat(path)
    except OSError:
        return None
    return [seen.st_dev, seen.st_ino]


def begin_of(path: str, file: Optional[List[int]], offset: int) -> int:
    """Where to read what came after `offset` of a file: 0 once it was rotated or truncated, as all is newer then."""
    try:
        seen = os.stat(path)
    except OSError:
        return 0
    return offset if file == [seen.st_dev, seen.st_ino] and seen.st_size >= offset else 0


def last_lines(path: str, offset: int, most: int) -> List[str]:
    """The last lines of a log that are not empty, from `offset` on, secrets masked; none if there is no log."""
    try:
        with opened(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            begin = offset if offset <= size else 0  # it was rotated or truncated since
            stream.seek(max(begin, size - LONGEST))
            data = stream.read(LONGEST)
    except (OSError, AgentError):
        return []
    if size - LONGEST > begin:
        data = data.partition(b"\n")[2]  # the front of its first line is missing
    masked = Redactor().feed(data.replace(b"\r", b"\n") + b"\n").decode("utf-8", "backslashreplace")
    return [line for line in masked.split("\n") if line.strip()][-most:]


class Tail:
    """New lines of a log from an offset on. A file that is not there yet is waited for.

    Progress bars end their lines with a carriage return; those count as lines too.
    """

    def __init__(self, path: str, offset: Optional[int] = None) -> None:
        self.path = path
        self.bytes = 0  # read so far
        self.last = ""  # the last line seen
        self._stream: Optional[BinaryIO] = None
        self._rest = b""
        self._open(offset)

    def lines(self) -> List[str]:
        """The lines that have come since the last time."""
        parts = (self._rest + self.read()).replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop()[-LONGEST:]
        found = [part.decode("utf-8", "backslashreplace") for part in parts if part.strip()]
        if found:
            self.last = found[-1]
        return found

    def read(self) -> bytes:
        """The bytes that have come since the last time; between a rotated file and the next one there is a line end."""
        if self._stream is None:
            self._open(0)
            if self._stream is None:
                return b""
        data = self._take()
        if self._replaced():
            data += self._take() + b"\n"
            self._stream.close()
            self._stream = None
            self._open(0)
            data += self._take()
        return data

    @property
    def rest(self) -> str:
        """The beginning of a line that has not ended yet."""
        return self._rest.decode("utf-8", "backslashreplace")

    def place(self) -> "Optional[List[int]]":
        """Where the lines given so far end: device, inode and offset; None while there is no file."""
        if self._stream is None:
            return None
        status = os.fstat(self._stream.fileno())
        return [status.st_dev, status.st_ino, self._stream.tell() - len(self._rest)]

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _open(self, offset: Optional[int]) -> None:
        try:
            stream = opened(self.path)  # kept open: a renamed file is read to its end
        except (OSError, AgentError):  # what is no file, /dev/null for one, has no lines
            return
        size = os.fstat(stream.fileno()).st_size
        # An offset beyond the end is of a file that has been rotated or truncated since.
        stream.seek(size if offset is None else offset if offset <= size else 0)
        self._stream = stream

    def _replaced(self) -> bool:
        assert self._stream is not None
        mine = os.fstat(self._stream.fileno())
        try:
            there = os.stat(self.path)
        except OSError:
            return False
        if (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino):
            if there.st_size < self._stream.tell():  # truncated: logrotate's copytruncate
                self._stream.seek(0)
            return False
        return True

    def _take(self) -> bytes:
        data = self._stream.read(CHUNK) if self._stream is not None else b""
        self.bytes += len(data)
        return data
