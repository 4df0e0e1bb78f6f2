"""One task on one host, and the host as a task sees it: observe, plan, apply; try again; wait until."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from opsctl import modules
from opsctl.engine import past_runs, templating
from opsctl.engine.events import Status
from opsctl.engine.model import count_of, duration_of, limit_of
from opsctl.engine.prepare import Item, converted, keyword
from opsctl.engine.result import Result, not_seen
from opsctl.engine.scope import Layer
from opsctl.engine.session import Interrupted, Session, pause
from opsctl.engine.tasks import Task
from opsctl.engine.unknown import Undecided
from opsctl.errors import Conflict, OpsctlError, RemoteError, TaskFailed, Unreachable, UsageError
from opsctl.modules.contract import Action, Change, Module
from opsctl.remote import steps
from opsctl.remote.agent_client import Pending
from opsctl.wire.calls import core
from opsctl.wire.calls.core import PutBack, StepReplies, Supervised
from opsctl.wire.host import Host, OnProgress, RawResult
from opsctl.wire.protocol import Call, R, Reply

if TYPE_CHECKING:
    import fabric
    import httpx

    from opsctl.remote.host import RemoteHost
    from opsctl.remote.parts import Sending

OBSERVING = 120.0  # seconds that an observation may take when the task sets no timeout


@dataclass(slots=True)
class Doing:
    """A task in progress on a host.

    Attributes:
        label: its name, as people see it.
        tell: shows progress: a line, and a fraction where one is known.
        reconnected: called after the connection was made anew: what was under way on the old one is lost.
        applied: called as soon as a change has been sent, so that what follows can be observed in the same write.
        deadline: when the play's time on this host is over, by the monotonic clock.
    """

    task: Task
    label: str
    session: Session
    tell: Callable[[str, float | None], None]
    applied: Callable[[Pending], None]
    reconnected: Callable[[], None]
    deadline: float | None = None
    _changing: bool = False  # the attempt has gone beyond looking
    ran: bool = False  # something was begun on the host that may have had effects

    def run(self, item: Item, seen: Sequence[Pending] | None) -> Result:
        """Run the task for one element, with its retries. `seen`: observations that are under way already."""
        keys = self.task.keys
        retries = keyword(self.task, "retries", item.scope, count_of)
        retries = (3 if keys.until is not None else 0) if retries is None else retries
        delay = keyword(self.task, "delay", item.scope, duration_of)
        for attempt in range(retries + 1):
            result = self._through(item, seen if attempt == 0 else None)
            if not self._again(result, item) or attempt == retries or self.session.info.check:
                break
            self.tell(f"attempt {attempt + 1} of {retries + 1}: {result.summary}", None)
            pause(delay, self.session.info.cancelled, self.session.name)
            if result.status == "unreachable":
                self._reconnect()
        else:
            raise AssertionError("a task runs at least once")
        if not result.failed and result.status != "unknown" and self._again(result, item):
            return self._failed(
                TaskUnmet(f"`until` does not hold after {retries + 1} attempts", where=self.task.at.place)
            )
        return result

    def _through(self, item: Item, seen: Sequence[Pending] | None) -> Result:
        """One attempt, begun anew after a lost connection where a supervised change waits for us and we only looked."""
        result = self._once(item, seen)
        there = False
        while result.status == "unreachable" and not self._changing:
            if self.session.answers():
                if there:
                    return self._failed(TaskUnmet(result.summary, where=self.session.name))
                there = True
            elif self.session.supervised:
                try:
                    self._regain()
                except Unreachable as error:
                    return Result("unreachable", error.message, error=error)
            else:
                break
            result = self._once(item, None)
        return result

    def _reconnect(self) -> bool:
        """Try to connect again. Whether that was possible."""
        try:
            self.session.reconnect()
        except OpsctlError as error:
            self.tell(f"connecting again: {error.message}", None)
            return False
        self.reconnected()
        return True

    def _again(self, result: Result, item: Item) -> bool:
        if result.status in ("failed", "unreachable"):
            return True
        if self.task.keys.until is None or result.status == "unknown":
            return False
        return not templating.holds(self.task.keys.until, self._with(result, item), self.task.at / "until", "until")

    def _with(self, result: Result, item: Item) -> Any:
        values = {"result": result.registered()}
        if self.task.keys.register_:
            values[self.task.keys.register_] = values["result"]
        return item.scope.over(Layer(values))

    def _check_cancelled(self) -> None:
        if self.session.info.cancelled():
            raise Interrupted("stopped", where=self.session.name)

    def _once(self, item: Item, seen: Sequence[Pending] | None) -> Result:
        """One attempt; what goes wrong on the host is a result, what the user wrote wrongly is raised."""
        self._check_cancelled()
        timeout = keyword(self.task, "timeout", item.scope, limit_of)
        if self.deadline is not None:
            left = max(0.1, self.deadline - time.monotonic())
            timeout = left if timeout is None else min(timeout, left)
        module = modules.get(self.task.module)
        self._changing = isinstance(module, Action) and not module.read_only
        try:
            if isinstance(module, Action):
                result = self._act(module, item, timeout)
            else:
                result = self._bring_about(module, item, seen, timeout)
        except Undecided as error:
            result = Result("unknown", error.reason)
        except Interrupted:
            raise
        except UsageError as error:
            self._check_cancelled()
            error.where = error.where or self.task.at.place
            raise
        except Unreachable as error:
            result = Result("unreachable", error.message, error=error)
        except OpsctlError as error:
            self._check_cancelled()
            result = self._failed(error)
        return self._judged(result, item)

    def _failed(self, error: OpsctlError) -> Result:
        if self.session.info.check and self.session.changed and isinstance(error, RemoteError):
            return Result("unknown", f"depends on changes above: {error.message}")
        return Result("failed", error.message, _values(error), error=error)

    def _judged(self, result: Result, item: Item) -> Result:
        """`failed_when` and `changed_when` have the last word."""
        keys, scope = self.task.keys, None
        if result.status == "unknown" and keys.changed_when is False:
            return not_seen(f"check mode does not run it; it counts as no change ({result.summary})")
        if result.status in ("unknown", "unreachable") or result.unseen:
            return result
        if keys.failed_when is not None:
            scope = self._with(result, item)
            if templating.holds(keys.failed_when, scope, self.task.at / "failed_when", "failed_when"):
                result.status = "failed"
                result.error = result.error or TaskUnmet("`failed_when` holds", where=self.task.at.place)
                result.summary = result.summary or "`failed_when` holds"
            elif result.status == "failed":
                result.status, result.error = "ran" if self.ran else "ok", None
        if keys.changed_when is not None and not result.failed:
            scope = scope or self._with(result, item)
            changed = templating.holds(keys.changed_when, scope, self.task.at / "changed_when", "changed_when")
            result.status = "changed" if changed else "ok"
        return result

    def _act(self, action: Action[Any], item: Item, timeout: float | None) -> Result:
        check = self.session.info.check
        if check and not action.reads_only(item.args):
            return not_run(action)
        self.ran = not action.reads_only(item.args)
        host = Watched(self.session.user(self.task.become), self.session, timeout)
        outcome = action.run(item.args, host, item.site, self.tell)
        if outcome.at_end and not check:
            self.session.at_end.append(outcome.at_end)
        result = Result(
            "ok", "", dict(outcome.values), lines=outcome.lines, details=outcome.details,
            measures=dict(outcome.measures),
        )  # fmt: skip
        if outcome.failed is not None:
            if check and self.session.changed and host.asked:
                return Result("unknown", f"depends on changes above: {outcome.failed}")
            result.status, result.summary = "failed", outcome.failed
            result.error = TaskUnmet(outcome.failed, where=self.session.name, hint=outcome.hint)
        return result

    def _bring_about(
        self, module: Module[Any], item: Item, seen: Sequence[Pending] | None, timeout: float | None
    ) -> Result:
        for last in (False, True):
            replies = self._observe(item, seen, timeout)
            change = module.plan(item.args, replies, replace(item.site, made=self.session.made))
            if change is None:
                values = module.result(item.args, replies, None, item.site)
                return Result("ok", module.remark(item.args, replies), values)
            if self.session.info.check:
                return self._would(module, item, replies, change)
            try:
                moved = self._transfer(change, timeout)
                done = self._apply(change, item, timeout)
            except Conflict:
                # Somebody changed it between our look and our change: look again, once.
                if last:
                    raise
                seen = None
                continue
            values = {**change.values, **moved, **module.result(item.args, replies, done, item.site)}
            return Result(_status(change, values), change.summary, values, change.diffs, lines=_warnings(done))
        raise AssertionError("the second conflict is raised")

    def _would(self, module: Module[Any], item: Item, replies: list[Reply[Any]], change: Change) -> Result:
        if change.harmless is not None:
            return not_seen(change.harmless)
        if change.unknown is not None:
            return Result("unknown", change.unknown, diffs=change.diffs)
        self.session.made |= change.makes
        values = {**change.values, **module.result(item.args, replies, None, item.site)}
        return Result("changed", change.summary, values, change.diffs, predicted=True)

    def _observe(self, item: Item, seen: Sequence[Pending] | None, timeout: float | None) -> list[Reply[Any]]:
        if seen is None:
            seen = self.session.user(self.task.become).send(item.calls) if item.calls else ()
        return [
            self.session.wait(pending, timeout or OBSERVING, unless_stopped=True, to_the_end=False) for pending in seen
        ]

    def _transfer(self, change: Change, timeout: float | None) -> Mapping[str, Any]:
        if change.transfer is None:
            return {}
        host = Watched(self.session.user(self.task.become), self.session, timeout)
        return change.transfer(host, self._tell_unless_stopped)

    def _apply(self, change: Change, item: Item, timeout: float | None) -> list[Reply[Any]]:
        within = None
        if self.task.keys.supervise:
            said = self.task.keys.supervise.confirm_within
            at = self.task.at / "supervise" / "confirm_within"
            within = converted(said, item.scope, at, limit_of)
        self._changing = self.ran = True
        sent = self.session.apply(self.task.become, self.label, change, within, self._progress())
        self.applied(sent)
        try:
            reply = self.session.wait(sent, timeout, unless_stopped=True)
        except Unreachable:
            if within is None:
                raise
            reply = self._follow(timeout)
        state: Supervised | StepReplies = reply.result
        if state.get("state") == "reverted":
            raise Reverted.of(cast(PutBack, state), self.session.name)
        if change.after:
            self.session.after.append((self.task.become, self.label, change.after))
        return steps.replies(reply)

    def _tell_unless_stopped(self, text: str, fraction: float | None) -> None:
        """Progress of what leaves nothing visible and goes on where it was cut: Ctrl-C need not wait for its end."""
        self._check_cancelled()
        self.tell(text, fraction)

    def _follow(self, timeout: float | None) -> Reply[Any]:
        """Listen again to a supervised change after the connection was lost: it goes on without us."""
        while True:
            self._regain()
            sent = self.session.watched().send(
                [core.supervise_follow(self.session.info.run)], on_progress=self._progress()
            )
            try:
                return self.session.wait(sent[0], timeout, unless_stopped=True)
            except Unreachable:
                continue

    def _regain(self) -> None:
        self.session.regain(lambda text: self.tell(text, None))
        self.reconnected()

    def _progress(self) -> OnProgress:
        def on_progress(data: Any, body: bytes) -> None:
            text, fraction = progress_of(data, body)
            if text:
                self.tell(text, fraction)

        return on_progress


def not_run(action: Action[Any]) -> Result:
    """How an action ends that check mode cannot run: one that changes nothing does not make it less certain."""
    if action.changes:
        return Result("unknown", "check mode does not run this")
    return not_seen("check mode does not run this: it changes nothing, and looks at what the run brings about")


def _values(error: OpsctlError) -> dict[str, Any]:
    """What a failure tells of the command that failed, for `register` and `failed_when`."""
    told = error.fields if isinstance(error, RemoteError) else error.values if isinstance(error, TaskFailed) else {}
    return {key: told[key] for key in ("code", "stdout", "stderr", "seconds", "dropped") if key in told}


def progress_of(data: Any, body: bytes) -> tuple[str, float | None]:
    """A progress frame of a call as a line for people, and how far it is."""
    if not isinstance(data, dict):
        return (str(data) if data else ""), None
    if "data" in data:
        return progress_of(data["data"], body)  # from a supervised step
    fraction = data.get("fraction")
    text = data.get("text") or data.get("line") or body.decode("utf-8", "replace").rstrip("\n").rpartition("\n")[2]
    return str(text), fraction if isinstance(fraction, int | float) else None


class Reverted(OpsctlError):
    """The host has taken a supervised change back, and with it the whole run."""

    report: past_runs.Report

    @classmethod
    def of(cls, told: PutBack, host: str) -> Reverted:
        reason = told["error"]["message"] if told["error"] else told["why"]
        error = cls(f"the host has put everything back: {reason}", where=host)
        error.report = past_runs.report(told["report"])
        return error


class TaskUnmet(OpsctlError):
    """A task ran, and what it found is not what was asked for."""


def _warnings(done: Sequence[Reply[Any]]) -> tuple[str, ...]:
    """What calls say that people should know, such as what an undo will not bring back."""
    said = (reply.result.get("warning") for reply in done if isinstance(reply.result, dict))
    return tuple(f"warning: {text}" for text in said if text)


def _status(change: Change, values: dict[str, Any]) -> Status:
    """A module may know that its calls changed nothing; of a command without a guard one knows only that it ran."""
    if values.get("changed") is False:
        return "ok"
    return "ran" if change.unknown is not None else "changed"


CLEANING_UP = 10.0  # seconds


class Watched(Host):
    """A host as a task sees it: every wait ends with the task's time and with Ctrl-C. Notes whether it was asked."""

    def __init__(self, remote: RemoteHost, session: Session, timeout: float | None, *, stoppable: bool = True) -> None:
        self._remote, self._session, self._stoppable = remote, session, stoppable
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.asked = False

    @property
    def name(self) -> str:
        return self._remote.name

    def call(self, call: Call[R], *, timeout: float | None = None, on_progress: OnProgress | None = None) -> Reply[R]:
        return self.send([call], on_progress=on_progress)[0].wait(timeout)

    def batch(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any]]:
        return [sent.wait(timeout) for sent in self.send(calls)]

    def outcomes(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any] | OpsctlError]:
        found: list[Reply[Any] | OpsctlError] = []
        for sent in self.send(calls):
            try:
                found.append(sent.wait(timeout))
            except Unreachable:
                raise
            except OpsctlError as error:
                self.check()
                found.append(error)
        return found

    def send(self, calls: Sequence[Call[Any]], *, on_progress: OnProgress | None = None) -> list[_Sent]:
        self.check()
        return [_Sent(self, pending) for pending in self._remote.send(calls, on_progress=on_progress)]

    def sending(self, size: int) -> Sending:
        from opsctl.remote.parts import Sending, is_far  # only where something is sent

        return Sending(self._remote, size, far=bool(size) and is_far(self), check=self.check)

    def cleaning_up(self) -> Watched:
        return Watched(self._remote, self._session, CLEANING_UP, stoppable=False)

    def raw(self, command: str, *, timeout: float = 60.0) -> RawResult:
        self.check()
        try:
            return self._remote.raw(command, timeout=timeout, check=self.check)
        except TimeoutError:
            raise RemoteError(f"no end within {timeout:g} s", kind="timeout", where=self.name) from None

    def http(self, port: int) -> httpx.Client:
        self.check()
        return self._remote.http(port, self.check)

    def fabric(self, timeout: float | None = None) -> fabric.Connection:
        self.check()
        return self._remote.fabric(self._limit(timeout))

    def check(self) -> None:
        """Raise Interrupted once the run is stopped, RemoteError once the task's time is over."""
        self.asked = True
        if self._stoppable and self._session.info.cancelled():
            raise Interrupted("stopped", where=self.name)
        if self._deadline is not None and time.monotonic() >= self._deadline:
            raise RemoteError("the task's time is over", kind="timeout", where=self.name)

    def wait(self, pending: Pending, timeout: float | None) -> Reply[Any]:
        """The reply of a call that was sent."""
        return self._session.wait(pending, self._limit(timeout), unless_stopped=self._stoppable, to_the_end=False)

    def _limit(self, timeout: float | None) -> float | None:
        if self._deadline is None:
            return timeout
        left = max(0.1, self._deadline - time.monotonic())
        return left if timeout is None else min(timeout, left)


@dataclass(frozen=True, slots=True)
class _Sent:
    host: Watched
    pending: Pending

    def wait(self, timeout: float | None = None) -> Reply[Any]:
        return self.host.wait(self.pending, timeout)
