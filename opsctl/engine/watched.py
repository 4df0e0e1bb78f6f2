"""A host as a task sees it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opsctl.engine.session import Session
from opsctl.engine.waiting import Interrupted
from opsctl.errors import OpsctlError, RemoteError, Unreachable
from opsctl.remote.agent_client import Pending
from opsctl.wire.host import Host, OnProgress, RawResult
from opsctl.wire.protocol import Call, Reply

if TYPE_CHECKING:
    import fabric
    import httpx

    from opsctl.remote.host import RemoteHost
    from opsctl.remote.parts import Sending

CLEANING_UP = 10.0  # seconds


class Watched(Host):
    """A host as a task sees it: every wait ends with the task's time and with Ctrl-C. Notes whether it was asked."""

    def __init__(self, remote: RemoteHost, session: Session, timeout: float | None, *, stoppable: bool = True) -> None:
        self._remote, self._session, self._stoppable = remote, session, stoppable
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.asked = False

    @property
    def name(self) -> str:
        return self._remote.name

    def call(
        self, call: Call[Any], *, timeout: float | None = None, on_progress: OnProgress | None = None
    ) -> Reply[Any]:
        return self.send([call], on_progress=on_progress)[0].wait(timeout)

    def batch(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any]]:
        return [sent.wait(timeout) for sent in self.send(calls)]

    def outcomes(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any] | OpsctlError]:
        found: list[Reply[Any] | OpsctlError] = []
        for sent in self.send(calls):
            try:
                found.append(sent.wait(timeout))
            except Unreachable:
                raise
            except OpsctlError as error:
                self.check()
                found.append(error)
        return found

    def send(self, calls: Sequence[Call[Any]], *, on_progress: OnProgress | None = None) -> list[_Sent]:
        self.check()
        return [_Sent(self, pending) for pending in self._remote.send(calls, on_progress=on_progress)]

    def sending(self, size: int) -> Sending:
        from opsctl.remote.parts import Sending, is_far  # only where something is sent

        return Sending(self._remote, size, far=bool(size) and is_far(self), check=self.check)

    def cleaning_up(self) -> Watched:
        return Watched(self._remote, self._session, CLEANING_UP, stoppable=False)

    def raw(self, command: str, *, timeout: float = 60.0) -> RawResult:
        self.check()
        try:
            return self._remote.raw(command, timeout=timeout, check=self.check)
        except TimeoutError:
            raise RemoteError(f"no end within {timeout:g} s", kind="timeout", where=self.name) from None

    def http(self, port: int) -> httpx.Client:
        self.check()
        return self._remote.http(port, self.check)

    def fabric(self, timeout: float | None = None) -> fabric.Connection:
        self.check()
        return self._remote.fabric(self._limit(timeout))

    def check(self) -> None:
        """Raise Interrupted once the run is stopped, RemoteError once the task's time is over."""
        self.asked = True
        if self._stoppable and self._session.info.cancelled():
            raise Interrupted("stopped", where=self.name)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise RemoteError("the task's time is over", kind="timeout", where=self.name)

    def wait(self, pending: Pending, timeout: float | None) -> Reply[Any]:
        """The reply of a call that was sent."""
        return self._session.wait(pending, self._limit(timeout), unless_stopped=self._stoppable, to_the_end=False)

    def _limit(self, timeout: float | None) -> float | None:
        if self._deadline is None:
            return timeout
        left = max(0.1, self._deadline - time.monotonic())
        return left if timeout is None else min(timeout, left)


@dataclass(frozen=True, slots=True)
class _Sent:
    host: Watched
    pending: Pending

    def wait(self, timeout: float | None = None) -> Reply[Any]:
        return self.host.wait(self.pending, timeout)
