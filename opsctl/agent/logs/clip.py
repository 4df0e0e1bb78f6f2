"""The parts of a long text that are worth keeping: its beginning, what surrounds the first trouble, its end."""

from __future__ import annotations

from collections import deque
from typing import Deque, List

# What the first line of a crash holds, in any release of SGLang, in the kernel's log and in systemd's.
TROUBLE = (
    b"hit an exception: Traceback",
    b"atchdog timeout (",
    b"sigquit from a child",
    b"SIGQUIT received",
    b"NVRM: Xid",
    b"Out of memory: Kill",
    b"out of memory",
    b"code=killed",
)
BEFORE = 256 << 10  # bytes kept before the first trouble
_LONGEST = max(len(word) for word in TROUBLE)


class Clip:
    """Takes a stream, keeps at most about head + 2 * BEFORE + window + tail bytes of it.

    Args:
        head: bytes of the beginning.
        window: bytes from the first trouble on, 0 not to look for it.
        tail: bytes of the end.
    """

    def __init__(self, head: int, window: int, tail: int) -> None:
        self._head_size, self._window_size, self._tail_size = head, window, tail
        self._head: List[bytes] = []
        self._window: List[bytes] = []
        self._window_at = -1  # offset of the window in the stream
        self._kept_window = 0
        self._tail: Deque[bytes] = deque()
        self._tail_bytes = 0
        self._seam = b""
        self._cut = False
        self.total = 0

    def feed(self, data: bytes) -> None:
        if not data:
            return
        if self._window_size and self._window_at < 0:
            self._look(data)
        elif self._window_at >= 0 and self._kept_window < self._window_size:
            part = data[: self._window_size - self._kept_window]
            self._window.append(part)
            self._kept_window += len(part)
        if self.total < self._head_size:
            self._head.append(data[: self._head_size - self.total])
        self.total += len(data)
        self._tail.append(data)
        self._tail_bytes += len(data)
        spare = max(self._tail_size, BEFORE)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= spare:
            self._tail_bytes -= len(self._tail.popleft())

    def pieces(self) -> List[bytes]:
        """What is kept, in order, whole lines, with a line between that says how much is left out."""
        spans = [(0, b"".join(self._head)), (self._window_at, b"".join(self._window)), self._end()]
        out: List[bytes] = []
        at = 0
        for start, data in sorted((s for s in spans if s[0] >= 0), key=lambda span: span[0]):
            if start > at:
                line = data.find(b"\n") + 1 if start else 0
                start, data = start + line, data[line:]
                out.append(b"\n[opsctl: %d bytes left out]\n" % (start - at))
                self._cut = True
            if start + len(data) > at:
                out.append(data[max(0, at - start) :])
                at = start + len(data)
        return out

    @property
    def truncated(self) -> bool:
        """Whether anything was left out."""
        return self._cut

    def _look(self, data: bytes) -> None:
        text = self._seam + data
        found = [at for at in (text.find(word) for word in TROUBLE) if at >= 0]
        if not found:
            self._seam = text[-_LONGEST:]
            return
        at = self.total - len(self._seam) + min(found)  # in the stream
        before = (b"".join(self._tail) + data)[: self._tail_bytes + max(0, at - self.total)][-BEFORE:]
        self._window_at = max(0, at - len(before)) if at >= self.total else self.total - len(before)
        after = data[max(0, at - self.total) :][: self._window_size]
        self._window = [before, after]
        self._kept_window = len(after)

    def _end(self) -> "tuple[int, bytes]":
        data = b"".join(self._tail)[-self._tail_size :] if self._tail_size else b""
        return self.total - len(data), data
