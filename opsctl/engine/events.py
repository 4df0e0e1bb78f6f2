"""What happens in a run, as typed events. Every view, record and report is made from this stream and from nothing else.

Events carry plain data: text may come from a host and is neither masked nor made printable here; `to_json` masks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from opsctl.errors import OpsctlError, Place
from opsctl.modules.contract import FileDiff
from opsctl.secret import masked

Status = Literal["ok", "changed", "ran", "unknown", "skipped", "failed", "unreachable"]
"""How a task ended on a host. `ran`: a command ran, and nobody can say whether it changed anything. `unknown`: check
mode cannot tell. In check mode `changed` means: would change."""

HostStatus = Literal[
    "ok", "failed", "rolled-back", "rollback-failed", "unreachable", "locked", "skipped", "interrupted"
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Problem:
    """An error as data: what, where, what to do next."""

    message: str
    where: str | None = None
    file: str | None = None
    line: int | None = None
    column: int | None = None
    hint: str | None = None

    @classmethod
    def at(cls, place: Place) -> Problem:
        """A place alone."""
        return cls(message="", where=str(place), file=place.file, line=place.line, column=place.column)

    @classmethod
    def of(cls, error: OpsctlError) -> Problem:
        where = error.where
        place = where if isinstance(where, Place) else None
        return cls(
            message=error.message,
            where=str(where) if where else None,
            file=place.file if place else None,
            line=place.line if place else None,
            column=place.column if place else None,
            hint=error.hint,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Event:
    """Something that happened `at` seconds after the run began."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStarted(Event):
    run: str
    playbook: str
    hosts: tuple[str, ...]
    check: bool
    started: str  # wall clock, ISO 8601, to the microsecond: by it runs of one second are put in order
    version: str
    variables: dict[str, Any]
    inventory: str | None  # its full path, by which the runs of one project are told from another's


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlayStarted(Event):
    play: str
    hosts: tuple[str, ...]
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostConnected(Event):
    host: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Note(Event):
    """Something a person should know. `host` is None when it concerns no single one."""

    host: str | None
    level: Literal["info", "warning", "error"]
    message: str
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskStarted(Event):
    host: str
    task: str
    number: int
    module: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskProgress(Event):
    host: str
    task: str
    number: int
    text: str
    fraction: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskEnded(Event):
    """A task has ended on a host.

    Attributes:
        place: where the task stands: file, line, column.
        summary: what changed, or why it was skipped or is unknown; one line.
        lines: output for people.
        details: more of it, for those who ask.
        output: what its command printed, line by line.
        measures: what it measured.
        seconds: how long it took.
    """

    host: str
    task: str
    number: int
    module: str
    place: Problem
    status: Status
    summary: str
    seconds: float
    diffs: tuple[FileDiff, ...] = ()
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    output: tuple[str, ...] = ()
    measures: dict[str, float]
    problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GateChecked(Event):
    host: str
    gate: str
    holds: bool | None  # None: not known in check mode
    measured: float | None
    message: str
    place: Problem


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UndoStep(Event):
    """One step of a rollback."""

    host: str
    task: str
    outcome: str  # undone | nothing | impossible | failed
    message: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostEnded(Event):
    """A host is done with. `counts` has one entry for each status of its tasks.

    place: in a file of the user's, where what ended it stands there.
    """

    host: str
    status: HostStatus
    counts: dict[str, int]
    message: str
    hint: str | None = None
    place: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunEnded(Event):
    run: str
    exit_code: int
    outcome: str
    seconds: float


Emit = Callable[[Event], None]

_MOST_SHOWN = 64 << 10  # bytes of each side of a diff that an event's JSON carries


def to_json(event: Event) -> dict[str, Any]:
    """The event as JSON data, secrets masked. Its kind stands under `event`, in snake case."""
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower()
    data = {"event": kind} | {f.name: _plain(getattr(event, f.name)) for f in fields(event)}
    result: dict[str, Any] = masked(data)
    return result


def _plain(value: Any) -> Any:
    match value:
        case Problem():
            return {f.name: getattr(value, f.name) for f in fields(value) if getattr(value, f.name) is not None}
        case FileDiff():
            if value.secret:
                return {"path": value.path, "secret": True}
            return {"path": value.path, "before": _side(value.before), "after": _side(value.after)}
        case float():
            return round(value, 6)
        case tuple() | list():
            return [_plain(v) for v in value]
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
    return value


def _side(content: bytes | None) -> dict[str, Any] | None:
    if content is None:
        return None
    try:
        text = content[:_MOST_SHOWN].decode()
    except UnicodeDecodeError:
        return {"bytes": len(content), "binary": True}
    return {"bytes": len(content), "text": text} if "\0" not in text else {"bytes": len(content), "binary": True}
