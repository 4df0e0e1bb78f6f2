"""A playbook on many hosts: order, batches, the failure budget, and how each host ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeVar

from opsctl.engine import past_runs
from opsctl.engine.connections import Connected, Connections
from opsctl.engine.events import Event, HostConnected, HostEnded, HostStatus, Note, PlayStarted, Problem
from opsctl.engine.execute import Reverted
from opsctl.engine.hostrun import HostRun, PlayOnHost
from opsctl.engine.model import limit_of
from opsctl.engine.prepare import converted
from opsctl.engine.scope import Scope
from opsctl.engine.session import Interrupted, RunInfo, Session
from opsctl.engine.tasks import Play
from opsctl.engine.undo import tell_undone, undo
from opsctl.errors import Conflict, Damaged, Exit, GateFailed, Locked, OpsctlError, Place, Unreachable, UsageError
from opsctl.inventory import InventoryHost
from opsctl.modules.contract import Change
from opsctl.wire.calls import core

# When hosts end differently, the run's exit code is that of the first of these that occurred.
_SEVERITY = (
    Exit.INTERRUPTED, Exit.BUG, Exit.MISTAKE, Exit.USAGE, Exit.DAMAGED, Exit.ROLLBACK_FAILED,
    Exit.CONFLICT, Exit.FAILED, Exit.GATE, Exit.ROLLED_BACK, Exit.LOCKED, Exit.UNREACHABLE, Exit.DEGRADED, Exit.DONE,
)  # fmt: skip

R = TypeVar("R")
Level = Literal["info", "warning", "error"]


@dataclass(slots=True)
class Ended:
    """How a host has ended."""

    status: HostStatus
    code: Exit
    error: OpsctlError | None = None

    @property
    def outcome(self) -> str:
        """The word for it in the journal."""
        return "done" if self.status == "ok" else self.status


@dataclass(slots=True)
class Fleet:
    """The hosts of a run. Connections are begun early, shared by all plays, and closed at the end."""

    info: RunInfo
    emit: Callable[[Event], None]
    clock: Callable[[], float]
    connections: Connections
    at_once: int = 32
    sessions: dict[str, Session] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)

    def connect(self, hosts: Sequence[InventoryHost]) -> None:
        """Begin to connect to hosts, without waiting."""
        for host in hosts:
            if host.name not in self.sessions:
                connecting = self.connections.of(host.connection())
                self.sessions[host.name] = Session(host, self.info, connecting)
                connecting.add_done_callback(partial(self._connected, host.name))

    def _connected(self, host: str, done: Future[Connected]) -> None:
        if done.cancelled() or done.exception():
            return  # told as the end of the host
        self.emit(HostConnected(at=self.clock(), host=host, seconds=done.result().seconds))
        for warning in done.result().remote.warnings:
            self.emit(Note(at=self.clock(), host=host, level="warning", message=warning))

    def play(self, play: Play, hosts: Sequence[InventoryHost], on_host: Callable[[Session], PlayOnHost]) -> None:
        """Run a play on hosts, in its batches. How hosts end is in `ended`; those that failed before are left out."""
        left = [h for h in hosts if h.name not in self.ended]
        names = tuple(h.name for h in left)
        self.emit(PlayStarted(at=self.clock(), play=play.name, hosts=names, tasks=len(play.all_tasks())))
        budget = _budget(play, len(hosts))
        failed = 0
        for batch in batches(play, left):
            if failed > budget or self.info.cancelled():
                self._leave_out(batch, failed)
                continue
            self.connect(batch)
            failed += self._batch(play, batch, on_host, budget - failed)

    def _batch(
        self, play: Play, batch: Sequence[InventoryHost], on_host: Callable[[Session], PlayOnHost], budget: float
    ) -> int:
        """Run on a batch, side by side. How many hosts have failed."""
        waiting = list(batch)
        running: dict[Future[None], str] = {}
        failed = 0
        bugs: list[BaseException] = []  # one of ours on one host is no reason to abandon the others in mid-task
        pool = ThreadPoolExecutor(min(self.at_once, len(batch)), thread_name_prefix="host")
        try:
            while waiting or running:
                while (
                    waiting and len(running) < self.at_once and not (failed > budget or bugs or self.info.cancelled())
                ):
                    name = waiting.pop(0).name
                    running[pool.submit(self._one, play, self.sessions[name], on_host)] = name
                if not running:
                    break
                for done in wait(running, return_when=FIRST_COMPLETED).done:
                    name = running.pop(done)
                    if bug := done.exception():
                        bugs.append(bug)
                    failed += name in self.ended and self.ended[name].status != "skipped"
        finally:
            pool.shutdown(wait=False)  # none is left, unless the user wants to stop at once
        if bugs:
            raise bugs[0]
        self._leave_out(waiting, failed)
        return failed

    def give_up(self, bug: Exception) -> None:
        """End the hosts that a fault of opsctl has kept from their end; what was done there can be gone on with."""
        error = OpsctlError(f"stopped by a fault in opsctl: {type(bug).__name__}: {bug}")
        for session in self.sessions.values():
            if session.name not in self.ended:
                self._end(session, Ended("failed", Exit.BUG, error))

    def cancel(self) -> None:
        """Ask all hosts to give up what they are doing: at once, since one may take no more input for a while."""
        for session in list(self.sessions.values()):
            threading.Thread(target=session.cancel, daemon=True).start()

    def _one(self, play: Play, session: Session, on_host: Callable[[Session], PlayOnHost]) -> None:
        """A play on a host, to its end, whatever that is."""
        try:
            try:
                it = on_host(session)
                HostRun(it, session, _deadline(play, it)).run(None if self.info.check else play.lock)
                if session.supervised:
                    self._confirm(session)
            except OpsctlError as error:
                self._failed(play, session, error)
        except OpsctlError as error:
            self._end(session, Ended(*_plain_end(error), error))

    def _confirm(self, session: Session) -> None:
        def confirm() -> None:
            session.wait(session.watched().send([core.supervise_confirm(session.info.run)])[0], 60)

        self._surely(session, confirm)
        session.supervised = False

    def _surely(self, session: Session, work: Callable[[], R], **patience: int) -> R:
        """Work that can be repeated, done again over a new connection where the first one is lost."""
        while True:
            try:
                return work()
            except Unreachable:
                session.regain(partial(self._note, session, "warning"), **patience)

    def _note(self, session: Session, level: Level, message: str, hint: str | None = None) -> None:
        self.emit(Note(at=self.clock(), host=session.name, level=level, message=message, hint=hint))

    def _failed(self, play: Play, session: Session, error: OpsctlError) -> None:
        """Do what the play says is to be done when it fails, and note how the host ends."""
        if isinstance(error, Unreachable) and play.keys.on_unreachable == "skip" and not session.began:
            self._end(session, Ended("skipped", Exit.DONE, error))
            return
        status, code = _plain_end(error)
        if isinstance(error, Reverted):
            session.supervised = False
            code = tell_undone(session.name, error.report, self.emit, self.clock)
            status, code = ("rollback-failed", code) if code else ("rolled-back", Exit.ROLLED_BACK)
        elif session.journals() and not isinstance(error, Unreachable):
            wanted = play.keys.on_failure == "rollback" and not isinstance(error, Interrupted)
            if wanted or session.supervised:
                status, code = self._roll_back(session, error, interrupted=isinstance(error, Interrupted))
        self._end(session, Ended(status, code, error))

    def _roll_back(self, session: Session, error: OpsctlError, *, interrupted: bool) -> tuple[HostStatus, Exit]:
        try:
            code = self._surely(session, lambda: undo(session, self.emit, self.clock, error.message))
        except OpsctlError as second:
            self._note(session, "error", f"rollback: {second.message}", second.hint)
            return "rollback-failed", Exit.DAMAGED if isinstance(second, Damaged) else Exit.ROLLBACK_FAILED
        if code is not Exit.DONE:
            return "rollback-failed", code
        return "rolled-back", Exit.INTERRUPTED if interrupted else Exit.ROLLED_BACK

    def _leave_out(self, hosts: Sequence[InventoryHost], failed: int) -> None:
        several = "hosts have" if failed != 1 else "host has"
        why = "not begun: stopped" if self.info.cancelled() else f"not begun: {failed} {several} failed"
        for host in hosts:
            self.ended[host.name] = Ended("skipped", Exit.INTERRUPTED if self.info.cancelled() else Exit.DONE)
            self.emit(HostEnded(at=self.clock(), host=host.name, status="skipped", counts={}, message=why))

    def _end(self, session: Session, ended: Ended) -> None:
        """Note how a host has ended, in its journal and in the events."""
        self._close_journal(session, ended)
        self._tell_end(session, ended)

    def _close_journal(self, session: Session, ended: Ended) -> None:
        """Note in the host's journal how it has ended, and let go of its lock."""
        outcome = ended.outcome
        why = ended.error.message if ended.error else None
        if ended.status == "unreachable" or not (session.began or session.lock):
            return
        try:
            if session.began:
                if outcome == "done":
                    self._do_after(session)
                self._surely(session, lambda: session.finish(outcome, why), attempts=2)
            else:
                session.finish(outcome, why)
        except OpsctlError as second:
            what = "journal could not be closed" if session.began else "lock could not be given back"
            self._note(session, "warning", f"the {what}: {second.message}")

    def _do_after(self, session: Session) -> None:
        """Do what changes left for the end of a run that went well. It is journaled, and cannot spoil the run."""
        for become, task, calls in session.after:
            try:
                change = Change(task, calls)
                session.wait(session.apply(become, f"{task}, afterwards", change, None, lambda data, body: None), 600)
            except OpsctlError as error:
                self._note(session, "warning", f"{task}, afterwards: {error.message}", error.hint)
        session.after.clear()

    def _tell_end(self, session: Session, ended: Ended) -> None:
        self.ended[session.name] = ended
        for tell in session.at_end:
            try:
                tell(ended.outcome)
            except OSError as full:
                self._note(session, "warning", f"what was measured could not be kept: {full}")
        error = ended.error
        message, hint = (str(error), error.hint) if error else ("", None)
        if ended.status in ("failed", "interrupted", "unreachable") and session.seq:
            run = self.info.run
            again = past_runs.command(str(self.info.meta.get("found_by")), run)
            if session.supervised:
                hint = ("the host takes everything back by itself when the time to confirm it is over; before that: "
                        f"{again}, or at once: opsctl rollback {run}")  # fmt: skip
            elif hint is None or isinstance(error, Unreachable):
                hint = f"what was done is kept: {again}, or opsctl rollback {run}"
        self.emit(HostEnded(at=self.clock(), host=session.name, status=ended.status, counts=dict(session.counts),
                            message=message, hint=hint, place=_place(error)))  # fmt: skip

    def finish(self) -> Exit:
        """End the hosts that went well, close all connections, and say how the run ended."""
        left, well = [s for s in self.sessions.values() if s.name not in self.ended], Ended("ok", Exit.DONE)
        pool = ThreadPoolExecutor(self.at_once, thread_name_prefix="host")
        try:
            list(pool.map(lambda session: self._close_journal(session, well), left))
        finally:
            pool.shutdown(wait=False)
        for session in left:
            self._tell_end(session, well)
        self.close()
        codes = {ended.code for ended in self.ended.values()} or {Exit.DONE}
        if self.info.cancelled():
            return Exit.INTERRUPTED
        code = next((code for code in _SEVERITY if code in codes), max(codes))
        did_something = not self.info.check and any(session.did_something for session in self.sessions.values())
        return Exit.MISTAKE if code is Exit.USAGE and did_something else code

    def close(self) -> None:
        for session in self.sessions.values():
            session.close()
        self.connections.close()


