"""Taking back what a run did on a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opsctl.engine import journal
from opsctl.engine.events import Event, Note, UndoStep
from opsctl.engine.session import Session
from opsctl.errors import RemoteError


def undo(session: Session, emit: Callable[[Event], None], clock: Callable[[], float], why: str) -> bool:
    """Take back all that the run did on the host. Whether all could be undone. Raises RemoteError, Unreachable.

    What one user's journal refuses does not keep the others from being worked off.
    """

    def on_progress(data: Any, body: bytes) -> None:
        if waits := journal.waits(data):
            emit(Note(at=clock(), host=session.name, level="warning", message=waits))

    whole, refused = True, None
    remote = session.remote()
    for user in session.journals():
        call = journal.revert(session.info.run) if session.supervised else journal.rollback(session.info.run, why)
        try:
            told = session.wait(remote.as_user(user).send([call], on_progress=on_progress)[0], None).result
        except RemoteError as error:
            refused = refused or error
            continue
        whole = tell_undone(session.name, journal.report(told), emit, clock) and whole
    session.supervised = False
    if refused:
        raise refused
    return whole


def tell_undone(host: str, report: journal.Report, emit: Callable[[Event], None], clock: Callable[[], float]) -> bool:
    """Tell each step of a rollback. Whether everything could be undone."""
    for step in report.steps:
        emit(UndoStep(at=clock(), host=host, task=step.task, outcome=step.status, message=step.message))
    return report.whole
