"""Connections of a run: begun early, side by side, each host once. Imports little, so that it can be first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from opsctl.remote.host import RemoteHost, connect
from opsctl.remote.spec import ConnectionSpec


@dataclass(frozen=True, slots=True)
class Connected:
    remote: RemoteHost
    seconds: float  # that connecting took


@dataclass(slots=True)
class Connections:
    """Connects to hosts, at most `at_once` at a time."""

    cancelled: Callable[[], bool] = lambda: False
    at_once: int = 32
    _pool: ThreadPoolExecutor | None = None
    _begun: dict[str, tuple[ConnectionSpec, Future[Connected]]] = field(default_factory=dict)

    def begin(self, specs: Iterable[ConnectionSpec]) -> None:
        """Begin to connect, without waiting. Called from one thread only."""
        for spec in specs:
            before, connecting = self._begun.get(spec.name, (None, None))
            if before == spec:
                continue
            if connecting is not None:
                connecting.add_done_callback(_close)  # the inventory says something else now
            self._pool = self._pool or ThreadPoolExecutor(self.at_once, thread_name_prefix="connect")
            self._begun[spec.name] = spec, self._pool.submit(self._connect, spec)

    def of(self, spec: ConnectionSpec) -> Future[Connected]:
        """The connection to a host, begun if it was not. Its result raises Unreachable, HostKeyError, AuthFailed."""
        self.begin([spec])
        return self._begun[spec.name][1]

    def _connect(self, spec: ConnectionSpec) -> Connected:
        began = time.monotonic()
        remote = connect(spec, lambda: self.cancelled())  # it may be set later
        return Connected(remote, time.monotonic() - began)

    def close(self) -> None:
        """Close all of them; those still on their way are closed as soon as they stand."""
        pool, self._pool = self._pool, None
        begun, self._begun = dict(self._begun), {}
        for _, connecting in begun.values():
            connecting.add_done_callback(_close)
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)


def _close(done: Future[Connected]) -> None:
    if not done.cancelled() and not done.exception():
        done.result().remote.close()
