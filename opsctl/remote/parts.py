"""Sending ranges of many files over several streams. What arrives is verified by whoever puts it in place.

One SSH channel is held to 2 MiB per round trip by the server's window, so a long link needs many, and a near one few.
Much is sent by the system's own `ssh` where it can connect as we did; channels of our connection, which are there at
once, carry until those have connected, and everything where they cannot.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from opsctl.agent.chunking import BLOCK
from opsctl.agent.protocol import Call
from opsctl.errors import OpsctlError, Unreachable, UsageError
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.remote.bulk import FAR
from opsctl.remote.host import RemoteHost

# Bytes that are sent as one: the most that waits in memory is this, times IN_FLIGHT, per stream. A cut loses what is on
# its way; half the size takes the host a tenth more processor time, and three of those at a time a fifth.
LOAD = 4 << 20
IN_FLIGHT = 2
MUCH = 64 << 20  # bytes from which on further connections pay: each takes 0.1 s of processor time on both sides
STREAMS, STREAMS_FAR = 2, 8  # channels; sshd allows 10 sessions per connection (MaxSessions)
APART, APART_FAR = 2, 8  # connections; sshd refuses some from 10 on that have not logged in yet (MaxStartups)


class Part(NamedTuple):
    """Bytes start to end of a local file, for the same place in a file of the host's folder.

    It starts where a block of a chunk does, and ends where one ends: the host digests it block by block.
    """

    source: str
    name: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


def is_far(host: RemoteHost) -> bool:
    """Whether many streams pay. To be asked while the host has nothing else to do."""
    began = time.monotonic()
    host.call(Call("arrival.nothing"))
    return time.monotonic() - began > FAR


def send_parts(
    host: RemoteHost,
    folder: str,
    parts: Sequence[Part],
    *,
    far: bool,
    on_bytes: Callable[[int], None] = lambda sent: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Write the parts into files of the host's folder. Raises Unreachable, RemoteError, UsageError (a file shrank)."""
    _Sending(host, folder, list(loads(parts)), far, on_bytes, cancelled).run()


def loads(parts: Iterable[Part], most: int = LOAD) -> Iterator[list[Part]]:
    """The parts in portions of at most `most` bytes: long ones are divided at blocks, short ones travel together."""
    load: list[Part] = []
    room = most
    for part in parts:
        at = part.start
        while at < part.end:
            left = part.end - at
            take = left if left <= room else room // BLOCK * BLOCK
            if take:
                load.append(part._replace(start=at, end=at + take))
                at, room = at + take, room - take
            if at < part.end or not room:
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
        far: bool,
        on_bytes: Callable[[int], None],
        cancelled: Callable[[], bool],
    ) -> None:
        self.host, self.folder, self.far = host, folder, far
        self.on_bytes, self.cancelled = on_bytes, cancelled
        self.todo = deque(todo)
        self.sent, self.total = 0, sum(part.size for load in todo for part in load)
        self.failed: list[BaseException] = []
        self.refused: list[Unreachable] = []  # streams that did not open, or broke
        self._connect = host.apart() if self.total >= MUCH else None
        self._apart_ready = self._apart_wanted = 0
        self._counting = threading.Lock()
        self._files: dict[str, int] = {}

    def run(self) -> None:
        threads: list[threading.Thread] = []
        try:
            if self._connect:
                self._apart_wanted = APART_FAR if self.far else APART
            self._begin(threads, self._apart, self._apart_wanted)
            channels = STREAMS_FAR if self.far and not self._connect else STREAMS
            self._begin(threads, self._channel, min(channels, len(self.todo)))
            for thread in threads:
                thread.join()
            if self.todo and not self.failed and not self.cancelled():  # connections of their own broke after all
                self._channel()
        finally:
            for thread in threads:
                thread.join()
            for fd in self._files.values():
                os.close(fd)
        if self.failed:
            raise self.failed[0]
        if self.cancelled():
            raise Unreachable("sending was interrupted; it goes on from there next time", where=self.host.name)
        if self.sent < self.total:
            raise self.refused[0]

    def _begin(self, threads: list[threading.Thread], work: Callable[[], None], streams: int) -> None:
        """Have that many more streams: each opens on its own, side by side, as that takes round trips."""
        for _ in range(streams):
            threads.append(threading.Thread(target=work, daemon=True))
            threads[-1].start()

    def _channel(self) -> None:
        """Send over a channel of our connection until half of the connections of their own do."""
        self._stream(self.host.further_agent, lambda: 0 < self._apart_wanted <= 2 * self._apart_ready)

    def _apart(self) -> None:
        """Send over a connection of its own, once that works."""
        self._stream(self._connected, lambda: False)

    def _connected(self) -> AgentClient:
        assert self._connect
        agent = self._connect()
        try:
            agent.send([Call("arrival.nothing")])[0].wait()
        except OpsctlError:
            agent.close()
            raise
        with self._counting:
            self._apart_ready += 1
        return agent

    def _stream(self, start: Callable[[], AgentClient], enough: Callable[[], bool]) -> None:
        try:
            agent = start()
            try:
                self._send(agent, enough)
            finally:
                agent.close()
        except Unreachable as error:  # fewer streams do as well
            self.refused.append(error)
        except BaseException as error:  # noqa: BLE001  whatever ends a thread, `run` raises it
            self.failed.append(error)

    def _send(self, agent: AgentClient, enough: Callable[[], bool]) -> None:
        flying: deque[tuple[Pending, list[Part]]] = deque()
        load: list[Part] = []
        try:
            while not (self.failed or self.cancelled() or enough()):
                try:
                    load = self.todo.popleft()
                except IndexError:
                    break
                flying.append((self._sent(agent, load), load))
                load = []
                if len(flying) >= IN_FLIGHT:
                    self._landed(flying)
            while flying:
                self._landed(flying)
        except Unreachable:
            self.todo.extend([*(one for _, one in flying), *([load] if load else [])])  # for others to send
            raise

    def _sent(self, agent: AgentClient, load: list[Part]) -> Pending:
        args = {"folder": self.folder, "parts": [[part.name, part.start, part.end] for part in load]}
        try:
            return agent.send_files(
                Call("arrival.receive", args), [(self._file(part), part.start, part.size) for part in load]
            )
        except EOFError:
            raise UsageError(f"{load[0].source} became shorter while it was being sent") from None

    def _landed(self, flying: deque[tuple[Pending, list[Part]]]) -> None:
        pending, load = flying[0]
        pending.wait()
        flying.popleft()
        with self._counting:
            self.sent += sum(part.size for part in load)
            self.on_bytes(self.sent)

    def _file(self, part: Part) -> int:
        with self._counting:
            if part.source not in self._files:
                try:
                    self._files[part.source] = os.open(part.source, os.O_RDONLY | os.O_CLOEXEC)
                except OSError as error:
                    raise UsageError(f"cannot read {part.source}: {error.strerror}") from None
            return self._files[part.source]
