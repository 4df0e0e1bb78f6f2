"""The two-way byte stream an agent is spoken to over."""

from __future__ import annotations

import os
from typing import Protocol


class SourceUnreadable(Exception):
    """Why a file that is to be sent cannot be read."""


class Stream(Protocol):
    """A started command: its standard input, output and error. Every wait has a limit."""

    def send(self, data: bytes, timeout: float) -> None:
        """Write all of `data`.

        Raises TimeoutError (nothing of it was taken for that long), OSError (the command or the connection is gone).
        """
        ...

    def send_file(self, file: int, start: int, count: int, timeout: float) -> None:
        """Write a range of an open file. Raises SourceUnreadable; else as `send`."""
        ...

    def receive(self, timeout: float) -> bytes:
        """What has come, b"" at the end. Raises TimeoutError, OSError."""
        ...

    def heard(self) -> float:
        """When the other side last gave any sign of life beside what `receive` gave, by the monotonic clock."""
        ...

    def can_send(self) -> bool:
        """Whether a little data would be taken at once."""
        ...

    def stderr(self) -> str:
        """What the command has written to standard error so far, the last 16 KiB of it."""
        ...

    def status(self, timeout: float) -> int | None:
        """The exit status of the command, None if it has not ended within `timeout`."""
        ...

    def end_input(self) -> None:
        """Close the command's standard input."""
        ...

    def abandon(self) -> None:
        """Break it off: whoever waits to write or to read is told so. Waits for nothing."""
        ...

    def close(self) -> None:
        """End the command; never waits for long."""
        ...


def read_range(file: int, start: int, count: int) -> bytes:
    """A range of an open file. Raises SourceUnreadable."""
    try:
        data = os.pread(file, count, start)
    except OSError as error:
        raise SourceUnreadable(error.strerror or str(error)) from None
    if len(data) != count:
        raise SourceUnreadable("it became shorter meanwhile")
    return data


class Tail:
    """The last bytes of a stream, as text."""

    def __init__(self, limit: int = 16 << 10) -> None:
        self._limit, self._data = limit, b""

    def add(self, data: bytes) -> None:
        self._data = (self._data + data)[-self._limit :]

    def text(self) -> str:
        return self._data.decode("utf-8", "backslashreplace")
