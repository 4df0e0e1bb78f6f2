"""One host during a run: its connection, its lock, its journal, and what the run has learnt about it."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from opsctl.engine import hostlock, past_runs
from opsctl.engine.connections import Connected
from opsctl.errors import AuthFailed, Exit, HostKeyError, Locked, OpsctlError, RemoteError, Unreachable
from opsctl.inventory import InventoryHost
from opsctl.modules.contract import Change
from opsctl.remote import steps
from opsctl.remote.agent_client import Pending
from opsctl.remote.host import RemoteHost, connect
from opsctl.wire.calls import core
from opsctl.wire.calls.core import Checkpoint, RunMeta, Taken
from opsctl.wire.host import OnProgress
from opsctl.wire.protocol import Call, Reply

LOST_AGENT = 60.0  # seconds until an agent whose connection is gone has certainly noticed
REGAIN_AFTER = (0.5, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds before each attempt to find a lost host again


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What is the same on all hosts of a run. `meta` goes into the journals, secrets masked; `become`: as tasks say."""

    run: str
    meta: RunMeta
    check: bool
    cancelled: Callable[[], bool]
    lock_wait: float
    become: frozenset[bool | str] = frozenset()
    secrets: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by host: what its agents are to mask


@dataclass(slots=True)
class Session:
    """State of one host; used by one thread at a time.

    Attributes:
        registered: variables from `register`, over all plays of the run.
        began: the call that began the run in a user's journal (None: the login user's), in that order.
        token: tells our agents' locks from everybody else's.
        supervisor: the user in whose journal a supervised change stands.
        notified: handlers that are to run.
        left: numbers of tasks of this play that failed where the play went on: not done, though later ones are.
        supervised: the host waits for us to confirm.
        did_something: a task has done something on the host, be it only to look.
        resumed: the run was begun on this host before.
        after: what changes want done once the run has ended well: as whom, the task, the calls.
        at_end: what actions want to be told of how the run has ended.
    """

    host: InventoryHost
    info: RunInfo
    connecting: Future[Connected]
    registered: dict[str, Any] = field(default_factory=dict)
    measures: dict[str, float] = field(default_factory=dict)
    began: dict[str | None, Pending] = field(default_factory=dict)
    notified: list[str] = field(default_factory=list)
    left: set[int] = field(default_factory=set)
    past: list[past_runs.PastRun] | None = None  # what its journal tells of earlier runs, once asked
    counts: dict[str, int] = field(default_factory=dict)
    lock: str | None = None  # the lock that is held
    token: str = field(default_factory=partial(secrets.token_hex, 8))
    supervised: bool = False
    supervisor: str | None = None
    did_something: bool = False
    resumed: bool = False
    changed: bool = False  # something has changed, or in check mode would
    made: set[str] = field(default_factory=set)  # folders that would be there by now, in check mode
    seq: int = 0
    after: list[tuple[bool | str | None, str, tuple[Call[Any], ...]]] = field(default_factory=list)
    at_end: list[Callable[[str], object]] = field(default_factory=list)
    saving: list[Pending] = field(default_factory=list)  # the last checkpoint that was sent
    current: list[Pending] = field(default_factory=list)  # what is being waited for, to cancel on Ctrl-C
    guard: threading.Lock = field(default_factory=threading.Lock)

    @property
    def name(self) -> str:
        return self.host.name

    def remote(self) -> RemoteHost:
        """The connected host, which knows what to mask. Raises Unreachable."""
        remote = self.connecting.result().remote
        remote.tell_secrets(self.info.secrets.get(self.name, ()))
        return remote

    def user(self, become: bool | str | None) -> RemoteHost:
        """The host as the user that a task wants to be."""
        return self.remote() if become is None else self.remote().as_user(self._name_of(become))

    def _name_of(self, become: bool | str | None) -> str | None:
        """The user whose agent does a task's work; None: the one we logged in as."""
        if become is None:
            return self.remote().spec.become
        return {True: "root", False: None}[become] if isinstance(become, bool) else become

    @property
    def users(self) -> list[str | None]:
        """The users that tasks become, other than the one as whom everything else is done."""
        others = {self._name_of(become) for become in self.info.become} - {self._name_of(None)}
        return sorted(others, key=str)

    def watched(self) -> RemoteHost:
        """The host as the user whose supervisor carries a change through."""
        return self.remote().as_user(self.supervisor)

    def open(self, lock: str | None) -> list[Pending]:
        """Take the lock and ask for unfinished runs, without waiting: observations may follow at once."""
        remote = self.remote()
        first: list[Pending] = []
        if lock and not self.lock:
            first += remote.send([self._take(lock, self.info.lock_wait)])
        if not self.info.check and self.past is None:
            first += remote.send([core.history_list(10, checkpoints=True)])
        return first

    def opened(self, first: list[Pending], lock: str | None) -> bool:
        """Wait for the answers to `open`; whether there is news of earlier runs. Raises Locked."""
        if lock and not self.lock:
            try:
                self.wait(first.pop(0), self.info.lock_wait + 60)
                self.lock = lock
                self._lock_others(lock, self.info.lock_wait)
            except Locked as error:
                self._explain(error, first)
                raise
        if first:
            self.past = past_runs.past_runs(self.wait(first[0], 60))
            return True
        return False

    def _explain(self, error: Locked, first: list[Pending]) -> None:
        """Say what can be done where nobody is there any more to let go of the lock."""
        runs = past_runs.past_runs(self.wait(first[0], 60)) if first else ()
        holder = next((past for past in runs if past.run == error.holder.get("run")), None)
        if holder and holder.state == "supervised" and not holder.attended:
            error.message += "; that run waits to be confirmed, and its operator is gone"
            error.hint = f"opsctl rollback {holder.run} takes it back now, else the host does so when its time is over"

    def _lock_others(self, lock: str, wait: float) -> None:
        """Take the locks of the users that tasks become: what is theirs is changed, whoever logs in. Raises Locked."""
        for user in self.users:
            agent = self.remote().as_user(user)
            self.wait(agent.send([self._take(lock, wait)])[0], wait + 60)

    def _take(self, lock: str, wait: float) -> Call[Taken]:
        return hostlock.take(self.info.meta, self.token, wait, lock, self.host)

    def reconnect(self) -> None:
        """Connect again after the connection was lost, and go on with the run where it was. Raises Unreachable, Locked.

        The agent of the lost connection may live on for a while, with our lock in its hands. A supervisor keeps lock
        and run to itself: then there is nothing to take.
        """
        old = self.connecting.result().remote
        old.close()
        again = connect(self.host.connection(), self.info.cancelled)
        self.connecting = Future()
        self.connecting.set_result(Connected(again, 0.0))
        remote = self.remote()
        self.token = secrets.token_hex(8)
        self.saving.clear()
        if self.supervised:
            return
        if self.lock:
            self.wait(remote.send([self._take(self.lock, LOST_AGENT)])[0], LOST_AGENT + 60)
            self._lock_others(self.lock, LOST_AGENT)
        for user in self.journals():
            try:
                self.wait(remote.as_user(user).send([core.journal_begin(self.info.run, {}, resume=True)])[0], 60)
            except RemoteError as error:
                if error.kind != "invalid":  # it was rolled back before the connection was lost
                    raise

    def answers(self) -> bool:
        """Whether the host is there: what seemed lost may have been a server on it."""
        try:
            self.wait(self.remote().send([core.lock_show()])[0], 10)
        except Unreachable:
            return False
        except RemoteError as error:
            return error.kind != "timeout"
        return True

    def regain(self, tell: Callable[[str], None], attempts: int = len(REGAIN_AFTER)) -> None:
        """Connect again, patiently. Raises Unreachable, Locked, Interrupted."""
        pause(0, self.info.cancelled, self.name)
        tell("the connection was lost; connecting again")
        for seconds in REGAIN_AFTER[:attempts]:
            pause(seconds, self.info.cancelled, self.name)
            try:
                self.reconnect()
            except (AuthFailed, HostKeyError):
                raise  # trying again will not help
            except Unreachable as error:
                tell(f"connecting again: {error.message}")
            else:
                return
        raise Unreachable("the connection was lost, and the host cannot be reached again", where=self.name)

    def go_on(self, lock: str | None, users: Sequence[str | None]) -> None:
        """Take up a run that stands in the journals of these users of the host. Raises Locked."""
        self.resumed = True
        if self.info.check:
            return
        for user in users:
            begun = self.remote().as_user(user).send([core.journal_begin(self.info.run, {}, resume=True)])[0]
            supervised = self.wait(begun, 60).result["supervised"]
            self.began[user] = begun
            if supervised:
                self.supervised, self.supervisor, self.lock = True, user, lock  # which its supervisor holds

    def wait(
        self, pending: Pending, timeout: float | None, *, unless_stopped: bool = False, to_the_end: bool = True
    ) -> Reply[Any]:
        """The reply of a call; Ctrl-C cancels it meanwhile, and `unless_stopped` also if it came before.

        to_the_end: wait for its answer even then, as of a change; else it is given up soon after.
        """
        with self.guard:
            self.current.append(pending)
        try:
            if unless_stopped and self.info.cancelled():  # after it was sent, before `cancel` could see it
                pending.cancel()
            return pending.wait(timeout, None if to_the_end else self._stopped)
        except OpsctlError as error:
            error.where = error.where or self.name
            raise
        finally:
            with self.guard:
                self.current.remove(pending)

    def _stopped(self) -> bool:
        return self.info.cancelled()

    def cancel(self) -> None:
        """Ask the host to give up what it is doing. Called from another thread."""
        with self.guard:
            waiting = list(self.current)
        for pending in waiting:
            pending.cancel()

    def apply(
        self,
        become: bool | str | None,
        task: str,
        change: Change,
        confirm_within: float | None,
        on_progress: OnProgress,
    ) -> Pending:
        """Send a change, journaled, without waiting for its end. Its answer is for `steps.replies`."""
        remote = self.user(become)
        first = self._begin(become)
        self.seq += 1
        how = (self.info.run, self.seq, task, change.calls, change.undo, change.settle)
        if confirm_within is None:
            call = steps.apply(*how, change.shown)
            return remote.send([call], after=first, on_progress=on_progress)[0]
        supervised = steps.supervise(*how, confirm_within, change.shown)
        sent = remote.send([supervised], after=first, on_progress=on_progress)[0]
        self.supervised, self.supervisor = True, self._name_of(become)
        return sent

    def _begin(self, become: bool | str | None) -> list[Pending]:
        """Begin the run in the journal of this user, if that was not done yet.

        It always stands in that of the user as whom we came, which says in whose journals it may stand besides.
        """
        meta: RunMeta = {**self.info.meta, "host": self.name, "users": self.users}
        sent: list[Pending] = []
        for user in (self._name_of(None), self._name_of(become)):
            if user not in self.began:
                sent = self.remote().as_user(user).send([core.journal_begin(self.info.run, meta, resume=self.resumed)])
                self.began[user] = sent[0]
        return sent

    def journals(self) -> list[str | None]:
        """Users in whose journals the run stands, the last one first."""
        return [u for u, begun in reversed(self.began.items()) if not isinstance(begun.outcome, OpsctlError)]

    def save(self, data: Checkpoint) -> None:
        """Write a checkpoint, without waiting for it. A lost connection is for those to notice who need an answer."""
        if self.began:
            with contextlib.suppress(Unreachable):
                # Calls run side by side: an earlier checkpoint must not overtake this one.
                self.saving = self.remote().send([core.journal_checkpoint(self.info.run, data)], after=self.saving)

    def finish(self, outcome: str, why: str | None) -> None:
        """Note in the journals how the run ended, and let go of the lock. Raises RemoteError, Unreachable.

        Whoever comes next, at once, must not meet us: closing the connection ends the agent only in a while.
        """
        remote = self.remote()
        users = self.journals()
        sent = [remote.as_user(user).send([core.journal_finish(self.info.run, outcome, why)])[0] for user in users]
        for user in (self._name_of(None), *self.users) if self.lock else ():
            sent += remote.as_user(user).send([hostlock.release(str(self.lock))])
        for pending in sent:
            self.wait(pending, 60)
        self.began.clear()
        self.lock = None

    def close(self) -> None:
        if self.connecting.done() and not self.connecting.cancelled() and not self.connecting.exception():
            self.connecting.result().remote.close()


TICK = 0.2


class Interrupted(OpsctlError):
    """The user stopped the run."""

    exit_code = Exit.INTERRUPTED


def pause(seconds: float, cancelled: Callable[[], bool], host: str) -> None:
    """Wait. Raises Interrupted once the run is stopped."""
    end = time.monotonic() + seconds
    while True:
        if cancelled():
            raise Interrupted("stopped", where=host)
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(TICK, left))
