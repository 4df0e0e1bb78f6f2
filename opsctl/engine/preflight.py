"""What is settled without a host: which tasks run, and every task made ready for every host before one is touched."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Collection
from typing import Any

from opsctl.engine import gates, templating
from opsctl.engine.model import count_of, duration_of, limit_of
from opsctl.engine.prepare import TaskContext, converted, keyword, prepare, scope_of
from opsctl.engine.scope import Layer, Scope
from opsctl.engine.tasks import Play, Task, walk
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import UsageError
from opsctl.text import did_you_mean

_AT_RUN_TIME = ("facts", "measures", "failed_task")


def check(play: Play, chosen: Collection[int], layers: tuple[Layer, ...], around: TaskContext) -> None:
    """Raise UsageError for undefined variables, missing local files, wrong arguments."""
    tasks = play.all_tasks()
    later = {name: Unknown("known at run time") for name in _AT_RUN_TIME}
    made = {t.keys.register_ for t in tasks if t.keys.register_ and t.number in chosen}
    later |= {name: Unknown(f"registered by an earlier task: {name}") for name in made}
    left_out = {t.keys.register_: t.name for t in tasks if t.keys.register_ and t.keys.register_ not in made}
    reasons = {f"{name} is registered by {task!r}": name for name, task in left_out.items()}
    absent = {name: Unknown(reason) for reason, name in reasons.items()}
    scope = Scope((Layer({**later, **absent}), *layers))
    for task in tasks:
        if task.number not in chosen:
            continue
        try:
            _check_keys(task, scope_of(task, scope, around))
            prepare(task, scope, around)
        except Undecided as error:
            if error.reason in reasons:
                raise UsageError(f"{error.reason}, which does not run", where=task.at.place,
                                 hint="leave out --start-at-task or --tags; --resume RUN keeps what was registered",
                                 ) from None  # fmt: skip
    for index, gate in enumerate(play.keys.gates):
        at = play.at / "gates" / index
        try:
            gates.bounds(gate, scope, at)
            if gate.that is not None:
                templating.holds(gate.that, scope, at / "that", "that")
        except Undecided:
            continue


def _check_keys(task: Task, scope: Scope) -> None:
    """Raise UsageError for the keys of a task that are needed only once it runs, as far as they can be told now."""
    own = {"result": Unknown("the task has not run yet"), "item": Unknown("an element of the loop")}
    if task.keys.register_:
        own[task.keys.register_] = own["result"]
    scope = scope.over(Layer(own))
    readers: dict[str, Callable[[Any], Any]] = {"retries": count_of, "delay": duration_of, "timeout": limit_of}
    for key, convert in readers.items():
        with contextlib.suppress(Undecided):
            keyword(task, key, scope, convert)
    if task.keys.supervise:
        with contextlib.suppress(Undecided):
            converted(task.keys.supervise.confirm_within, scope, task.at / "supervise" / "confirm_within", limit_of)
    for key in ("until", "changed_when", "failed_when"):
        if (condition := getattr(task.keys, key)) is not None:
            with contextlib.suppress(Undecided):
                templating.holds(condition, scope, task.at / key, key)


def by_tags(task: Task, tags: Collection[str], skip: Collection[str]) -> bool:
    """Whether `--tags` and `--skip-tags` leave a task. Tasks tagged `always` run in any case, `never` only by name."""
    if task.tags & set(skip):
        return False
    if "never" in task.tags and not task.tags & set(tags):
        return False
    return not tags or bool(task.tags & {*tags, "always"})


def check_tags(plays: Collection[Play], tags: Collection[str]) -> None:
    """Raise UsageError for a tag that no task has."""
    known = {tag for play in plays for task in play.all_tasks() for tag in task.tags}
    for tag in tags:
        if tag not in known:
            raise UsageError(
                f"no task has the tag {tag!r}", hint=did_you_mean(tag, known) if known else "there are no tags"
            )


def start_number(plays: Collection[Play], name: str) -> tuple[int, int]:
    """The play and the number of the task called `name` (or matching it). Raises UsageError."""
    tasks = [(index, task) for index, play in enumerate(plays) for task in walk(play.tasks)]
    for index, task in tasks:
        if task.name == name or fnmatch.fnmatchcase(task.name, name):
            return index, task.number
    raise UsageError(f"there is no task {name!r} to start at", hint=did_you_mean(name, {t.name for _, t in tasks}))
