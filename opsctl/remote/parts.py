"""Sending ranges of many files over several streams. What arrives is verified by whoever puts it in place.

One SSH channel is held to 2 MiB per round trip by the server's window, so a long link needs many, and a near one few.
Much is sent by the system's own `ssh` where it can connect as we did; channels of our connection, which are there at
once, carry until those have connected, and everything where they cannot.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Self

from opsctl.errors import Unreachable
from opsctl.remote import agent_client
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.remote.host import RemoteHost
from opsctl.wire.calls.stage import arrival_nothing, arrival_receive
from opsctl.wire.chunking import BLOCK
from opsctl.wire.host import Host, Part

# Bytes that are sent as one: the most that waits in memory is this, times IN_FLIGHT, per stream. A cut loses what is on
# its way; half the size takes the host a tenth more processor time, and three of those at a time a fifth.
LOAD = 4 << 20
IN_FLIGHT = 2
MUCH = 64 << 20  # bytes from which on further connections pay: each takes 0.1 s of processor time on both sides
STREAMS, STREAMS_FAR = 2, 8  # channels; sshd allows 10 sessions per connection (MaxSessions)
# Connections. Each costs both sides 0.1 s of processor time, and a further session of one a tenth of that; but what
# Linux keeps for a sender by default holds a connection to 54 MB/s at 50 ms, little more than one session's window.
APART, APART_FAR = 2, 4
SESSIONS_FAR = 2  # of each
FAR = 0.02  # seconds of round trip from which on more streams pay
WATCH = 5.0  # seconds between two looks whether the host is still there
GOODBYE = 5.0  # seconds without progress in writing after which a connection that is to end is broken off
TICK = 1.0  # seconds after which the progress is told again though nothing has arrived: whoever is told may stop us


def is_far(host: Host) -> bool:
    """Whether many streams pay. To be asked while the host has nothing else to do."""
    began = time.monotonic()
    host.call(arrival_nothing())
    return time.monotonic() - began > FAR


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


class Sending:
    """Streams to a host that begin to connect at once, for what is to be known a little later; close them with `with`.

    Args:
        size: about how many bytes there will be.
        far: whether many streams pay, as of is_far.
        check: called now and then while it sends, which it ends by raising.
    """

    def __init__(self, host: RemoteHost, size: int, *, far: bool, check: Callable[[], None] = lambda: None) -> None:
        self._host, self._far, self._check = host, far, check
        connections = (APART_FAR if far else APART) if size >= MUCH else 0
        self._starts = [start for n in range(connections) if (start := host.apart(f"data{n}"))]
        self._sessions = SESSIONS_FAR if far else 1
        self._streams = 0  # those that have not ended
        self._working = 0  # those of connections of their own that have connected
        self._given = threading.Event()  # what is to be sent is known, or that nothing is
        self._folder, self._todo = "", deque[list[Part]]()
        self._sent = self._wanted = 0
        self._on_bytes: Callable[[int], None] = lambda sent: None
        self._failed: list[BaseException] = []
        self._changed = threading.Condition()  # guards the counts, and tells when there may be nothing to wait for
        self._over = threading.Event()  # nothing more is to be sent
        self._agents: list[AgentClient] = []  # one per stream
        self._threads: list[threading.Thread] = []
        for start in self._starts:
            self._begin(self._threads, partial(self._apart, start))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def send(self, folder: str, parts: Iterable[Part], on_bytes: Callable[[int], None] = lambda sent: None) -> None:
        """Write the parts into files of the host's folder. Raises Unreachable, RemoteError, UsageError."""
        self._folder, self._on_bytes = folder, on_bytes
        self._todo.extend(loads(parts))
        self._wanted = sum(part.size for load in self._todo for part in load)
        self._given.set()
        channels = STREAMS_FAR if self._far and not self._starts else STREAMS
        for _ in range(min(channels, len(self._todo))):
            self._begin(self._threads, self._channel)
        threading.Thread(target=self._watch, daemon=True).start()
        try:
            self._wait()
            if self._sent < self._wanted and not self._failed:  # none opened (MaxSessions 1), or all broke
                self._begin(self._threads, self._ours)
                self._wait()
            if self._failed:
                raise self._failed[0]
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        """End the streams, and our connection with them if one of them is stuck in writing to it."""
        self._given.set()
        with self._changed:
            self._over.set()
            agents = list(self._agents)
        for agent in agents:
            agent.abandon()
        while waiting := [thread for thread in self._threads if thread.is_alive()]:
            if self._host.stuck > GOODBYE:
                self._host.break_off()
            waiting[0].join(TICK)

    def _wait(self) -> None:
        """Until the streams have brought all there is, or will bring no more. Raises Unreachable."""
        while not self._ended_soon():
            self._check()
            self._count(0)
            if (seconds := self._host.stuck) > agent_client.LOST_AFTER:
                raise Unreachable(f"the connection has taken nothing for {seconds:.0f} s", where=self._host.name)

    def _ended_soon(self) -> bool:
        """Wait a moment. Whether there is nothing more to wait for."""
        with self._changed:
            return self._changed.wait_for(
                lambda: bool(self._failed) or self._sent >= self._wanted or not self._streams, TICK
            )

    def _watch(self) -> None:
        """Fail once the host is gone: streams take long to notice, as one that waits to write hears nothing."""
        try:
            while not self._over.wait(WATCH):
                self._host.call(arrival_nothing())
        except BaseException as error:  # noqa: BLE001  whatever ends a thread, `send` raises it
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed.append(error)
            self._over.set()
            self._changed.notify_all()

    def _begin(self, threads: list[threading.Thread], work: Callable[[], None]) -> None:
        """Have one more stream: each opens on its own, side by side, as that takes round trips."""

        def run() -> None:
            try:
                work()
            finally:
                with self._changed:
                    self._streams -= 1
                    self._changed.notify_all()

        with self._changed:
            self._streams += 1
        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()

    def _channel(self) -> None:
        """Send over a channel of our connection until half of the streams of other connections do."""
        wanted = len(self._starts) * self._sessions
        self._stream(self._host.further_agent, enough=lambda: 0 < wanted <= 2 * self._working)

    def _apart(self, start: Callable[[], AgentClient]) -> None:
        """Send over a connection of its own, and over further sessions of it once it works."""
        sessions: list[threading.Thread] = []

        def works(agent: AgentClient) -> None:
            agent.send([arrival_nothing()])[0].wait()
            self._works(agent)
            for _ in range(1, self._sessions):
                self._begin(sessions, partial(self._stream, start, self._works))

        self._stream(start, works, sessions=sessions)

    def _works(self, agent: AgentClient) -> None:
        with self._changed:
            self._working += 1

    def _stream(
        self,
        start: Callable[[], AgentClient],
        works: Callable[[AgentClient], None] = lambda agent: None,
        enough: Callable[[], bool] = lambda: False,
        sessions: Sequence[threading.Thread] = (),
    ) -> None:
        """Send over an agent until there is `enough`; `sessions` need its connection."""
        agent = None
        try:
            agent = self._opened(start)
            works(agent)
            self._send(agent, enough)
        except Unreachable:  # fewer streams do as well; what this one has not brought over is for others to send
            if agent:
                agent.abandon()
        except BaseException as error:  # noqa: BLE001  whatever ends a thread, `send` raises it
            self._fail(error)
        for thread in sessions:
            thread.join()
        if agent:
            agent.close()

    def _ours(self) -> None:
        """Send over the agent there is, which is not closed."""
        try:
            self._host.call(arrival_nothing())  # if our own connection is lost too, a load would be long in it
            self._send(self._host.agent())
        except BaseException as error:  # noqa: BLE001  whatever ends a thread, `send` raises it
            self._fail(error)

    def _opened(self, start: Callable[[], AgentClient]) -> AgentClient:
        agent = start()
        with self._changed:
            self._agents.append(agent)
            over = self._over.is_set()
        if over:
            agent.abandon()
        return agent

    def _send(self, agent: AgentClient, enough: Callable[[], bool] = lambda: False) -> None:
        flying: deque[tuple[Pending, list[Part]]] = deque()
        load: list[Part] = []
        try:
            self._given.wait()
            while not (self._over.is_set() or enough()):
                try:
                    load = self._todo.popleft()
                except IndexError:
                    break
                flying.append((self._launched(agent, load), load))
                load = []
                if len(flying) >= IN_FLIGHT:
                    self._landed(flying)
            while flying and not self._over.is_set():
                self._landed(flying)
        except Unreachable:
            self._todo.extend([*(one for _, one in flying), *([load] if load else [])])  # for others to send
            raise

    def _launched(self, agent: AgentClient, load: list[Part]) -> Pending:
        call = arrival_receive(self._folder, [(part.name, part.start, part.end) for part in load])
        return agent.send_files(call, [(part.source, part.start, part.size) for part in load])

    def _landed(self, flying: deque[tuple[Pending, list[Part]]]) -> None:
        pending, load = flying[0]
        pending.wait(stopped=self._over.is_set)
        flying.popleft()
        self._count(sum(part.size for part in load))

    def _count(self, arrived: int) -> None:
        with self._changed:
            self._sent += arrived
            self._on_bytes(self._sent)
            if self._sent >= self._wanted:
                self._changed.notify_all()