def _place(error: OpsctlError | None) -> Problem | None:
    return Problem.at(error.where) if error and isinstance(error.where, Place) else None


def _plain_end(error: OpsctlError) -> tuple[HostStatus, Exit]:
    """How a host ends on which nothing is rolled back."""
    match error:
        case Interrupted():
            return "interrupted", Exit.INTERRUPTED
        case Locked():
            return "locked", Exit.LOCKED
        case Unreachable():
            return "unreachable", Exit.UNREACHABLE
        case GateFailed() | Conflict() | Damaged() | UsageError():
            return "failed", error.exit_code
    return "failed", Exit.FAILED


def batches(play: Play, hosts: Sequence[InventoryHost]) -> list[list[InventoryHost]]:
    """The hosts in the portions that `serial` asks for; the last portion size repeats."""
    serial = play.keys.serial
    if serial is None or not hosts:
        return [list(hosts)] if hosts else []
    sizes = [_share(s, len(hosts)) for s in (serial if isinstance(serial, list) else [serial])]
    left = list(hosts)
    result: list[list[InventoryHost]] = []
    while left:
        size = max(1, math.floor(sizes[min(len(result), len(sizes) - 1)]))
        result.append(left[:size])
        left = left[size:]
    return result


def _budget(play: Play, hosts: int) -> float:
    """How many hosts may fail before no other is begun. Batches stop at the first failure unless told otherwise."""
    said = play.keys.max_failures
    if said is None:
        return 0 if play.keys.serial is not None else math.inf
    return math.floor(_share(said, hosts))


def _share(said: int | str, of: int) -> float:
    """A number of hosts, given as such or as a share."""
    text = str(said)
    return of * float(text[:-1]) / 100 if text.endswith("%") else int(text)


def _deadline(play: Play, it: PlayOnHost) -> float | None:
    said = play.keys.timeout
    if said is None:
        return None
    if isinstance(said, str):
        said = converted(said, Scope(it.layers), play.at / "timeout", limit_of)
    return time.monotonic() + said
