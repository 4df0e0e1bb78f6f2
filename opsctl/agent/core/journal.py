"""The journal of runs: written ahead on the host, so that every change can be taken back, by whoever comes next."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Literal, Optional, Set, Tuple

from opsctl.agent.core import dispatch, durable, loader, runlog, runs
from opsctl.agent.core.runs import Record, Step, settle_key
from opsctl.wire import masking
from opsctl.wire import undo as operations
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.core import (
        Begun,
        Checkpoint,
        Fault,
        Finished,
        Foreseen,
        Lacking,
        NamedCall,
        RolledBack,
        RunMeta,
        StepCall,
        StepReplies,
        UndoneStep,
    )


def begin(call: Context, run: str, meta: RunMeta, resume: bool = False) -> Begun:
    """Start a run, or go on with one that was stopped. `meta`: who, from where, playbook, digest, vars (masked), ..."""
    if resume:
        record = whole(run)
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
        provide(run, (undo or []) + (settle or []))
        announce(run, seq, task, [name for name, _, _ in todo], undo, settle or [], shows or [])
        return perform(run, seq, todo, call)


def rollback(call: Context, run: str, why: Optional[str] = None, wait: float = runlog.TURN) -> RolledBack:
    """Take back everything a run did, also what was half done. Can be repeated and goes on where it was cut off.

    Raises AgentError locked while somebody works on the run, busy while a step of it does not end within `wait`
    seconds; a supervised one is for supervise.revert.
    """
    if runs.supervised(run):
        holder = dict(runs.read(run).meta, run=run)
        raise AgentError("locked", "run %s waits to be confirmed: revert it" % run, holder=holder, supervised=True)
    with runlog.owning(run), runlog.turn(run, call, "taking it back", wait):
        return roll_back(run, call, why)


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


class Nested(Context):
    """A call within a call: its own body and blobs, everything else is its caller's business."""

    def __init__(self, outer: Context, body: bytes, blobs: str, to_the_end: bool = False) -> None:
        self.outer, self.body, self.blobs, self.to_the_end = outer, body, blobs, to_the_end
        self.known, self.undoing = outer.known, outer.undoing

    def progress(self, data: Any, body: bytes = b"") -> None:
        self.outer.progress(data, body)

    def cancelled(self) -> bool:
        return not self.to_the_end and self.outer.cancelled()

    def kept(self, name: str) -> None:
        self.outer.kept(name)

    def started(self, group: int) -> None:
        self.outer.started(group)

    def ended(self, group: int) -> None:
        self.outer.ended(group)


class Doing(Nested):
    """A call of a step: the log notes what it keeps, before it acts."""

    def __init__(self, outer: Context, body: bytes, run: str, seq: int, noted: List[str]) -> None:
        super().__init__(outer, body, runs.step_folder(run, seq))
        self._run, self._seq, self._noted = run, seq, noted

    def kept(self, name: str) -> None:
        if name not in self._noted:
            self._noted.append(name)
            there = [n for n in os.listdir(self.blobs or "") if n == name or n.startswith(name + ".")]
            # What says that the step is done waits for the disk, and for this with it.
            runlog.append(self._run, {"kept": self._seq, "name": name, "files": sorted(there)}, sync=False)


class Undoing(Nested):
    """A call that takes a step back."""

    def __init__(self, outer: Context, run: str, step: Step) -> None:
        super().__init__(outer, b"", runs.step_folder(run, step.seq), to_the_end=True)
        self.known, self.undoing = frozenset(step.kept), True


class Account:
    """What is noted of an undo. One that finds no room in the log goes on all the same, and says so afterwards."""

    def __init__(self, run: str) -> None:
        self._run = run
        self.unlogged: Optional[str] = None  # why something is not in the log

    def note(self, line: Dict[str, Any], sync: bool = True) -> None:
        try:
            runlog.append(self._run, line, sync)
        except (AgentError, OSError) as error:
            self.unlogged = dispatch.describe(error)["message"]


def announce(
    run: str,
    seq: int,
    task: Any,
    names: List[str],
    undo: Optional[List[NamedCall]],
    settle: List[NamedCall],
    shows: List[str],
) -> None:
    """Write a step ahead: from here on a rollback takes it back, however far it comes.

    shows: files of which `foreseen` may tell the content. Which ones those are only the run knows: it has the secrets.
    """
    record = whole(run)
    if record.outcome:
        raise AgentError("invalid", "run %s has ended: %s" % (run, record.outcome), run=run)
    if record.step(seq):
        raise AgentError("exists", "run %s has a step %d already" % (run, seq), run=run)
    step = {"step": seq, "task": masking.data(task), "calls": names}
    apart = None
    if undo is not None or settle:
        kept = {"undo": _written(undo, record), "settle": _written(settle, record), "shows": shows}
        apart = runlog.set_apart(run, dict(step, **kept))
    runlog.append(run, dict(step, undo=apart, can_undo=undo is not None))


