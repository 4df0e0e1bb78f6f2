"""What the journals of this host tell of its runs."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Iterator, List, cast

from opsctl.agent.core import durable, file_locks, runs
from opsctl.agent.core.runs import Record
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Run, Runs, RunState, ShownRun


def newest(call: Context, limit: int = 50, checkpoints: bool = False) -> Runs:
    """The newest runs, the newest first. `state`: running | supervised | unfinished | ended | damaged | unreadable.

    With `checkpoints`, those that can be resumed come with their last one: it may hold what is not for everybody.
    """
    found: List[Run] = []
    for name in runs.names()[:limit]:
        with _unless_gone():
            record = runs.read(name)
            one = _summary(record)
            if checkpoints and not (record.closed or record.damage):
                one["checkpoint"] = _checkpoint(name)
            found.append(one)
    return {"runs": found}


def show(call: Context, run: str, checkpoint: bool = False) -> ShownRun:
    """One run: its summary, its steps, and with `checkpoint` the data of its last one."""
    record = runs.read(run)
    told = cast("ShownRun", dict(_summary(record), log=[step.told() for step in record.steps]))
    if checkpoint:
        told["checkpoint"] = None if record.damage else _checkpoint(run)
    return told


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    """Pass over a run that another one has pruned meanwhile."""
    try:
        yield
    except AgentError as error:
        if error.kind != "not-found":
            raise


def _checkpoint(run: str) -> Any:
    kept = durable.read_json(os.path.join(runs.folder(run), "checkpoint.json"))
    return kept["data"] if kept else None


def _summary(record: Record) -> Run:
    state = _state(record)
    return {
        "run": record.run,
        "order": record.order,
        "meta": record.meta,
        "begun": record.begun,
        "ended": record.ended or None,
        "state": state,
        "unfinished": state == "unfinished",
        "outcome": record.outcome,
        "why": record.why,
        "damage": record.damage,
        "confirmed": record.confirmed,
        "attended": file_locks.is_locked(os.path.join(runs.folder(record.run), "attended")),
        "steps": len(record.steps),
        "last": max((step.seq for step in record.steps), default=0),
        "done": sum(step.state == "done" for step in record.steps),
        "undone": sum(step.undone for step in record.steps),
    }


def _state(record: Record) -> RunState:
    if record.refused:
        return "unreadable"
    if runs.supervised(record.run):
        return "supervised"
    if file_locks.is_locked(os.path.join(runs.folder(record.run), "lock")):
        return "running"
    if record.damage and not record.undone:
        return "damaged"
    return "ended" if record.outcome else "unfinished"


CALLS = {"list": newest, "show": show}
