"""Doing the steps of a run, and taking them back."""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, Optional, Tuple

from opsctl.agent import calls, durable, loader, runlog
from opsctl.agent.protocol import AgentError, Context, Reply


class Nested(Context):
    """A call within a call: its own body and blobs, everything else is its caller's business."""

    def __init__(self, outer: Context, body: bytes, blobs: str, to_the_end: bool = False) -> None:
        self.outer, self.body, self.blobs, self.to_the_end = outer, body, blobs, to_the_end

    def progress(self, data: Any, body: bytes = b"") -> None:
        self.outer.progress(data, body)

    def cancelled(self) -> bool:
        return not self.to_the_end and self.outer.cancelled()

    def started(self, group: int) -> None:
        self.outer.started(group)

    def ended(self, group: int) -> None:
        self.outer.ended(group)


def announce(
    run: str,
    seq: int,
    task: Any,
    names: List[str],
    undo: Optional[List[runlog.NamedCall]],
    settle: List[runlog.NamedCall],
) -> None:
    """Write a step ahead: from here on a rollback takes it back, however far it comes."""
    record = runlog.read(run)
    if record.outcome:
        raise AgentError("invalid", "run %s has ended: %s" % (run, record.outcome), run=run)
    if record.step(seq):
        raise AgentError("exists", "run %s has a step %d already" % (run, seq), run=run)
    with durable.explained():
        os.makedirs(runlog.step_folder(run, seq), mode=0o700, exist_ok=True)
        durable.sync_folder(os.path.dirname(runlog.step_folder(run, seq)))
    runlog.append(run, {"step": seq, "task": task, "calls": names, "undo": undo, "settle": settle})


def provide(run: str, later: List[runlog.NamedCall]) -> None:
    """Have a living supervisor able to take back a step that comes after its own: it has no controller to ask."""
    if not runlog.supervised(run):
        return
    for name, _ in later:
        calls.find(name)
    with durable.explained():
        durable.write(os.path.join(runlog.folder(run), "modules.json"), durable.json_bytes(loader.sources))


def perform(run: str, seq: int, todo: List[Tuple[str, Dict[str, Any], bytes]], context: Context) -> Reply:
    """Make the calls of an announced step, in order. Raises what a call raises, with the replies before it."""
    results: List[List[Any]] = []
    bodies: List[bytes] = []
    blobs = runlog.step_folder(run, seq)
    for name, args, body in todo:
        try:
            if context.cancelled():
                raise AgentError("failed", "cancelled")
            reply = calls.invoke(name, args, Nested(context, body, blobs))
        except BaseException as error:
            told = calls.describe(error)
            runlog.append(run, {"failed": seq, "error": told})
            fields = {k: v for k, v in told.items() if k not in ("kind", "message")}
            fields.update(step=seq, call=name, replies=[result for result, _ in results])
            raise AgentError(told["kind"], told["message"], **fields) from error
        results.append([reply.result, len(reply.body)])
        bodies.append(reply.body)
    runlog.append(run, {"done": seq})
    return Reply({"replies": results}, b"".join(bodies))


def roll_back(run: str, context: Context, why: Optional[str] = None) -> Dict[str, Any]:
    """Take back every step, the last one first, then settle. Does only what is not done yet, so it can be repeated.

    A step that cannot be taken back does not keep the others from it. Gives {"outcome", "steps", "settle"}; the
    outcome is "rolled-back", or "rolled-back-partly" where something is left.
    """
    record = runlog.read(run)
    for step in reversed(record.steps):
        if step.undo is None or step.undone:
            continue
        context.progress({"undo": step.seq, "task": step.task})
        try:
            for name, args in step.undo:
                blobs = runlog.step_folder(run, step.seq)
                calls.invoke(name, args, Nested(context, b"", blobs, to_the_end=True))
        except Exception as error:  # noqa: BLE001  told in the report; the other steps are still taken back
            step.undo_error = calls.describe(error)
            runlog.append(run, {"undo_failed": step.seq, "error": step.undo_error})
        else:
            step.undone, step.undo_error = True, None
            runlog.append(run, {"undone": step.seq})
    settled = [_settle(record, step, call, context) for step, call in _to_settle(record)]
    whole = all(step.undone for step in record.steps) and not any(entry["error"] for entry in settled)
    outcome = "rolled-back" if whole else "rolled-back-partly"
    if record.outcome != outcome:
        runlog.append(run, {"outcome": outcome, "why": why or record.why})
    return {
        "outcome": outcome,
        "why": why or record.why,
        "steps": [
            {
                "seq": step.seq,
                "task": step.task,
                "status": "undone" if step.undone else "kept" if step.undo is None else "failed",
                "error": step.undo_error,
            }
            for step in reversed(record.steps)
        ],
        "settle": settled,
    }


def _to_settle(record: runlog.Record) -> List[Tuple[runlog.Step, runlog.NamedCall]]:
    """Each distinct settle call once, with the step where it came up first: that step knows how things were before."""
    found: Dict[str, Tuple[runlog.Step, runlog.NamedCall]] = {}
    for step in record.steps:
        for call in step.settle:
            found.setdefault(_key(call), (step, call))
    return list(found.values())


def _settle(record: runlog.Record, step: runlog.Step, call: runlog.NamedCall, context: Context) -> Dict[str, Any]:
    key, error = _key(call), None
    if record.settled.get(key, True) is not None:  # not yet done
        context.progress({"settle": call[0]})
        try:
            blobs = runlog.step_folder(record.run, step.seq)
            calls.invoke(call[0], call[1], Nested(context, b"", blobs, to_the_end=True))
        except Exception as failure:  # noqa: BLE001  told in the report
            error = calls.describe(failure)
        runlog.append(record.run, {"settled": key, "error": error})
    return {"call": call[0], "error": error}


def _key(call: runlog.NamedCall) -> str:
    return json.dumps(call, sort_keys=True, separators=(",", ":"))
