"""The journal of runs: written ahead on the host, so that every change can be taken back, by whoever comes next."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, List, Optional

from opsctl.agent.core import durable, runlog, runs, steps
from opsctl.wire import masking
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.core import (
        Begun,
        Checkpoint,
        Finished,
        Foreseen,
        Lacking,
        NamedCall,
        RolledBack,
        RunMeta,
        StepCall,
        StepReplies,
    )


def begin(call: Context, run: str, meta: RunMeta, resume: bool = False) -> Begun:
    """Start a run, or go on with one that was stopped. `meta`: who, from where, playbook, digest, vars (masked), ..."""
    if resume:
        record = steps.whole(run)
        if record.closed:
            raise AgentError("invalid", "run %s has ended: %s" % (run, record.outcome), run=run)
        runlog.attend(run)
        supervised = runs.supervised(run)  # not before: the agent that attended it last may have begun a change
        if not supervised:
            runlog.own(run)
            runlog.append(run, {"resumed": True})
    else:
        runlog.create(run, meta)
        supervised = False
    return {"folder": runs.folder(run), "supervised": supervised}


def apply(
    call: Context,
    run: str,
    seq: int,
    calls: List[StepCall],
    task: Optional[str] = None,
    undo: Optional[List[NamedCall]] = None,
    settle: Optional[List[NamedCall]] = None,
    shows: Optional[List[str]] = None,
) -> Reply[StepReplies]:
    """Do one step: write it ahead, make its calls, mark it. `shows`: files whose content `foreseen` may tell.

    A call that fails ends the step; the error has `step`, `call` and the `replies` before it.
    """
    todo = runlog.split_body(calls, call.body)
    runlog.join(run)
    with runlog.turn(run, call, "step %d%s" % (seq, ", %s" % task if task else "")):
        steps.provide(run, (undo or []) + (settle or []))
        steps.announce(run, seq, task, [name for name, _, _ in todo], undo, settle or [], shows or [])
        return steps.perform(run, seq, todo, call)


def rollback(call: Context, run: str, why: Optional[str] = None, wait: float = runlog.TURN) -> RolledBack:
    """Take back everything a run did, also what was half done. Can be repeated and goes on where it was cut off.

    Raises AgentError locked while somebody works on the run, busy while a step of it does not end within `wait`
    seconds; a supervised one is for supervise.revert.
    """
    if runs.supervised(run):
        holder = dict(runs.read(run).meta, run=run)
        raise AgentError("locked", "run %s waits to be confirmed: revert it" % run, holder=holder, supervised=True)
    with runlog.owning(run), runlog.turn(run, call, "taking it back", wait):
        return steps.roll_back(run, call, why)


def lacking(call: Context, run: str) -> List[Lacking]:
    """What a rollback would find missing, before it takes anything down: as of steps.lacking."""
    return steps.lacking(run, call)


def foreseen(call: Context, run: str) -> Reply[List[Foreseen]]:
    """What a rollback would make of the content of files: as of steps.foreseen."""
    return steps.foreseen(run, call)


def finish(call: Context, run: str, outcome: str, why: Optional[str] = None, keep: int = 50) -> Finished:
    """Note how a run ended and let go of it; of the runs that nobody can go on with the newest `keep` stay."""
    record = runs.read(run)
    if record.outcome is None:
        runlog.own(run)
        runlog.append(run, {"outcome": outcome, "why": why})
    runlog.disown(run)
    return {"outcome": record.outcome or outcome, "removed": _prune(keep)}


def checkpoint(call: Context, run: str, data: Checkpoint) -> None:
    """Keep what a later process needs to go on: registered values, pending handlers."""
    with durable.explained():
        durable.write(os.path.join(runs.folder(run), "checkpoint.json"), masking.json_bytes({"data": data}))


def _prune(keep: int) -> List[str]:
    """Remove all but the newest `keep` of the runs that are closed, and of those that could be gone on with.

    Of others, something is still needed: their end is not known, or their journals are damaged.
    """
    seen = {True: 0, False: 0}  # by whether they are closed
    removed = []
    for name in runs.names():
        with contextlib.suppress(AgentError):  # somebody works on it, or another one prunes, too
            record = runs.read(name)
            if record.outcome is None or (record.damage and not record.undone):
                continue
            seen[record.closed] += 1
            if seen[record.closed] > keep:
                runlog.own(name)
                runlog.remove(runs.folder(name))
                runlog.disown(name)
                removed.append(name)
    runlog.remove_unbegun()
    return removed


CALLS = {
    "begin": begin,
    "apply": apply,
    "rollback": rollback,
    "lacking": lacking,
    "foreseen": foreseen,
    "finish": finish,
    "checkpoint": checkpoint,
}
