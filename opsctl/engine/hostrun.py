"""A play on one host, from its first task to its last gate."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from opsctl import modules
from opsctl.engine import gates, past_runs, templating
from opsctl.engine.events import Event, Note, Problem, TaskEnded, TaskProgress, TaskStarted
from opsctl.engine.execute import Doing, TaskUnmet, not_run
from opsctl.engine.prefetch import Prefetch
from opsctl.engine.prepare import Prepared, TaskContext, prepare, renewed
from opsctl.engine.result import Result, together
from opsctl.engine.scope import Layer, Scope
from opsctl.engine.session import Interrupted, Session
from opsctl.engine.tasks import Block, Node, Play, Task
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import OpsctlError, TaskFailed, Unreachable, UsageError
from opsctl.modules.contract import Action
from opsctl.remote.agent_client import Pending
from opsctl.secret import masked
from opsctl.text import few, one_line
from opsctl.wire import masking
from opsctl.wire.calls import core


@dataclass(frozen=True, slots=True)
class PlayOnHost:
    """What a play needs to run on a host.

    Attributes:
        index: the play's number in its playbook.
        chosen: numbers of the tasks that --tags, --skip-tags and --start-at-task leave.
        order: those of them that run when nothing fails, handlers not among them.
        layers: variables of the play and of the host, nearest first.
        given: variables from the command line.
        digest: of the playbook, for checkpoints.
        done: tasks up to this number were done by the run that is resumed; -1: none.
        emit: tells an event; `clock` gives its time.
    """

    play: Play
    index: int
    chosen: frozenset[int]
    order: list[Task]
    around: TaskContext
    layers: tuple[Layer, ...]
    digest: str
    uses_facts: bool
    done: int
    emit: Callable[[Event], None]
    clock: Callable[[], float]


class _Stop(Exception):
    """A task has failed, and nothing around it has caught that."""

    def __init__(self, task: Task, result: Result) -> None:
        super().__init__(task.name)
        self.task, self.result = task, result


@dataclass(slots=True)
class HostRun:
    """Runs one play on one host. Raises what ended it: TaskFailed, GateFailed, Unreachable, Interrupted, UsageError."""

    it: PlayOnHost
    session: Session
    deadline: float | None = None
    failures: list[OpsctlError] = field(default_factory=list)
    _prefetch: Prefetch = field(init=False)
    _label: str = ""  # name of the task in progress
    _ran: bool = False  # it has begun something on the host that may have had effects

    def __post_init__(self) -> None:
        self._prefetch = Prefetch(self.session, self.it.around, self.it.order, self._scope)

    def run(self, lock: str | None) -> None:
        wanted = self.it.uses_facts and "facts" not in self.session.registered
        if wanted:
            self.session.registered["facts"] = Unknown("facts are on their way")
        ready = (
            self._prefetch.prepare(self.it.order[0]) if self.it.order else []
        )  # while the host is being connected to
        first = self.session.open(lock)
        # What depends on facts is observed once they are there.
        facts = self.session.remote().send([core.facts_gather()]) if wanted else None
        self._prefetch.send(ready, after=first[:1] if lock else ())
        if self.session.opened(first, lock):
            self._tell_of_past()
        if facts is not None:
            self._take_facts(facts)
        try:
            self._all()
        except (Unreachable, Interrupted):
            raise
        except OpsctlError as error:
            self._rescue(error)
            raise

    def _all(self) -> None:
        try:
            self._nodes(self.it.play.tasks)
        except _Stop as stop:
            self._save(stop.task.number - 1)
            raise _error(stop) from None
        self._handlers()
        gates.check(self.it.play, self.session, self._scope(), self.it.emit, self.it.clock)
        if self.failures:
            raise self.failures[0]

    def _rescue(self, error: OpsctlError) -> None:
        """What the play wants done before a failure takes its course. It changes nothing about how the host ends."""
        if self.session.info.check or self.session.info.cancelled():
            return
        self.session.registered["failed_task"] = {"name": self._label, "message": error.message}
        self._prefetch.forget()
        for task in self.it.play.rescue:
            try:
                self._task(task)
            except _Stop as stop:
                self._note("warning", f"{stop.task.name}: {stop.result.summary}", None)
            except OpsctlError as second:
                self._note("warning", f"{task.name}: {second.message}", second.hint)
                return

    def _scope(self) -> Scope:
        own = Layer({**self.session.registered, "measures": self.session.measures})
        return Scope((own, *self.it.layers))

    def _nodes(self, nodes: tuple[Node, ...]) -> None:
        for node in nodes:
            if isinstance(node, Block):
                self._block(node)
            elif node.number in self.it.chosen:
                try:
                    self._task(node)
                except _Stop as stop:
                    if self.it.play.keys.on_failure != "continue" or stop.result.status == "unreachable":
                        raise
                    self.failures.append(_error(stop))
                    self.session.left.add(node.number)

    def _block(self, block: Block) -> None:
        try:
            self._nodes(block.body)
        except _Stop as stop:
            if not block.rescue:
                raise
            self.session.registered["failed_task"] = {"name": stop.task.name, "message": stop.result.summary}
            self.session.counts["rescued"] = self.session.counts.get("rescued", 0) + 1
            self._nodes(block.rescue)
        finally:
            if not self.session.info.cancelled():
                self._nodes(block.always)

    def _task(self, task: Task) -> None:
        began = time.monotonic()
        self._label = self._name_of(task)
        if task.number <= self.it.done and task.number not in self.session.left:
            self._ended(task, Result("skipped", "done before this run was resumed"), began)
            return
        self.it.emit(TaskStarted(at=self.it.clock(), host=self.session.name, task=self._label, number=task.number,
                                 module=task.module))  # fmt: skip
        try:
            result = self._result(task)
        except (UsageError, Interrupted) as error:
            if self._ran or isinstance(error, UsageError):
                self._ended(task, Result("failed", self._cut_off(error), error=error), began)
            if isinstance(error, UsageError):
                self._tell_not_run(task)
            self.session.did_something = self.session.did_something or self._ran
            raise
        self.session.did_something = self.session.did_something or result.status != "skipped"
        self._ended(task, result, began)
        if result.changed or result.failed:
            self.session.changed = self.session.changed or result.changed
            self._notify(task, result)
        if task.keys.register_:
            self.session.registered[task.keys.register_] = result.registered()
        self.session.measures.update(result.measures)
        if result.failed:
            raise _Stop(task, result)
        self.session.left.discard(task.number)
        if result.status in ("changed", "ran") and not self.session.info.check:
            self._save(task.number)

    def _cut_off(self, error: OpsctlError) -> str:
        """What is to be said of a task that ended without a result."""
        if isinstance(error, Interrupted):
            return "interrupted after it began; its effects are unknown"
        return f"it ran, and then: {error.message}" if self._ran else error.message

    def _tell_not_run(self, task: Task) -> None:
        """Say which tasks a mistake in the playbook has kept from running."""
        left = [t.name for t in self.it.order if t.number > task.number]
        if left and not self.session.info.check:
            self._note("info", f"not run: {few(left)}", None)

    def _name_of(self, task: Task) -> str:
        """The task's name with its templates rendered, as far as that can be done before it runs."""
        if not templating.is_template(task.name):
            return task.name
        scope = self._scope().over(self.it.around.given, *(Layer(values, at) for values, at in task.variables))
        try:
            return one_line(str(templating.render(task.name, scope, task.at / "name")))
        except (Undecided, OpsctlError):
            return task.name

    def _result(self, task: Task) -> Result:
        seen = self._prefetch.take(task)
        self._ran = False
        try:
            if seen:
                prepared = renewed(seen.prepared, task, self._scope(), self.it.around)
            else:
                prepared = prepare(task, self._scope(), self.it.around)
        except Undecided as error:
            return self._undecided(task, error)
        if prepared.skipped:
            return Result("skipped", prepared.skipped)
        doing = Doing(
            task=task,
            label=self._label,
            session=self.session,
            tell=lambda text, fraction: self._progress(task, text, fraction),
            applied=lambda pending: self._changing(task, pending, prepared),
            reconnected=self._prefetch.forget,
            deadline=self.deadline,
        )
        results: list[Result] = []
        for index, item in enumerate(prepared.items):
            # After the first element has changed something, the others are looked at anew.
            pending = seen.pending[index] if seen and not any(r.changed for r in results) else None
            try:
                results.append(doing.run(item, pending))
            except Undecided as error:
                results.append(self._undecided(task, error))
            finally:
                self._ran = self._ran or doing.ran
            if results[-1].failed:
                break
        module = modules.get(task.module)
        if isinstance(module, Action) and not module.instant and any(r.status != "skipped" for r in results):
            self._acted(task)
        return together(results) if prepared.looped else results[0]

    def _undecided(self, task: Task, error: Undecided) -> Result:
        """How a task ends that depends on what is not known."""
        if not self.session.info.check:
            return Result("failed", f"depends on what is not there: {error.reason}")
        module = modules.get(task.module)
        if isinstance(module, Action) and not module.changes:
            return not_run(module)
        return Result("unknown", f"decided at run time: {error.reason}")

    def _changing(self, task: Task, pending: Pending, prepared: Prepared) -> None:
        """A change is on its way: what comes after it is observed anew, in the same write."""
        self._prefetch.forget()
        if len(prepared.items) == 1 and task.become is None:
            self._prefetch.look(task, after=(pending,), beyond=True)

    def _acted(self, task: Task) -> None:
        """An action that waited or asked something took time, in which the host may have changed."""
        self._prefetch.forget()
        self._prefetch.look(task, beyond=True)

    def _handlers(self) -> None:
        wanted = self.session.notified
        for handler in self.it.play.handlers:
            if handler.name in wanted:
                try:
                    self._task(handler)
                except _Stop as stop:
                    self._save(handler.number - 1)
                    raise _error(stop) from None
                wanted.remove(handler.name)
                self._save(handler.number)

    def _notify(self, task: Task, result: Result) -> None:
        """Handlers that were notified stay so, over failures and over runs, until they have run."""
        if result.changed:
            self.session.notified += [name for name in task.keys.notify if name not in self.session.notified]

    def _save(self, done: int) -> None:
        if not self.session.info.check:
            # What would have to be masked is left out: a resumed run must not take the mask for the value.
            kept = {k: (v, masking.data(masked(v))) for k, v in self.session.registered.items() if k != "facts"}
            registered = {k: plain for k, (v, plain) in kept.items() if plain == v}
            self.session.save(
                {"digest": self.it.digest, "play": self.it.index, "done": max(done, self.it.done),
                 "left": sorted(self.session.left), "registered": registered,
                 "notified": list(self.session.notified), "measures": dict(self.session.measures)}
            )  # fmt: skip

    def _tell_of_past(self) -> None:
        """Say what earlier runs have left unfinished, and take over the handlers that the last such run still owed."""
        past = [p for p in self.session.past or () if p.run != self.session.info.run]
        for message, hint in past_runs.left_behind(past, self.session.info.meta):
            self._note("warning", message, hint)
        last = next((p for p in past if p.playbook == self.session.info.meta.get("playbook")), None)
        if last is None or self.session.resumed:
            return
        mine = {h.name for h in self.it.play.handlers}
        left = [n for n in last.checkpoint.get("notified", ()) if n in mine and n not in self.session.notified]
        if left:
            self.session.notified += left
            self._note("info", f"handlers left over from run {last.run} will run: {', '.join(left)}", None)

    def _take_facts(self, asked: list[Pending]) -> None:
        self.session.registered["facts"] = self.session.wait(asked[0], 120).result
        if self.it.order:
            self._prefetch.look(self.it.order[0])

    def _progress(self, task: Task, text: str, fraction: float | None) -> None:
        self.it.emit(TaskProgress(at=self.it.clock(), host=self.session.name, task=self._label, number=task.number,
                                  text=text, fraction=fraction))  # fmt: skip

    def _ended(self, task: Task, result: Result, began: float) -> None:
        self.session.counts[result.status] = self.session.counts.get(result.status, 0) + 1
        self.it.emit(
            TaskEnded(
                at=self.it.clock(), host=self.session.name, task=self._label, number=task.number, module=task.module,
                place=Problem.at(task.at.place),
                status=result.status, summary=result.summary, seconds=time.monotonic() - began, diffs=result.diffs,
                lines=result.lines, details=result.details, output=result.output, measures=result.measures,
                problem=Problem.of(result.error) if result.error else None,
            )
        )  # fmt: skip

    def _note(self, level: Any, message: str, hint: str | None) -> None:
        self.it.emit(Note(at=self.it.clock(), host=self.session.name, level=level, message=message, hint=hint))


def _error(stop: _Stop) -> OpsctlError:
    """What ended the play; where that is no error of a host, with the task's name and place."""
    error = stop.result.error
    if error is None or isinstance(error, TaskUnmet):
        return TaskFailed(f"{stop.task.name}: {stop.result.summary}", where=stop.task.at.place,
                          hint=error.hint if error else None)  # fmt: skip
    return error
