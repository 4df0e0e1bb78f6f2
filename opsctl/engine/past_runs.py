"""What the journals of a host tell of earlier runs, and the command that goes on with a run which stopped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.engine import find
from opsctl.engine.loader import load_playbook
from opsctl.errors import Exit, UsageError
from opsctl.modules.contract import FileDiff
from opsctl.wire.calls.core import Checkpoint, Fault, Foreseen, RolledBack, Run, RunMeta, Runs, RunState, ShownRun
from opsctl.wire.protocol import Reply

NOT_CONFIRMED = "not confirmed"  # why a supervisor took a run back when its time was over


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run as a host's journal tells it; see wire/calls/core.py.

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
    state: RunState
    outcome: str | None
    why: str | None
    attended: bool
    users: tuple[str | None, ...]
    begun: float
    ended: float | None
    steps: int
    undone: int
    meta: RunMeta
    checkpoint: Checkpoint
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

    @property
    def code(self) -> Exit:
        """DAMAGED, ROLLBACK_FAILED, or DONE."""
        return Exit.DAMAGED if self.damage else Exit.DONE if self.whole else Exit.ROLLBACK_FAILED


def past_runs(reply: Reply[Runs]) -> list[PastRun]:
    """The answer to `history.list`, newest first."""
    return [past_run(one) for one in reply.result["runs"]]


def past_run(told: Run) -> PastRun:
    return PastRun(
        run=told["run"],
        state=told["state"],
        outcome=told["outcome"],
        why=told["why"],
        attended=told["attended"],
        users=tuple(told["meta"].get("users") or ()),
        begun=told["begun"],
        ended=told["ended"],
        steps=told["steps"],
        undone=told["undone"],
        meta=told["meta"],
        checkpoint=told.get("checkpoint") or {},
        order=told["order"],
        damage=tuple(told["damage"]),
    )


def past_steps(told: ShownRun) -> tuple[PastStep, ...]:
    """The steps of a run that `history.show` has told of, in their order."""
    return tuple(PastStep(s["seq"], s["task"] or "", s["state"], s["can_undo"], s["undone"]) for s in told["log"])


def foretold(reply: Reply[list[Foreseen]]) -> list[Foretold]:
    """The answer to `journal.foreseen`."""
    body = reply.body

    def content(length: int | None) -> bytes | None:
        nonlocal body
        found, body = body[: length or 0], body[length or 0 :]
        return None if length is None else found

    return [
        Foretold(one["seq"], FileDiff(one["path"], content(one["now"]), content(one["then"])), one["ours"])
        for one in reply.result
    ]


def report(told: RolledBack) -> Report:
    """What `journal.rollback` or `supervise.revert` answered."""
    found = [Undone(s["task"] or "", s["status"], _message(s["error"])) for s in told["steps"]]
    found += [Undone(s["call"], "failed", _message(s["error"])) for s in told["settle"] if s["error"]]
    return Report(tuple(found), told["outcome"] == "rolled-back", tuple(told["damage"]), told["unlogged"])


def waits(progress: Any) -> str | None:
    """What a rollback waits for, where its progress tells that."""
    if isinstance(progress, Mapping) and "data" in progress:
        progress = progress["data"]  # of a supervised run
    return str(progress.get("text")) if isinstance(progress, Mapping) and progress.get("waits") else None


def _message(error: Fault | None) -> str:
    return error["message"] if error else ""


def command(playbook: str, run: str) -> str:
    return f"opsctl run {shlex.quote(playbook)} --resume {run}"


def left_behind(past: Sequence[PastRun], ours: Mapping[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    """What somebody has to see to, or has not seen, and what to type. `past`: newest first; `ours`: as of `advice`.

    A run whose operator, agent and supervisor were killed together left the host as it was at that moment.
    """
    for one in past:
        name = f"run {one.run} ({one.playbook})"
        if one.unfinished:
            again = advice(one, ours) if ours else command(one.found_by, one.run)
            yield f"{name} never finished on this host", f"opsctl rollback {one.run}, or {again}"
        elif one.state == "supervised" and not one.attended:
            yield (
                f"{name} waits to be confirmed, and its operator is gone",
                f"opsctl rollback {one.run} takes it back now",
            )
        elif one.state in ("damaged", "unreadable"):
            yield f"{name}: {one.ended_as}", f"opsctl rollback {one.run} undoes what it still has"
    if past and past[0].expired:
        name = f"the last run here, {past[0].run} ({past[0].playbook})"
        by_itself = "was not confirmed in time: the host has taken it back by itself"
        yield f"{name}, {by_itself}", f"opsctl show {past[0].run}"


def advice(past: PastRun, ours: Mapping[str, Any]) -> str:
    """What to type here to go on with an earlier run, or where to type it. ours: what our run tells of itself.

    The host knows how its playbook was found where the run was made: another operator may have it elsewhere, or not.
    """
    if past.meta.get("digest") == ours["digest"]:
        return command(str(ours["found_by"]), past.run)
    there = command(past.found_by, past.run)
    if _is_here(past):
        return there
    return f"{there} where {past.meta.get('who', 'somebody')} began it, as its playbook is not here"


def _is_here(past: PastRun) -> bool:
    try:
        return load_playbook(find.playbook(past.found_by)).digest == past.meta.get("digest")
    except (UsageError, OSError):  # there is none, or another one that is not right
        return False
