"""What a command has written, as much of it as is kept."""

from __future__ import annotations

KEEP = 1 << 20  # bytes of each output stream that are returned: the first and the last half of it


class Output:
    """The first and the last bytes of a stream, half of `limit` each, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self.head, self.tail, self.half, self.dropped = bytearray(), bytearray(), max(limit // 2, 1), 0

    def add(self, part: bytes) -> None:
        room = self.half - len(self.head)
        self.head += part[: max(room, 0)]
        self.tail += part[max(room, 0) :]
        surplus = len(self.tail) - self.half
        if surplus > 0:
            del self.tail[:surplus]
            self.dropped += surplus

    def whole(self) -> bytes:
        """What is kept. Where some is left out, no line is cut: half a secret could not be masked."""
        head, tail = bytes(self.head), bytes(self.tail)
        if not self.dropped:
            return head + tail
        head = head[: head.rfind(b"\n") + 1] or head + b"\n"
        tail = tail[tail.find(b"\n") + 1 :] or tail
        gone = self.dropped + max(0, len(self.head) - len(head)) + len(self.tail) - len(tail)
        return head + b"[... %d bytes left out ...]\n" % gone + tail
