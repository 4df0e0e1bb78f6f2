"""A host as an action sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsctl.engine.session import Session
from opsctl.engine.waiting import Interrupted
from opsctl.modules.contract import Host
from opsctl.remote.agent_client import OnProgress, Pending
from opsctl.wire.protocol import Call, Reply

if TYPE_CHECKING:
    import fabric
    import httpx

    from opsctl.remote.host import RawResult, RemoteHost


class Watched(Host):
    """A host as an action sees it: within the task's time, stopped by Ctrl-C, noting whether it was asked at all."""

    def __init__(self, remote: RemoteHost, session: Session, timeout: float | None) -> None:
        self._remote, self._session = remote, session
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.asked = False

    @property
    def name(self) -> str:
        return self._remote.name

    def call(
        self, call: Call[Any], *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Reply[Any]:
        return self._wait(self._send([call], on_progress)[0], timeout)

    def batch(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any]]:
        return [self._wait(pending, timeout) for pending in self._send(calls, None)]

    def raw(self, command: str, *, timeout: float = 60.0) -> RawResult:
        self.asked = True
        return self._remote.raw(command, timeout=self._limit(timeout) or timeout)

    def http(self, port: int) -> httpx.Client:
        self.asked = True
        return self._remote.http(port)

    def fabric(self, timeout: float | None = None) -> fabric.Connection:
        self.asked = True
        return self._remote.fabric(self._limit(timeout))

    def __getattr__(self, name: str) -> Any:
        self.asked = True
        return getattr(self._remote, name)

    def _send(self, calls: Sequence[Call[Any]], on_progress: OnProgress | None) -> list[Pending]:
        self.asked = True
        if self._session.info.cancelled():
            raise Interrupted("stopped", where=self.name)
        return self._remote.send(calls, on_progress=on_progress)

    def _wait(self, pending: Pending, timeout: float | None) -> Reply[Any]:
        return self._session.wait(pending, self._limit(timeout), unless_stopped=True)

    def _limit(self, timeout: float | None) -> float | None:
        if self._deadline is None:
            return timeout
        left = max(0.1, self._deadline - time.monotonic())
        return left if timeout is None else min(timeout, left)
