"""The journal of runs: written ahead on the host, so that every change can be taken back, by whoever comes next."""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import Any, Dict, List, Optional

from opsctl.agent import durable, runlog, steps
from opsctl.agent.protocol import AgentError, Context, Reply


def begin(call: Context, run: str, meta: Dict[str, Any], resume: bool = False) -> Dict[str, Any]:
    """Start a run, or go on with one that was stopped. `meta`: who, from where, playbook, digest, vars (masked), ..."""
    if resume:
        record = runlog.read(run)
        if record.closed:
            raise AgentError("invalid", "run %s has ended: %s" % (run, record.outcome), run=run)
        runlog.attend(run)
        if not runlog.supervised(run):
            runlog.own(run)
            runlog.append(run, {"resumed": True})
    else:
        runlog.create(run)
        runlog.attend(run)
        runlog.append(run, {"begin": meta})
    return {"folder": runlog.folder(run)}


def apply(
    call: Context,
    run: str,
    seq: int,
    calls: List[Any],
    task: Any = None,
    undo: Optional[List[runlog.NamedCall]] = None,
    settle: Optional[List[runlog.NamedCall]] = None,
) -> Reply:
    """Do one step: write it ahead, make its calls, mark it.

    `calls`: [name, args, length of its part of the body]. Gives {"replies": [[result, length of its body], ...]}.
    A call that fails ends the step; the error has `step`, `call` and the `replies` before it.
    """
    todo = runlog.split_body(calls, call.body)
    runlog.join(run)
    with runlog.turn(run, call, "step %d%s" % (seq, ", %s" % task if task else "")):
        steps.provide(run, (undo or []) + (settle or []))
        steps.announce(run, seq, task, [name for name, _, _ in todo], undo, settle or [])
        return steps.perform(run, seq, todo, call)


def rollback(call: Context, run: str, why: Optional[str] = None, wait: float = runlog.TURN) -> Dict[str, Any]:
    """Take back everything a run did, also what was half done. Can be repeated and goes on where it was cut off.

    Raises AgentError locked while somebody works on the run, busy while a step of it does not end within `wait`
    seconds; a supervised one is for supervise.revert.
    """
    if runlog.supervised(run):
        holder = dict(runlog.read(run).meta, run=run)
        raise AgentError("locked", "run %s waits to be confirmed: revert it" % run, holder=holder, supervised=True)
    with runlog.owning(run), runlog.turn(run, call, "taking it back", wait):
        return steps.roll_back(run, call, why)


def finish(call: Context, run: str, outcome: str, why: Optional[str] = None, keep: int = 50) -> Dict[str, Any]:
    """Note how a run ended and let go of it; of the ended runs the newest `keep` stay."""
    record = runlog.read(run)
    if record.outcome is None:
        runlog.own(run)
        runlog.append(run, {"outcome": outcome, "why": why})
    runlog.disown(run)
    return {"outcome": record.outcome or outcome, "removed": _prune(keep)}


def checkpoint(call: Context, run: str, data: Any) -> None:
    """Keep what a later process needs to go on: registered values, pending handlers."""
    with durable.explained():
        durable.write(os.path.join(runlog.folder(run), "checkpoint.json"), durable.json_bytes({"data": data}))


def runs(call: Context, limit: int = 50) -> Dict[str, Any]:
    """The newest runs, the newest first. `state`: running | supervised | unfinished | ended.

    Those that can be resumed come with their last checkpoint.
    """
    found: List[Dict[str, Any]] = []
    for name in sorted(runlog.names(), key=runlog.begun, reverse=True)[:limit]:
        with contextlib.suppress(AgentError):  # it has been pruned meanwhile
            record = runlog.read(name)
            one = _summary(record)
            if not record.closed:
                one["checkpoint"] = _checkpoint(name)
            found.append(one)
    return {"runs": found}


def show(call: Context, run: str) -> Dict[str, Any]:
    """One run: its summary, its steps, and the data of its last checkpoint."""
    record = runlog.read(run)
    return dict(_summary(record), log=[step.told() for step in record.steps], checkpoint=_checkpoint(run))


def _checkpoint(run: str) -> Any:
    kept = durable.read_json(os.path.join(runlog.folder(run), "checkpoint.json"))
    return kept["data"] if kept else None


def _summary(record: runlog.Record) -> Dict[str, Any]:
    if runlog.supervised(record.run):
        state = "supervised"
    elif runlog.is_locked(os.path.join(runlog.folder(record.run), "lock")):
        state = "running"
    else:
        state = "ended" if record.outcome else "unfinished"
    return {
        "run": record.run,
        "meta": record.meta,
        "begun": record.begun,
        "ended": record.ended or None,
        "state": state,
        "unfinished": state == "unfinished",
        "outcome": record.outcome,
        "why": record.why,
        "confirmed": record.confirmed,
        "attended": runlog.is_locked(os.path.join(runlog.folder(record.run), "attended")),
        "steps": len(record.steps),
        "last": max((step.seq for step in record.steps), default=0),
        "done": sum(step.state == "done" for step in record.steps),
        "undone": sum(step.undone for step in record.steps),
    }


def _prune(keep: int) -> List[str]:
    ended = []
    for name in runlog.names():
        with contextlib.suppress(AgentError):  # another one prunes, too
            record = runlog.read(name)
            if record.outcome:
                ended.append(record)
    ended.sort(key=lambda record: record.ended, reverse=True)
    removed = []
    for record in ended[keep:]:
        with contextlib.suppress(AgentError):  # somebody works on it
            runlog.own(record.run)
            shutil.rmtree(runlog.folder(record.run), ignore_errors=True)
            runlog.disown(record.run)
            removed.append(record.run)
    return removed


CALLS = {
    "begin": begin,
    "apply": apply,
    "rollback": rollback,
    "finish": finish,
    "checkpoint": checkpoint,
    "list": runs,
    "show": show,
}
