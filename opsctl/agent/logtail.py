"""Following a log file by its bytes, through rotation and truncation."""

from __future__ import annotations

import os
from typing import BinaryIO, List, Optional

CHUNK = 1 << 20
LONGEST = 64 << 10  # bytes of a line that is still kept whole


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
        """What has come since the last time."""
        if self._stream is None:
            self._open(0)
            if self._stream is None:
                return []
        found = self._read()
        if self._replaced():
            found += self._read()
            self._stream.close()
            self._stream, self._rest = None, b""
            self._open(0)
            found += self._read()
        if found:
            self.last = found[-1]
        return found

    @property
    def rest(self) -> str:
        """The beginning of a line that has not ended yet."""
        return self._rest.decode("utf-8", "backslashreplace")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _open(self, offset: Optional[int]) -> None:
        try:
            stream = open(self.path, "rb")  # noqa: SIM115  kept open: a renamed file is read to its end
        except OSError:
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

    def _read(self) -> List[str]:
        if self._stream is None:
            return []
        data = self._stream.read(CHUNK)
        self.bytes += len(data)
        parts = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        self._rest = parts.pop()[-LONGEST:]
        return [part.decode("utf-8", "backslashreplace") for part in parts if part.strip()]
