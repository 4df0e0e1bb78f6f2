"""The host's journal as the engine uses it: which calls to make, and what their answers mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.modules.contract import Change, FileDiff
from opsctl.remote import journal as wire
from opsctl.wire.protocol import Call, Reply

NOT_CONFIRMED = "not confirmed"  # why a supervisor took a run back when its time was over


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run as a host's journal tells it.

    Attributes:
        order: its number among the runs of this host, whatever the clock said; 0: made before they were counted.
        state: running | supervised | unfinished | ended | damaged | unreadable (another format, or somebody else's).
        damage: what its journal lacks, a sentence each.
        why: what made it end so, such as "not confirmed".
        attended: its operator is still connected.
        users: in whose journals on the host it may stand besides; None: the login user.
        begun, ended: seconds since 1970.
    """

    run: str
    state: str
    outcome: str | None
    why: str | None
    attended: bool
    users: tuple[str | None, ...]
    begun: float
    ended: float | None
    steps: int
    undone: int
    meta: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    order: int = 0
    damage: tuple[str, ...] = ()

    @property
    def unfinished(self) -> bool:
        return self.state == "unfinished"

    @property
    def ended_as(self) -> str:
        """How it ended, or what it is doing."""
        if self.state == "supervised":
            return "waits to be confirmed" if self.attended else "waits to be confirmed, its operator is gone"
        if self.damage and self.outcome != "rolled-back":
            return f"its journal is damaged: {'; '.join(self.damage)}"
        said = (self.outcome if self.state == "ended" else self.state) or self.state
        return f"{said} by the host, not confirmed in time" if self.expired else said

    @property
    def expired(self) -> bool:
        """The host has taken it back by itself, since nobody confirmed it."""
        return self.outcome == "rolled-back" and self.why == NOT_CONFIRMED

    @property
    def playbook(self) -> str:
        return str(self.meta.get("playbook", "?"))

    @property
    def found_by(self) -> str:
        """What its playbook was found by, where the run was made."""
        return str(self.meta.get("found_by") or self.playbook)


@dataclass(frozen=True, slots=True)
class PastStep:
    """One change of an earlier run. `state`: begun, done, failed; `can_undo`: it said how."""

    seq: int
    task: str
    state: str
    can_undo: bool
    undone: bool


@dataclass(frozen=True, slots=True)
class Foretold:
    """What the undo of the step `seq` would make of a file; not `ours`: somebody has changed it since, it is left."""

    seq: int
    diff: FileDiff
    ours: bool


@dataclass(frozen=True, slots=True)
class Undone:
    """One step of a rollback. `status`: undone, kept (it cannot be undone), failed."""

    task: str
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a rollback did.

    Attributes:
        whole: no undo failed. A step that cannot be undone by its nature is none that failed.
        damage: what the journal lacks, a sentence each: more may have been done than could be undone.
        unlogged: why the journal does not have all of the rollback; None: it has.
    """

    steps: tuple[Undone, ...]
    whole: bool
    damage: tuple[str, ...] = ()
    unlogged: str | None = None


def begin(run: str, meta: Mapping[str, Any], *, resume: bool) -> Call[Any]:
    return Call("journal.begin", {"run": run, "meta": dict(meta), "resume": resume})


def apply(run: str, seq: int, task: str, change: Change) -> Call[Any]:
    """The step as one call: written ahead, executed, marked done."""
    return wire.apply(run, seq, task, change.calls, change.undo, change.settle, _shows(change))


def supervise(run: str, seq: int, task: str, change: Change, confirm_within: float) -> Call[Any]:
    """The same in a process of its own on the host, which takes the run back unless it is confirmed in time."""
    return wire.supervise(run, seq, task, change.calls, change.undo, change.settle, confirm_within, _shows(change))


def _shows(change: Change) -> list[str]:
    """The files of which an undo may show what it would make of them."""
    return [diff.path for diff in change.diffs if not diff.secret]


def follow(run: str, offset: int = 0) -> Call[Any]:
    """Go on listening to a supervised step after the connection was lost."""
    return Call("supervise.follow", {"run": run, "offset": offset})


def replies(reply: Reply[Any]) -> list[Reply[Any]]:
    """The replies of a step's own calls."""
    return wire.replies(reply)


