"""Changes that the host itself takes back unless they are confirmed in time, connection or no connection."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zlib
from typing import TYPE_CHECKING, Any, BinaryIO, List, Optional, cast

from opsctl.agent.core import dispatch, durable, file_locks, host_lock, journal, loader, runlog, runs, supervisor
from opsctl.agent.core.runs import Record
from opsctl.wire import masking
from opsctl.wire.protocol import AgentError, Context, ProtocolError, Reply, frame, read_frame

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Applied, Confirmed, NamedCall, PutBack, RolledBack, StepCall, Supervised

TICK = 0.05  # seconds between looks at the events
LEAVING = 5.0  # seconds that a supervisor gets to end once it has said everything
_BOOT = "import os,zlib;i=os.fdopen(os.dup(0),'rb');exec(zlib.decompress(i.read(%d)))"


def start(
    call: Context,
    run: str,
    seq: int,
    calls: List[StepCall],
    confirm_within: float,
    task: Optional[str] = None,
    undo: Optional[List[NamedCall]] = None,
    settle: Optional[List[NamedCall]] = None,
    shows: Optional[List[str]] = None,
) -> Reply[Supervised]:
    """As journal.apply, in a process of its own; then as `follow`.

    `confirm_within` seconds after the change is made, a run that is not confirmed is taken back as a whole. A change
    that fails is taken back at once.
    """
    todo = runlog.split_body(calls, call.body)
    runlog.own(run)
    if supervisor.verdict(run) is not None or os.path.exists(supervisor.events_path(run)):
        raise AgentError("exists", "run %s has a supervised change already" % run, run=run)
    names = [name for name, _, _ in todo]
    _import_all(run, names + [name for name, _ in (undo or []) + (settle or [])])
    supervising = _spawn(run)
    try:
        # It waits for its work: a step is written ahead once there is somebody to make it, and before it is made.
        journal.announce(run, seq, task, names, undo, settle or [], shows or [])
        supervisor.prepare_verdict(run)
        # The events are there before the supervisor writes any: following can begin at once.
        os.close(os.open(supervisor.events_path(run), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
        work = {"seq": seq, "calls": calls, "confirm_within": confirm_within}
        _tell(run, supervising, frame(dict(work, secrets=sorted(masking.learnt())), call.body))
    except BaseException:
        supervising.kill()
        supervising.wait()
        raise
    return follow(call, run)


def follow(call: Context, run: str, offset: int = 0, until: str = "applied") -> Reply[Supervised]:
    """Pass on what happens from `offset` of the events on, until the change is made (`applied`) or decided (`end`).

    Progress: {"offset": where to go on after a lost connection, ...}. Raises AgentError lost when the supervisor is
    gone without a word.
    """
    path = supervisor.events_path(run)
    applied: Optional[Reply[Supervised]] = None
    with open(path, "rb") as events:
        events.seek(offset)
        while True:
            alive = runs.supervised(run)  # looked at first: what it wrote before it went is still read
            event = _next(events)
            if event is None:
                if not alive:
                    raise AgentError("lost", "the supervisor of run %s is gone" % run, run=run)
                if call.cancelled():
                    raise AgentError("failed", "no longer followed; the change goes on", run=run)
                time.sleep(TICK)
                continue
            header, body = event
            kind = header["event"]
            if kind == "progress":
                call.progress({"offset": events.tell(), "data": header["data"]}, body)
            elif kind == "applied":
                result = dict(header["result"], state="applied", offset=events.tell())
                result["confirm_within"] = header["confirm_within"]
                applied = Reply(cast("Applied", result), body)
                if until == "applied" and not _decided_already(run):
                    return applied
            elif kind == "died":
                raise AgentError("lost", "the supervisor failed: %s" % header["error"].get("message"), run=run)
            elif kind == "confirmed":
                return applied or Reply({"state": "confirmed"})
            else:
                _gone(run, LEAVING)  # whoever comes next must not meet its locks
                told = {key: header[key] for key in ("why", "error", "report")}
                return Reply(cast("PutBack", dict(told, state="reverted")))


def confirm(call: Context, run: str, outcome: Optional[str] = None, timeout: float = 20.0) -> Confirmed:
    """The change is good: keep it. With `outcome` that also ends the run. Raises conflict when it is too late."""
    if supervisor.verdict(run) is None and not runs.supervised(run):
        _refuse_if_undone(run, journal.whole(run))
    decided = supervisor.decide(run, supervisor.CONFIRM, outcome)
    if decided.get("verdict") != supervisor.CONFIRM:
        raise AgentError("conflict", "too late: run %s is being or has been taken back" % run, run=run, **decided)
    if not _gone(run, timeout):
        raise AgentError("timeout", "the supervisor of run %s does not react" % run, run=run)
    record = journal.whole(run)
    if not record.confirmed:  # the supervisor died between the two: what it was to write is ours to write
        _refuse_if_undone(run, record)
        with runlog.owning(run):
            runlog.append(run, {"confirmed": True})
            if outcome:
                runlog.append(run, {"outcome": outcome})
    return {"confirmed": True}


def revert(call: Context, run: str) -> RolledBack:
    """The change is not good: take the whole run back, now. Gives the rollback's report.

    Raises AgentError conflict if it was confirmed.
    """
    decided = supervisor.decide(run, supervisor.REVERT)
    if decided.get("verdict") == supervisor.CONFIRM:
        raise AgentError("conflict", "run %s is confirmed; roll it back instead" % run, run=run)
    try:
        reply = follow(call, run, until="end")
    except (AgentError, FileNotFoundError) as error:  # without a word from it, only its end says that it is done
        if isinstance(error, AgentError) and error.kind != "lost":
            raise
        _gone(run, runlog.TURN)
        with runlog.owning(run), runlog.turn(run, call, "taking it back"):
            return journal.roll_back(run, call, "reverted")
    assert reply.result["state"] == "reverted"  # nobody can confirm it any more
    return reply.result["report"]


def _refuse_if_undone(run: str, record: Record) -> None:
    """Nobody may confirm a change that was not wholly made."""
    if record.outcome or any(step.state != "done" for step in record.steps):
        raise AgentError("conflict", "the supervised change of run %s is not in place" % run, run=run)


def _decided_already(run: str) -> bool:
    decided = supervisor.verdict(run)
    return decided is not None and decided.get("verdict") != supervisor.CONFIRM


def _gone(run: str, seconds: float) -> bool:
    """Whether the supervisor has ended, at the latest after `seconds`, and its locks with it."""
    deadline = time.monotonic() + seconds
    while runs.supervised(run):
        if time.monotonic() >= deadline:
            return False
        time.sleep(TICK)
    return True


def _next(events: BinaryIO) -> Any:
    """The next whole event, None while there is none."""
    start = events.tell()
    try:
        event = read_frame(events)
    except EOFError:
        event = None
    except ProtocolError:
        raise AgentError("lost", "what the supervisor has said cannot be read") from None
    if event is None:
        events.seek(start)
    return event


def _import_all(run: str, names: List[str]) -> None:
    """Have the source of everything the supervisor may need: for this change, and to take back those before it."""
    for step in runs.read(run).steps:
        names = names + [name for name, _ in journal.known_calls(step.undo + step.settle)]
    for name in names:
        dispatch.find(name)


def _spawn(run: str) -> "subprocess.Popen[bytes]":
    """A supervisor that waits for its work."""
    sources = {name: text for name, text in loader.sources.items() if text is not None}
    if loader.HERE not in sources:
        raise AgentError("invalid", "a supervised change needs an agent that was sent to its host")
    held = host_lock.descriptors()
    run_lock = runlog.owned(run)
    assert run_lock is not None
    config = {"run": run, "state": os.environ.get("OPSCTL_STATE_DIR"), "run_lock": run_lock, "held": held}
    text = "%s\nboot(%r, 'agent.core.supervisor', i, %r)\n" % (sources[loader.HERE], sources, config)
    boot = zlib.compress(text.encode())
    path = runs.folder(run)
    alive = file_locks.take(os.path.join(path, "supervisor.lock"))
    if alive is None:
        raise AgentError("exists", "run %s is supervised already" % run, run=run)
    try:
        with durable.explained(), open(os.path.join(path, "supervisor.log"), "ab") as log:
            supervising = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT % len(boot)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd="/",
                start_new_session=True,
                pass_fds=[alive, run_lock, *held],
            )
    finally:
        os.close(alive)  # the supervisor's copy keeps the lock
    _tell(run, supervising, boot)
    return supervising


def _tell(run: str, supervising: "subprocess.Popen[bytes]", data: bytes) -> None:
    assert supervising.stdin
    try:
        supervising.stdin.write(data)
        supervising.stdin.flush()
    except OSError as error:
        raise AgentError("lost", "the supervisor did not start: %s" % error.strerror, run=run) from error


CALLS = {"start": start, "follow": follow, "confirm": confirm, "revert": revert}
