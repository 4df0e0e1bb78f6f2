"""What the answers of calls look like, checked as they come in: as much as the code that reads them takes for granted.

A call that is not in SHAPES is read unchecked, and what fails then may be the host's fault or ours; see answers.py.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypedDict

from opsctl.answers import fitting
from opsctl.errors import OpsctlError, RemoteError
from opsctl.text import one_line
from opsctl.wire.calls import reply_type
from opsctl.wire.protocol import Reply


class Answered(TypedDict):
    """An answer of a server: agent/core/http_request.py."""

    status: int
    headers: dict[str, str]
    seconds: float
    truncated: bool


class Waited(TypedDict):
    seconds: float


SHAPES: dict[str, Any] = {
    "http.request": Answered,
    "wait.http": Waited,
    "wait.log": Waited,
    "wait.path": Waited,
    "wait.port": Waited,
}


def of(call: str) -> Any:
    """The type of what a call gives; None where it is not declared yet."""
    with suppress(KeyError, ModuleNotFoundError):
        return reply_type(call)
    return SHAPES.get(call)


def checked(call: str, reply: Reply[Any], host: str) -> Reply[Any] | OpsctlError:
    """The reply, or the error that it is where it has another shape than it must have."""
    shape = of(call)
    try:
        if shape is not None:
            fitting(reply.result, shape, f"the answer to {call}")
    except ValueError as error:
        return RemoteError(
            f"its answer was not understood: {one_line(str(error))}",
            kind="not-understood",
            where=host,
            hint="is something between us and its agent, or its Python damaged?",
        )
    return reply
