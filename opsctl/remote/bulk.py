"""Sending large files: only the chunks that are missing, over several channels, going on where it was cut off.

One SSH channel is held to 2 MiB per round trip by the server's window, so a long link needs several.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.agent.bulk import DIGEST, digest
from opsctl.agent.protocol import Call
from opsctl.errors import OpsctlError, Unreachable, UsageError
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.remote.host import RemoteHost

CHUNK = 4 << 20
IN_FLIGHT = 2  # chunks per stream: one travels while the other is written
FAR = 0.02  # seconds of round trip from which on more streams pay
STREAMS, STREAMS_FAR = 4, 8  # sshd allows 10 sessions per connection (MaxSessions)

OnBytes = Callable[[int, int], None]  # bytes that are there, bytes in all


@dataclass(frozen=True, slots=True)
class Sent:
    """How a file got there: its size, and how much of it had to travel."""

    size: int
    travelled: int
    streams: int


def send(
    host: RemoteHost,
    source: Path,
    partial: str,
    *,
    streams: int | None = None,
    on_bytes: OnBytes = lambda done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
    chunk: int = CHUNK,
) -> Sent:
    """Make `partial` on the host the same as `source`; what is there already of it is not sent again.

    Nothing but `partial` is touched: putting it in place is another call's business (files.adopt). Raises Unreachable,
    RemoteError, UsageError (the file changed meanwhile).
    """
    try:
        with open(source, "rb", buffering=0) as file:
            before = os.fstat(file.fileno())
            sent = _Sending(host, file.fileno(), before.st_size, partial, on_bytes, cancelled, chunk).run(streams)
            after = os.fstat(file.fileno())
    except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from error
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UsageError(f"{source} was changed while it was being sent", hint="send it again when it is complete")
    return sent


class _Sending:
    """One file on its way."""

    def __init__(
        self,
        host: RemoteHost,
        source: int,
        size: int,
        partial: str,
        on_bytes: OnBytes,
        cancelled: Callable[[], bool],
        chunk: int,
    ) -> None:
        self.host, self.source, self.size, self.partial = host, source, size, partial
        self.on_bytes, self.cancelled, self.chunk = on_bytes, cancelled, chunk
        self.todo: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.there = 0
        self.failed: list[BaseException] = []
        self._counting = threading.Lock()

    def run(self, streams: int | None) -> Sent:
        missing, round_trip = self._missing()
        wanted = min(streams or (STREAMS_FAR if round_trip > FAR else STREAMS), len(missing))
        for index in missing:
            self.todo.put(index)
        self.there = self.size - sum(self._length(index) for index in missing)
        self.on_bytes(self.there, self.size)
        if wanted:
            self._stream(wanted)
        self.host.call(Call("bulk.finish", {"path": self.partial, "size": self.size}))
        return Sent(self.size, sum(self._length(index) for index in missing), wanted)

    def _missing(self) -> tuple[list[int], float]:
        """The chunks that differ or are not there, and the round trip time."""
        nothing = Call("bulk.scan", {"path": os.devnull, "chunk": 1, "size": 0})
        self.host.call(nothing)  # the agent's own module travels with the first call
        began = time.monotonic()
        self.host.call(nothing)
        round_trip = time.monotonic() - began
        scan = Call("bulk.scan", {"path": self.partial, "chunk": self.chunk, "size": self.size})
        [pending] = self.host.send([scan])
        theirs = pending.wait().body
        known = len(theirs) // DIGEST
        return [
            index
            for index in range(-(-self.size // self.chunk))
            if index >= known or digest(self._read(index)) != theirs[index * DIGEST : (index + 1) * DIGEST]
        ], round_trip

    def _stream(self, count: int) -> None:
        with _agents(self.host, count) as agents:
            threads = [threading.Thread(target=self._work, args=(agent,), daemon=True) for agent in agents]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self.failed:
            raise self.failed[0]
        if self.cancelled():
            raise Unreachable("sending was interrupted; it goes on from there next time", where=self.host.name)

    def _work(self, agent: AgentClient) -> None:
        """Send chunks over one agent until none is left."""
        flying: deque[tuple[Pending, int]] = deque()
        try:
            while not self.failed and not self.cancelled():
                try:
                    index = self.todo.get_nowait()
                except queue.Empty:
                    break
                data = self._read(index)
                args = {"path": self.partial, "offset": index * self.chunk, "expected": digest(data).hex()}
                flying.append((agent.send([Call("bulk.write", args, data)])[0], len(data)))
                if len(flying) >= IN_FLIGHT:
                    self._landed(flying)
            while flying:
                self._landed(flying)
        except (OpsctlError, OSError) as error:
            self.failed.append(error)

    def _landed(self, flying: deque[tuple[Pending, int]]) -> None:
        pending, length = flying.popleft()
        pending.wait()
        with self._counting:
            self.there += length
            self.on_bytes(self.there, self.size)

    def _read(self, index: int) -> bytes:
        data, offset, left = [], index * self.chunk, self._length(index)
        while left:
            part = os.pread(self.source, left, offset)
            if not part:
                raise UsageError("the file became shorter while it was being sent")
            data.append(part)
            offset, left = offset + len(part), left - len(part)
        return b"".join(data)

    def _length(self, index: int) -> int:
        return min(self.chunk, self.size - index * self.chunk)


@contextlib.contextmanager
def _agents(host: RemoteHost, count: int) -> Iterator[list[AgentClient]]:
    """Agents on channels of their own, as many of `count` as the server allows, at least one."""
    agents: list[AgentClient] = []
    try:
        for _ in range(count):
            try:
                agents.append(host.further_agent())
            except Unreachable:
                if not agents:
                    raise
                break
        yield agents
    finally:
        for agent in agents:
            agent.close()
