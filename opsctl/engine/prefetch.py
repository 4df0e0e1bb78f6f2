"""Observations made ahead of their tasks, all in one round trip.

Every task whose arguments do not depend on what an earlier one registers is prepared and its observations are sent at
once. They hold until something on the host has changed; then they are made again, in the same write as the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from opsctl import modules
from opsctl.engine.prepare import Prepared, TaskContext, prepare
from opsctl.engine.scope import Layer, Scope
from opsctl.engine.session import Session
from opsctl.engine.tasks import Task
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import OpsctlError, Unreachable
from opsctl.modules.contract import Module
from opsctl.remote.agent_client import Pending

Ready = tuple[Task, Prepared]

_MOST_CALLS = 500  # at a time; a play with more than that is observed in parts


@dataclass(frozen=True, slots=True)
class Seen:
    """A task that was prepared ahead: for each of its items, the observations that are under way."""

    prepared: Prepared
    pending: tuple[tuple[Pending, ...], ...]


class Prefetch:
    """Observations under way for the tasks in `order`."""

    def __init__(self, session: Session, around: TaskContext, order: list[Task], scope: Callable[[], Scope]) -> None:
        self._session, self._around, self._order, self._scope = session, around, order, scope
        self._position = {task.number: index for index, task in enumerate(order)}
        self._seen: dict[int, Seen] = {}

    def take(self, task: Task) -> Seen | None:
        """What was prepared for `task`, if it was."""
        return self._seen.pop(task.number, None)

    def forget(self) -> None:
        """Something has changed: what was seen may not hold any more."""
        self._seen.clear()

    def look(self, first: Task, after: Iterable[Pending] = (), *, beyond: bool = False) -> None:
        """Observe for `first` (with `beyond`: for those behind it) and all later tasks that can be prepared now."""
        self.send(self.prepare(first, beyond=beyond), after)

    def prepare(self, first: Task, *, beyond: bool = False) -> list[Ready]:
        """As `look`, but for asking the host: what this takes of the controller can be done while it connects."""
        start = self._position.get(first.number)
        if start is None:
            return []
        unknown: dict[str, Unknown] = {}
        ready: list[Ready] = []
        calls = 0
        for index, task in enumerate(self._order[start:]):
            skip = (beyond and index == 0) or task.number in self._seen
            module = modules.get(task.module)
            if isinstance(module, Module) and module.costly and beyond and index > 1:
                skip = True  # until it is next: what comes before may change the host again
            if not skip and isinstance(module, Module):
                prepared = self._prepared(task, unknown)
                if prepared is not None:
                    ready.append((task, prepared))
                    calls += sum(len(item.calls) for item in prepared.items)
            if task.keys.register_:
                unknown[task.keys.register_] = Unknown("registered by an earlier task")
            if calls > _MOST_CALLS:
                break
        return ready

    def _prepared(self, task: Task, unknown: dict[str, Unknown]) -> Prepared | None:
        scope = self._scope().over(Layer(dict(unknown))) if unknown else self._scope()
        try:
            return prepare(task, scope, self._around)
        except (Undecided, OpsctlError):
            # What is wrong is told when its turn comes: it may never come.
            return None

    def send(self, ready: list[Ready], after: Iterable[Pending] = ()) -> None:
        """Ask the host for what `prepare` found."""
        after = tuple(after)
        by_user: dict[bool | str | None, list[Ready]] = {}
        for task, prepared in ready:
            by_user.setdefault(task.become, []).append((task, prepared))
        for become, tasks in by_user.items():
            calls = [call for _, prepared in tasks for item in prepared.items for call in item.calls]
            # A call of one agent cannot wait for a call of another: those of other users look once it is their turn.
            if after and become is not None and self._session.user(become) is not self._session.remote():
                continue
            try:
                sent = iter(self._session.user(become).send(calls, after=after) if calls else ())
            except Unreachable:
                continue  # noticed by those who need an answer
            for task, prepared in tasks:
                pending = tuple(tuple(next(sent) for _ in item.calls) for item in prepared.items)
                self._seen[task.number] = Seen(prepared, pending)
