"""A task made ready for a host: conditions decided, loop unrolled, arguments rendered and checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from opsctl import modules
from opsctl.engine import find, templating
from opsctl.engine.loader import argument_error, raw_fields
from opsctl.engine.scope import Layer, Scope
from opsctl.engine.tasks import Task
from opsctl.engine.templating import At
from opsctl.errors import UsageError
from opsctl.modules.contract import Module, ModuleArgs, Site
from opsctl.wire.protocol import Call

NO_ITEM: Any = object()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Item:
    """A task for one element of its loop (or its only one): what to ask the host, and with which arguments.

    Attributes:
        value: the element, NO_ITEM where the task has no loop.
        calls: observations; empty for actions.
    """

    value: Any
    args: ModuleArgs
    site: Site
    scope: Scope
    calls: tuple[Call[Any], ...]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a task has to do; `skipped` says why it does nothing."""

    items: tuple[Item, ...]
    skipped: str | None = None
    looped: bool = False


@dataclass(frozen=True, slots=True)
class TaskContext:
    """What is the same for all tasks of a play on one host."""

    host: str
    playbook: Path
    check: bool
    given: Layer  # from the command line: stronger than anything in the playbook
    cancelled: Callable[[], bool] = lambda: False


def prepare(task: Task, scope: Scope, around: TaskContext) -> Prepared:
    """Raises UsageError with a place, and Undecided where it depends on what is not known."""
    scope = scope_of(task, scope, around)
    looped = task.keys.loop is not None
    if not looped:
        skipped = _skipped(task, scope)
        return Prepared((), skipped) if skipped else Prepared((_item(task, NO_ITEM, scope, around),))
    # `when` may speak of the element, but what it says without one saves evaluating the loop.
    elements = _elements(task, scope)
    items: list[Item] = []
    skipped = "the loop is empty" if not elements else None
    for element in elements:
        inner = _with_item(scope, element)
        skipped = _skipped(task, inner)
        if not skipped:
            items.append(_item(task, element, inner, around))
    return Prepared(tuple(items), None if items else skipped, looped=True)


def scope_of(task: Task, scope: Scope, around: TaskContext) -> Scope:
    """What the templates of a task may use."""
    return scope.over(around.given, *(Layer(values, at) for values, at in task.variables))


def renewed(prepared: Prepared, task: Task, scope: Scope, around: TaskContext) -> Prepared:
    """A task that was prepared ahead, with what the tasks between have registered meanwhile."""
    scope = scope_of(task, scope, around)
    items = (
        replace(item, scope=scope if item.value is NO_ITEM else _with_item(scope, item.value))
        for item in prepared.items
    )  # fmt: skip
    return replace(prepared, items=tuple(items))


def _with_item(scope: Scope, element: Any) -> Scope:
    return scope.over(Layer({"item": element}))


def _skipped(task: Task, scope: Scope) -> str | None:
    for condition, at in task.conditions:
        if not templating.holds(condition, scope, at, "when"):
            return f"not so: {condition}" if isinstance(condition, str) else "a condition does not hold"
    return None


def _elements(task: Task, scope: Scope) -> list[Any]:
    loop, at = task.keys.loop, task.at / "loop"
    elements = templating.evaluate(loop, scope, at) if isinstance(loop, str) else templating.render(loop, scope, at)
    if isinstance(elements, str | Mapping) or not isinstance(elements, Sequence):
        kind = type(elements).__name__
        raise UsageError(f"`loop` needs a list, and this is a {kind}", where=at.place,
                         hint="for a mapping: loop: \"{{ name | dictsort }}\"")  # fmt: skip
    return list(elements)


def _item(task: Task, element: Any, scope: Scope, around: TaskContext) -> Item:
    module = modules.get(task.module)
    raw = raw_fields(task.module)
    rendered = {
        key: value if key in raw else templating.render(value, scope, task.at_args / key)
        for key, value in task.args.items()
    }
    try:
        args = module.args.model_validate(rendered)
    except ValidationError as error:
        raise argument_error(error, task) from None
    site = site_for(task.at_args, scope, around)
    try:
        calls = tuple(module.observe(args, site)) if isinstance(module, Module) else ()
    except UsageError as error:
        error.where = error.where or task.at_args.place
        raise
    return Item(element, args, site, scope, calls)


def site_for(at: At, scope: Scope, around: TaskContext) -> Site:
    """What the module of a task that stands at `at` may know."""
    return Site(
        host=around.host,
        variables=scope,
        find=lambda kind, path: find.file(kind, path, around.playbook),
        render=lambda text, name: templating.render_text(text, scope, name),
        evaluate=lambda expression: templating.evaluate(expression, scope, at),
        check=around.check,
        cancelled=around.cancelled,
    )


def keyword(task: Task, key: str, scope: Scope, convert: Callable[[Any], Any]) -> Any:
    """The value of a task key that may be a template (`timeout: "{{ limit }}"`). Raises UsageError, Undecided."""
    value = getattr(task.keys, key)
    if not templating.is_template(value):
        return value
    return converted(value, scope, task.at / key, convert)


def converted(value: Any, scope: Scope, at: At, convert: Callable[[Any], T]) -> T:
    """A value that may be a template, as what it means; convert raises ValueError. Raises UsageError, Undecided."""
    text = templating.render(value, scope, at)
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"{at.path[-1]}: {error}", where=at.place) from None
