"""This machine, looked at as a host is: the agent's functions called in this process, without a connection.

Here alone the controller runs the agent itself; everybody else sends calls to it (remote/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from opsctl.wire.host import OnProgress
from opsctl.wire.protocol import AgentError, Call, Context, Reply

R = TypeVar("R")


def call(
    call: Call[R], *, on_progress: OnProgress | None = None, cancelled: Callable[[], bool] = lambda: False
) -> Reply[R]:
    """Make a call. Raises AgentError, OSError, and what `on_progress` and `cancelled` raise."""
    from opsctl.agent.core import dispatch

    return dispatch.invoke(call.name, call.args, _Here(call.body, on_progress, cancelled))


def outcomes(calls: Sequence[Call[Any]]) -> list[Reply[Any] | Exception]:
    """Make calls one after the other, with an error in the place of each that failed."""
    found: list[Reply[Any] | Exception] = []
    for one in calls:
        try:
            found.append(call(one))
        except (AgentError, OSError) as error:
            found.append(error)
    return found


class _Here(Context):
    def __init__(self, body: bytes, on_progress: OnProgress | None, cancelled: Callable[[], bool]) -> None:
        self.body, self._on_progress, self._cancelled = body, on_progress, cancelled

    def progress(self, data: Any, body: bytes = b"") -> None:
        if self._on_progress is not None:
            self._on_progress(data, body)

    def cancelled(self) -> bool:
        return self._cancelled()