def confirm(run: str) -> Call[Any]:
    return Call("supervise.confirm", {"run": run})


def revert(run: str) -> Call[Any]:
    return Call("supervise.revert", {"run": run})


def checkpoint(run: str, data: Mapping[str, Any]) -> Call[Any]:
    return Call("journal.checkpoint", {"run": run, "data": dict(data)})


def finish(run: str, outcome: str, why: str | None = None) -> Call[Any]:
    return Call("journal.finish", {"run": run, "outcome": outcome, "why": why})


def rollback(run: str, why: str | None = None) -> Call[Any]:
    return Call("journal.rollback", {"run": run, "why": why})


def lacking(run: str) -> Call[Any]:
    """What a rollback would find missing."""
    return Call("journal.lacking", {"run": run})


def foreseen(run: str) -> Call[Any]:
    """What a rollback would make of the content of files."""
    return Call("journal.foreseen", {"run": run})


def list_runs(limit: int = 10, *, checkpoints: bool = False) -> Call[Any]:
    return Call("history.list", {"limit": limit, "checkpoints": checkpoints})


def show(run: str, *, checkpoint: bool = False) -> Call[Any]:
    return Call("history.show", {"run": run, "checkpoint": checkpoint})


def past_runs(reply: Reply[Any]) -> list[PastRun]:
    """The answer to `list_runs`, newest first."""
    return [past_run(one) for one in reply.result["runs"]]


def past_run(told: Mapping[str, Any]) -> PastRun:
    return PastRun(
        run=str(told["run"]),
        state=str(told.get("state", "ended")),
        outcome=told.get("outcome"),
        why=told.get("why"),
        attended=bool(told.get("attended")),
        users=tuple((told.get("meta") or {}).get("users") or ()),
        begun=float(told.get("begun") or 0),
        ended=told.get("ended"),
        steps=int(told.get("steps") or 0),
        undone=int(told.get("undone") or 0),
        meta=told.get("meta") or {},
        checkpoint=told.get("checkpoint") or {},
        order=int(told.get("order") or 0),
        damage=_sentences(told.get("damage")),
    )


def past_steps(told: Mapping[str, Any]) -> tuple[PastStep, ...]:
    """The steps of a run that `show` has told of, in their order."""
    return tuple(
        PastStep(int(s["seq"]), str(s.get("task") or ""), str(s["state"]), bool(s["can_undo"]), bool(s["undone"]))
        for s in told["log"]
    )


def foretold(reply: Reply[Any]) -> list[Foretold]:
    """The answer to `foreseen`."""
    body = reply.body

    def content(length: int | None) -> bytes | None:
        nonlocal body
        found, body = body[: length or 0], body[length or 0 :]
        return None if length is None else found

    return [
        Foretold(int(one["seq"]), FileDiff(str(one["path"]), content(one["now"]), content(one["then"])), one["ours"])
        for one in reply.result
    ]


def report(told: Mapping[str, Any]) -> Report:
    """What `rollback` or `revert` answered."""
    steps: Sequence[Mapping[str, Any]] = told.get("steps") or ()
    settled: Sequence[Mapping[str, Any]] = told.get("settle") or ()
    found = [Undone(str(s.get("task") or ""), str(s["status"]), _message(s.get("error"))) for s in steps]
    found += [Undone(str(s["call"]), "failed", _message(s["error"])) for s in settled if s.get("error")]
    unlogged = told.get("unlogged")
    return Report(
        tuple(found),
        told.get("outcome") == "rolled-back",
        _sentences(told.get("damage")),
        str(unlogged) if unlogged else None,
    )


def waits(progress: Any) -> str | None:
    """What a rollback waits for, where its progress tells that."""
    if isinstance(progress, Mapping) and "data" in progress:
        progress = progress["data"]  # of a supervised run
    return str(progress.get("text")) if isinstance(progress, Mapping) and progress.get("waits") else None


def _sentences(told: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in told) if isinstance(told, list) else ()


def _message(error: Any) -> str:
    return str(error.get("message", "")) if isinstance(error, Mapping) else ""
