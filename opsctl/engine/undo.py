"""Taking back what a run did on a host: which run, what it would be, and doing it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.engine import hostlock, past_runs
from opsctl.engine.events import Event, Note, UndoStep
from opsctl.engine.session import Session
from opsctl.errors import Exit, Locked, RemoteError
from opsctl.inventory import InventoryHost
from opsctl.remote.host import RemoteHost
from opsctl.wire.calls import core


@dataclass(frozen=True, slots=True)
class Undoing:
    """A run in the journal of one user of a host, as it is before it is undone.

    Attributes:
        user: None for the login user.
        lacks: what taking it back needs and is not there any more, a sentence each.
        foretold: what would become of files whose content is no secret; only where asked for.
    """

    user: str | None
    agent: RemoteHost
    past: past_runs.PastRun
    steps: tuple[past_runs.PastStep, ...]
    lacks: tuple[str, ...]
    foretold: tuple[past_runs.Foretold, ...]

    @property
    def left(self) -> list[past_runs.PastStep]:
        """The steps that are not undone yet, in the order in which they are undone."""
        return [step for step in reversed(self.steps) if not step.undone]


def newest(orders: Sequence[Sequence[str]]) -> str | None:
    """The newest of all runs, from lists that each begin with the newest of their own; the first list is our own.

    Where a list has two runs, it knows which of them came later; a host knows better than we do, as it counts runs
    where we have the time alone. Between runs that no list has together, the time in their names decides.
    """
    heads = {order[0] for order in orders if order}
    later = {run for order in orders[1:] for run in order[1:] if run in heads}
    if orders and orders[0] and orders[0][0] not in later:
        later |= {run for run in orders[0][1:] if run in heads}
    return max(heads - later or heads, default=None)


def looked_up(remote: RemoteHost, run: str, *, diff: bool = False) -> list[Undoing]:
    """The run in the journals of all users that it worked as on this host, the login user's last.

    Raises RemoteError, Unreachable, AuthFailed.
    """
    own = _in_journal(remote, remote.spec.become, run, diff=diff)
    if own is None:
        return []
    others = (_in_journal(remote, user, run, diff=diff) for user in own.past.users)
    return [*(one for one in others if one), own]


def _in_journal(remote: RemoteHost, user: str | None, run: str, *, diff: bool) -> Undoing | None:
    try:
        agent = remote.as_user(user)
        told = agent.call(core.history_show(run), timeout=60).result
    except RemoteError as error:
        if error.kind != "not-found":
            raise
        return None
    lacks = agent.call(core.journal_lacking(run), timeout=60).result if told["outcome"] != "rolled-back" else ()
    words = tuple(f"{one['task']}: {'; '.join(one['why'])}" for one in lacks)
    foretold = past_runs.foretold(agent.call(core.journal_foreseen(run), timeout=60)) if diff else ()
    return Undoing(user, agent, past_runs.past_run(told), past_runs.past_steps(told), words, tuple(foretold))


def refuse_if_worked_on(host: str, found: Sequence[Undoing], *, force: bool) -> None:
    """Raise Locked where the run's operator is still at work on this host, unless `force` takes it back all the same.

    Only what the host carries through by itself can be taken from a living operator.
    """
    for one in found:
        past = one.past
        if past.state != "running" and not (past.state == "supervised" and past.attended):
            continue
        if past.state == "supervised" and force:
            continue
        message = f"{past.meta.get('who', 'somebody')} is at work on run {past.run} ({past.playbook})"
        if past.state == "supervised":
            raise Locked(f"{message}, which waits to be confirmed", where=host, holder=past.meta,
                         hint="wait for its end, or take it back all the same with --force")  # fmt: skip
        raise Locked(message, where=host, holder=past.meta,
                     hint="wait for its end; when its connection ends, it can be rolled back")  # fmt: skip


def undo_all(host: InventoryHost, found: Sequence[Undoing], on_progress: Callable[[str], None]) -> past_runs.Report:
    """Take back a run in all the journals of a host in which it stands, under the locks of those users.

    Raises Locked, RemoteError, Unreachable.
    """

    def progress(data: Any, body: bytes) -> None:
        if waits := past_runs.waits(data):
            on_progress(waits)

    reports = []
    # A supervisor holds all the locks for as long as it works.
    supervised = [one for one in found if one.past.state == "supervised"]
    for one in supervised:
        told = one.agent.call(core.supervise_revert(one.past.run), on_progress=progress).result
        reports.append(past_runs.report(told))
    rest = [one for one in found if one not in supervised]
    with hostlock.held(host, [one.agent for one in rest], found[0].past.run, "rollback"):
        for one in rest:
            told = one.agent.call(core.journal_rollback(one.past.run, "asked for"), on_progress=progress).result
            reports.append(past_runs.report(told))
    return past_runs.Report(
        tuple(step for report in reports for step in report.steps),
        all(report.whole for report in reports),
        tuple(sentence for report in reports for sentence in report.damage),
        next((report.unlogged for report in reports if report.unlogged), None),
    )


def undo(session: Session, emit: Callable[[Event], None], clock: Callable[[], float], why: str) -> Exit:
    """Take back all that the run did on the host. DONE, or what became of it. Raises RemoteError, Unreachable.

    What one user's journal refuses does not keep the others from being worked off.
    """

    def on_progress(data: Any, body: bytes) -> None:
        if waits := past_runs.waits(data):
            emit(Note(at=clock(), host=session.name, level="warning", message=waits))

    codes, refused = [Exit.DONE], None
    remote = session.remote()
    for user in session.journals():
        watched = session.supervised and user == session.supervisor
        call = core.supervise_revert(session.info.run) if watched else core.journal_rollback(session.info.run, why)
        try:
            told = session.wait(remote.as_user(user).send([call], on_progress=on_progress)[0], None).result
        except RemoteError as error:
            refused = refused or error
            continue
        codes.append(tell_undone(session.name, past_runs.report(told), emit, clock))
    session.supervised = False
    if refused:
        raise refused
    return max(codes)  # DAMAGED before ROLLBACK_FAILED


def tell_undone(host: str, report: past_runs.Report, emit: Callable[[Event], None], clock: Callable[[], float]) -> Exit:
    """Tell each step of a rollback, and what became of it. What cannot be undone by nature is told as such."""
    for step in report.steps:
        emit(UndoStep(at=clock(), host=host, task=step.task, outcome=step.status, message=step.message))
    for sentence in report.damage:
        emit(Note(at=clock(), host=host, level="error", message=f"the journal is damaged: {sentence}"))
    if report.unlogged:
        text = f"this rollback could not be noted in the journal: {report.unlogged}"
        emit(Note(at=clock(), host=host, level="warning", message=text))
    return report.code
