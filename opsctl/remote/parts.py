"""Sending ranges of many files over several channels. What arrives is verified by whoever puts it in place.

One SSH channel is held to 2 MiB per round trip by the server's window, so a long link needs many, and a near one few.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from opsctl.agent.protocol import Call
from opsctl.errors import OpsctlError, Unreachable, UsageError
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.remote.bulk import FAR, STREAMS, STREAMS_FAR
from opsctl.remote.host import RemoteHost

LOAD = 2 << 20  # bytes that are sent as one: the most that waits in memory is this, times IN_FLIGHT, per stream
IN_FLIGHT = 3


class Part(NamedTuple):
    """Bytes start to end of a local file, for the same place in a file of the host's folder.

    `noted`: whether a later run may take them for arrived.
    """

    source: str
    name: str
    start: int
    end: int
    noted: bool = True

    @property
    def size(self) -> int:
        return self.end - self.start


def send_parts(
    host: RemoteHost,
    folder: str,
    parts: Sequence[Part],
    *,
    on_bytes: Callable[[int], None] = lambda sent: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Write the parts into files of the host's folder. Raises Unreachable, RemoteError, UsageError (a file shrank)."""
    _Sending(host, folder, list(loads(parts)), on_bytes, cancelled).run()


def loads(parts: Iterable[Part], most: int = LOAD) -> Iterator[list[Part]]:
    """The parts in portions of at most `most` bytes: long ones are divided, short ones travel together."""
    load: list[Part] = []
    room = most
    for part in parts:
        at = part.start
        while at < part.end:
            piece = part._replace(start=at, end=min(at + room, part.end))
            load.append(piece)
            at, room = piece.end, room - piece.size
            if not room:
                yield load
                load, room = [], most
    if load:
        yield load


class _Sending:
    def __init__(
        self,
        host: RemoteHost,
        folder: str,
        todo: Sequence[list[Part]],
        on_bytes: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.host, self.folder, self.on_bytes, self.cancelled = host, folder, on_bytes, cancelled
        self.todo: queue.SimpleQueue[list[Part]] = queue.SimpleQueue()
        for load in todo:
            self.todo.put(load)
        self.loads = len(todo)
        self.sent, self.total = 0, sum(part.size for load in todo for part in load)
        self.failed: list[BaseException] = []
        self.refused: list[Unreachable] = []  # channels that the server did not open
        self._counting = threading.Lock()
        self._files: dict[str, int] = {}

    def run(self) -> None:
        threads: list[threading.Thread] = []
        try:
            self._begin(threads, STREAMS)
            if self.loads > STREAMS and self._round_trip() > FAR:
                self._begin(threads, STREAMS_FAR)
            for thread in threads:
                thread.join()
        finally:
            for thread in threads:
                thread.join()
            for fd in self._files.values():
                os.close(fd)
        if self.failed:
            raise self.failed[0]
        if self.cancelled():
            raise Unreachable("sending was interrupted; it goes on from there next time", where=self.host.name)
        if self.refused and self.sent < self.total:
            raise self.refused[0]

    def _begin(self, threads: list[threading.Thread], streams: int) -> None:
        """Have this many streams: each opens its own channel, side by side, as that takes round trips."""
        while len(threads) < min(streams, self.loads):
            threads.append(threading.Thread(target=self._work, daemon=True))
            threads[-1].start()

    def _round_trip(self) -> float:
        """Seconds to the host and back, asked while the first channels open."""
        try:
            self.host.call(Call("arrival.nothing"))  # its module travels with the first call
            began = time.monotonic()
            self.host.call(Call("arrival.nothing"))
        except OpsctlError as error:
            self.failed.append(error)
            return 0.0
        return time.monotonic() - began

    def _work(self) -> None:
        try:
            agent = self.host.further_agent()
        except Unreachable as error:  # fewer channels do as well
            self.refused.append(error)
            return
        except OpsctlError as error:
            self.failed.append(error)
            return
        try:
            self._send(agent)
        except BaseException as error:  # noqa: BLE001  whatever ends a thread, `run` raises it
            self.failed.append(error)
        finally:
            agent.close()

    def _send(self, agent: AgentClient) -> None:
        flying: deque[tuple[Pending, int]] = deque()
        while not self.failed and not self.cancelled():
            try:
                load = self.todo.get_nowait()
            except queue.Empty:
                break
            args = {"folder": self.folder, "parts": [[part.name, part.start, part.end, part.noted] for part in load]}
            data = b"".join(map(self._read, load))
            flying.append((agent.send([Call("arrival.receive", args, data)])[0], len(data)))
            if len(flying) >= IN_FLIGHT:
                self._landed(flying)
        while flying:
            self._landed(flying)

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
        data = os.pread(fd, piece.size, piece.start)
        if len(data) != piece.size:
            raise UsageError(f"{piece.source} became shorter while it was being sent")
        return data
