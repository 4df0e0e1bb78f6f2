"""Sending ranges of many files over several channels. What arrives is verified by whoever puts it in place."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opsctl.agent.protocol import Call
from opsctl.errors import OpsctlError, Unreachable, UsageError
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.remote.bulk import IN_FLIGHT, STREAMS_FAR, _agents
from opsctl.remote.host import RemoteHost

PIECE = 4 << 20


class Part(NamedTuple):
    """Bytes start to end of a local file, for the same place in a file of the host."""

    source: str
    target: str
    start: int
    end: int


def send_parts(
    host: RemoteHost,
    parts: Sequence[Part],
    *,
    streams: int = STREAMS_FAR,
    on_bytes: Callable[[int], None] = lambda sent: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Write the parts into files of the host. Raises Unreachable, RemoteError, UsageError (a file became shorter)."""
    pieces = [
        part._replace(start=at, end=min(at + PIECE, part.end))
        for part in parts
        for at in range(part.start, part.end, PIECE)
    ]
    if pieces:
        _Sending(host, pieces, on_bytes, cancelled).run(min(streams, len(pieces)))


class _Sending:
    def __init__(
        self,
        host: RemoteHost,
        pieces: Sequence[Part],
        on_bytes: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.host, self.on_bytes, self.cancelled = host, on_bytes, cancelled
        self.todo: queue.SimpleQueue[Part] = queue.SimpleQueue()
        for piece in pieces:
            self.todo.put(piece)
        self.sent = 0
        self.failed: list[BaseException] = []
        self._counting = threading.Lock()
        self._files: dict[str, int] = {}

    def run(self, streams: int) -> None:
        try:
            with _agents(self.host, streams) as agents:
                threads = [threading.Thread(target=self._work, args=(agent,), daemon=True) for agent in agents]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        finally:
            for fd in self._files.values():
                os.close(fd)
        if self.failed:
            raise self.failed[0]
        if self.cancelled():
            raise Unreachable("sending was interrupted; it goes on from there next time", where=self.host.name)

    def _work(self, agent: AgentClient) -> None:
        flying: deque[tuple[Pending, int]] = deque()
        try:
            while not self.failed and not self.cancelled():
                with contextlib.suppress(queue.Empty):
                    piece = self.todo.get_nowait()
                    data = self._read(piece)
                    args = {"path": piece.target, "offset": piece.start}
                    flying.append((agent.send([Call("bulk.write", args, data)])[0], len(data)))
                    if len(flying) >= IN_FLIGHT:
                        self._landed(flying)
                    continue
                break
            while flying:
                self._landed(flying)
        except (OpsctlError, OSError) as error:
            self.failed.append(error)

    def _landed(self, flying: deque[tuple[Pending, int]]) -> None:
        pending, length = flying.popleft()
        pending.wait()
        with self._counting:
            self.sent += length
            self.on_bytes(self.sent)

    def _read(self, piece: Part) -> bytes:
        with self._counting:
            if piece.source not in self._files:
                try:
                    self._files[piece.source] = os.open(piece.source, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise UsageError(f"cannot read {piece.source}: {error.strerror}") from None
            fd = self._files[piece.source]
        data = os.pread(fd, piece.end - piece.start, piece.start)
        if len(data) != piece.end - piece.start:
            raise UsageError(f"{piece.source} became shorter while it was being sent")
        return data