def _written(calls: Optional[List[NamedCall]], record: Record) -> Optional[List[Any]]:
    """Calls as the journal holds them. Raises AgentError invalid."""
    try:
        return None if calls is None else [operations.written(name, args, record.format) for name, args in calls]
    except ValueError as error:
        raise AgentError("invalid", str(error)) from None


def whole(run: str) -> Record:
    """A run whose journal can be gone on with. Raises AgentError not-found, damaged."""
    record = runs.read(run)
    if record.damage:
        text = "the journal of run %s is damaged: %s" % (run, "; ".join(record.damage))
        raise AgentError("damaged", text, run=run, damage=record.damage)
    return record


def provide(run: str, later: List[NamedCall]) -> None:
    """Have a living supervisor able to take back a step that comes after its own: it has no controller to ask."""
    if not runs.supervised(run):
        return
    for name, _ in later:
        dispatch.find(name)
    with durable.explained():
        durable.write(os.path.join(runs.folder(run), "modules.json"), durable.json_bytes(loader.sources))


def perform(run: str, seq: int, todo: List[Tuple[str, Dict[str, Any], bytes]], context: Context) -> Reply[StepReplies]:
    """Make the calls of an announced step, in order. Raises what a call raises, with the replies before it."""
    results: List[Tuple[Any, int]] = []
    bodies: List[bytes] = []
    noted: List[str] = []
    for name, args, body in todo:
        try:
            if context.cancelled():
                raise AgentError("failed", "cancelled")
            reply = dispatch.invoke(name, args, Doing(context, body, run, seq, noted))
        except BaseException as error:
            told = dispatch.describe(error)
            Account(run).note({"failed": seq, "error": told})  # what failed matters more than that
            fields = {k: v for k, v in told.items() if k not in ("kind", "message")}
            fields.update(step=seq, call=name, replies=[result for result, _ in results])
            raise AgentError(told["kind"], told["message"], **fields) from error
        results.append((reply.result, len(reply.body)))
        bodies.append(reply.body)
    runlog.append(run, {"done": seq})
    return Reply({"replies": results}, b"".join(bodies))


def roll_back(run: str, context: Context, why: Optional[str] = None) -> RolledBack:
    """Take back every step, the last one first, then settle. Does only what is not done yet, so it can be repeated.

    A step that cannot be taken back does not keep the others from it. The outcome is "rolled-back", or
    "rolled-back-partly" where an undo failed, or where the journal is damaged: what it lacks may be left. A step that
    never said how it is undone is told as kept, and is no failure. Raises AgentError damaged where nothing of it can be
    read.
    """
    record = runs.read(run)
    if record.refused:
        raise AgentError("damaged", "nothing of run %s is undone: %s" % (run, record.refused), run=run)
    account = Account(run)
    if not record.undone:
        _undo(record, context, account, why)
    if record.undone and account.unlogged is None:
        runlog.forget(run)
    return {
        "outcome": "rolled-back" if record.undone else "rolled-back-partly",
        "why": why or record.why,
        "steps": [_report(record, step) for step in reversed(record.steps)],
        "settle": list(record.settled.values()),
        "damage": [] if record.undone else record.damage,
        "unlogged": account.unlogged,
    }


def lacking(call: Context, run: str) -> List[Lacking]:
    """Steps that a rollback could not take back as things are, as what that needs is gone. Only looks."""
    record = runs.read(run)
    due = (step for step in reversed(record.steps) if step.can_undo and not step.undone)
    found = [(step, _lacks(record, step, call)) for step in due]
    return [{"seq": step.seq, "task": step.task, "why": why} for step, why in found if why]


def foreseen(call: Context, run: str) -> Reply[List[Foreseen]]:
    """What a rollback would make of the files whose content is no secret. Only looks.

    In the order in which steps are taken back; the contents lie one after the other in the body. A file that is not
    `ours` was changed by somebody else since, and would be left as it is.
    """
    record = runs.read(run)
    found: List[Foreseen] = []
    contents: List[bytes] = []
    ahead: Dict[str, Optional[bytes]] = {}  # what the undo of a later step will have made of a file
    theirs: Set[str] = set()
    for step in reversed(record.steps):
        for name, args in known_calls(step.undo) if step.can_undo and not step.undone else ():
            path, seen = args.get("path"), None
            with contextlib.suppress(AgentError, OSError):  # the rollback will tell
                seen = dispatch.foreseen(name, args, Undoing(call, run, step)) if path in step.shows else None
            if seen is None or path in theirs:
                continue
            ours = path in ahead or seen.ours
            both = (ahead.get(path, seen.now), seen.then) if ours else (None, None)
            if ours:
                ahead[path] = seen.then
            else:
                theirs.add(path)
            now, then = (None if content is None else len(content) for content in both)
            found.append({"seq": step.seq, "path": path, "ours": ours, "now": now, "then": then})
            contents += [content for content in both if content is not None]
    return Reply(found, b"".join(contents))


