"""A TCP proxy on loopback with a round trip time, that can cut or freeze what passes.

Each direction is a queue of (due time, bytes), so order and round trips are right; TCP's own windows are not part of
it: use it to count round trips and to break connections, not to measure throughput. To count, have it gather: a busy
server says in several pieces what one answer is, and a client that starts on the first piece would be said to have
waited twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any


def fewest(turns: Callable[[], int], enough: int = 0) -> int:
    """What the protocol costs: the fewest of three counts, or the first of at most `enough`.

    A machine may stall for longer than a proxy gathers: a count may be too high, and is never too low.
    """
    counts: list[int] = []
    while len(counts) < 3 and (not counts or counts[-1] > enough):
        counts.append(turns())
    return min(counts)


class Proxy:
    """Listens on `port`, forwards to `target` on 127.0.0.1 with `round_trip` seconds of latency.

    What the server says reaches the client once the server has been silent for `gather` seconds. All that the clients
    say passes at `rate` bytes a second.
    """

    def __init__(self, target: int, round_trip: float = 0.0, gather: float = 0.0, rate: float = math.inf) -> None:
        self._target, self._one_way, self._gather, self._rate = target, round_trip / 2, gather, rate
        self._free = 0.0  # when what has passed so far has done so
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._client, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.connections = 0
        # How often the client spoke up after something had reached it: round trips.
        self.turns = 0
        self._answered = True

    def cut(self) -> None:
        """Break every connection, as a lost network does once it is noticed."""
        self._do(self._cut())

    def turns_until_closed(self) -> int:
        """The round trips since the last such count, with the goodbyes of every connection."""
        self._do(self._closed())
        turns, self.turns = self.turns, 0
        return turns

    def freeze(self) -> None:
        """Let nothing through any more, without telling anybody."""
        self._loop.call_soon_threadsafe(self._flowing.clear)

    def thaw(self) -> None:
        self._loop.call_soon_threadsafe(self._flowing.set)

    def close(self) -> None:
        self._do(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _stop(self) -> None:
        self._server.close()
        await self._cut()
        others = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _closed(self) -> None:
        while self._writers:
            await asyncio.sleep(0.01)

    async def _cut(self) -> None:
        for writer in list(self._writers):
            writer.transport.abort()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._prepare(writer)
        await asyncio.sleep(2 * self._one_way)  # the handshake's round trip
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._prepare(onward)
        try:
            await asyncio.gather(self._pump(reader, onward, True), self._pump(onward_reader, writer, False))
        except asyncio.CancelledError:
            pass  # the proxy is being closed
        finally:
            for end in (writer, onward):
                self._writers.discard(end)
                end.transport.abort()

    def _prepare(self, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up: bool) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(4096 if self._rate == math.inf else 4)

        async def feed() -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(1 << 16):
                    if up:
                        self.turns += self._answered
                        self._answered = False
                    await queue.put((time.monotonic() + self._one_way, data))
            await queue.put((time.monotonic() + self._one_way, b""))

        feeding = asyncio.ensure_future(feed())
        try:
            while True:
                due, data = await queue.get()
                if data and self._gather and not up:
                    data += await self._rest(queue)
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if up:
                    self._free = max(self._free, time.monotonic()) + len(data) / self._rate
                    await asyncio.sleep(max(0.0, self._free - time.monotonic()))
                await self._flowing.wait()
                if not data:
                    break
                self._answered |= not up
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except (ConnectionError, OSError):
            writer.transport.abort()
        finally:
            feeding.cancel()

    async def _rest(self, queue: asyncio.Queue[tuple[float, bytes]]) -> bytes:
        """What else comes before a silence of `gather` seconds or the end, which stays in the queue."""
        rest = b""
        with contextlib.suppress(asyncio.TimeoutError):
            while data := (item := await asyncio.wait_for(queue.get(), self._gather))[1]:
                rest += data
            queue.put_nowait(item)
        return rest
