"""What the answers of calls look like, checked as they come in: as much as the code that reads them takes for granted.

A call that is not in SHAPES is read unchecked, and what fails then may be the host's fault or ours; see answers.py.
"""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from opsctl.answers import fitting
from opsctl.errors import OpsctlError, RemoteError
from opsctl.text import one_line
from opsctl.wire.protocol import Reply


class _Kind(TypedDict):
    kind: Literal["absent", "file", "dir", "link", "other"]


class State(_Kind, total=False):
    """How a path is: agent/files/state.py."""

    mode: int
    uid: int
    gid: int
    owner: str
    group: str
    size: int
    sha256: str
    target: str
    real: str


class Tree(TypedDict):
    top: State
    entries: dict[str, State]


class Part(TypedDict):
    size: int
    offset: int


class Answered(TypedDict):
    """An answer of a server: agent/core/http_request.py."""

    status: int
    headers: dict[str, str]
    seconds: float
    truncated: bool


class Waited(TypedDict):
    seconds: float


class Ready(Waited):
    phases: dict[str, float]


class _Server(TypedDict):
    pid: int
    start: int
    argv: list[str]
    model: str | None
    drafter: str | None
    cwd: str | None
    log: str | None
    log_size: int


SHAPES: dict[str, Any] = {
    "filelook.stat": State,
    "filelook.read": Part,
    "filelook.tree": Tree,
    "http.request": Answered,
    "ready.wait": Ready,
    "servers.find": list[_Server],
    "wait.http": Waited,
    "wait.log": Waited,
    "wait.path": Waited,
    "wait.port": Waited,
}


def checked(call: str, reply: Reply[Any], host: str) -> Reply | OpsctlError:
    """The reply, or the error that it is where it has another shape than it must have."""
    try:
        if call in SHAPES:
            fitting(reply.result, SHAPES[call], f"the answer to {call}")
    except ValueError as error:
        return RemoteError(
            f"its answer was not understood: {one_line(str(error))}",
            kind="not-understood",
            where=host,
            hint="is something between us and its agent, or its Python damaged?",
        )
    return reply