def _lacks(record: Record, step: Step, context: Context) -> List[str]:
    why: List[str] = []
    try:
        calls = [operations.read(entry) for entry in [*step.undo, *step.settle]]
    except ValueError as error:
        words = "how it is undone (%s) is not known to this opsctl: use opsctl %s or later"
        return [words % (error, record.meta.get("version", "the one that made it"))]
    for name, args in calls:
        with contextlib.suppress(AgentError):  # what is damaged is told as such
            why += dispatch.lacking(name, args, Undoing(context, record.run, step))
    return why


def _undo(record: Record, context: Context, account: Account, why: Optional[str]) -> None:
    runlog.release(record.run)
    for step in reversed(record.steps):
        if step.can_undo and not step.undone:
            _take_back(record, step, context, account)
    for key, (step, call) in _to_settle(record).items():
        _settle(record, key, step, call, context, account)
    failed = any(entry["error"] for entry in record.settled.values())
    everything = all(step.undone or not step.can_undo for step in record.steps) and not failed and not record.damage
    outcome = "rolled-back" if everything else "rolled-back-partly"
    if record.outcome != outcome:
        account.note({"outcome": outcome, "why": why or record.why})
    record.outcome = outcome


def _report(record: Record, step: Step) -> UndoneStep:
    status: Literal["undone", "kept", "failed"] = (
        "kept" if not step.can_undo else "undone" if step.undone or record.undone else "failed"
    )
    return {"seq": step.seq, "task": step.task, "status": status, "error": step.undo_error}


def _take_back(record: Record, step: Step, context: Context, account: Account) -> None:
    context.progress({"undo": step.seq, "task": step.task})
    account.note({"undoing": step.seq}, sync=False)
    try:
        if step.lost:
            raise AgentError("damaged", step.lost)
        lacks = _lacks(record, step, context)
        if lacks:  # nothing of it is taken down that could not be put up again
            raise AgentError("conflict", "left as it is: %s" % "; ".join(lacks))
        for name, args in map(operations.read, step.undo):
            dispatch.invoke(name, args, Undoing(context, record.run, step))
    except Exception as error:  # noqa: BLE001  told in the report; the other steps are still taken back
        step.undo_error = dispatch.describe(error)
        if step.undo_error["kind"] == "damaged" and not record.damage:
            record.damage.append("step %d: %s" % (step.seq, step.undo_error["message"]))
        account.note({"undo_failed": step.seq, "error": step.undo_error})
    else:
        step.undone, step.undo_error = True, None
        record.damage = [sentence for sentence in record.damage if sentence not in step.missing]
        account.note({"undone": step.seq})


def known_calls(entries: List[Any]) -> Iterator[NamedCall]:
    """The operations of a journal that this opsctl knows, as calls."""
    for entry in entries:
        with contextlib.suppress(ValueError):
            yield operations.read(entry)


def _to_settle(record: Record) -> Dict[str, Tuple[Step, List[Any]]]:
    """Each distinct settle operation once, with its first step: that one knows how things were before."""
    found: Dict[str, Tuple[Step, List[Any]]] = {}
    for step in record.steps:
        for call in step.settle:
            found.setdefault(settle_key(call), (step, call))
    return found


def _settle(record: Record, key: str, step: Step, entry: List[Any], context: Context, account: Account) -> None:
    if key in record.settled and record.settled[key]["error"] is None:
        return
    context.progress({"settle": entry[0]})
    error: Optional[Fault] = None
    undoing = Undoing(context, record.run, step)
    try:
        call = operations.read(entry)
        lacks = dispatch.lacking(call[0], call[1], undoing)
        if lacks:
            raise AgentError("conflict", "; ".join(lacks))
        dispatch.invoke(call[0], call[1], undoing)
    except Exception as failure:  # noqa: BLE001  told in the report
        error = dispatch.describe(failure)
    record.settled[key] = {"call": entry[0], "error": error}
    account.note({"settled": key, "call": entry[0], "error": error})


CALLS = {
    "begin": begin,
    "apply": apply,
    "rollback": rollback,
    "lacking": lacking,
    "foreseen": foreseen,
    "finish": finish,
    "checkpoint": checkpoint,
}
