"""Which variables a play uses, and where."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes

from opsctl import modules
from opsctl.engine import find, templating
from opsctl.engine.loader import raw_fields
from opsctl.engine.tasks import Play, Task
from opsctl.engine.templating import At
from opsctl.errors import UsageError
from opsctl.localfiles import read_text
from opsctl.modules.contract import RESULTS
from opsctl.text import did_you_mean

# Variables that the engine itself provides.
RUN_TIME = (
    "check_mode", "run_id", "facts", "measures", "failed_task", "result", "inventory_hostname", "group_names", "sglang",
    "range", "dict", "namespace",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Use:
    """Variables used at one place.

    Attributes:
        guarded: those that may be undefined there (`x is defined`, `x | default(1)`).
        fields: what is asked of variables by name: `(r, stdout)` of `r.stdout`; not what may be undefined.
    """

    at: At
    names: frozenset[str]
    guarded: frozenset[str]
    task: Task | None = None
    fields: frozenset[tuple[str, str]] = frozenset()


def uses(play: Play) -> Iterator[Use]:
    """Every place of the play where variables are used."""
    keys, at = play.keys, play.at
    for name, param in keys.params.items():
        yield from _in(param.default, at / "params" / name, None)
    yield from _in(keys.vars, at / "vars", None)
    yield from _in(keys.confirm, at / "confirm", None)
    yield from _in(keys.timeout, at / "timeout", None)
    for index, gate in enumerate(keys.gates):
        here = at / "gates" / index
        yield from _in([gate.at_least, gate.at_most], here, None)
        if gate.that is not None:
            yield from _in(templating.as_template(gate.that), here / "that", None)
    for task in play.all_tasks():
        yield from _of_task(task, Path(at.source.file))


def _of_task(task: Task, playbook: Path) -> Iterator[Use]:
    raw = raw_fields(task.module)
    for key, value in task.args.items():
        yield from _in(_expressions(value) if key in raw else value, task.at_args / key, task)
    if (text := _template_file(task, playbook)) is not None:
        yield from _in(text, task.at_args / "src", task)
    loop = task.keys.loop
    yield from _in(templating.as_template(loop) if isinstance(loop, str) else loop, task.at / "loop", task)
    for values, at in task.variables:
        yield from _in(values, at, task)
    for key in ("name", "retries", "delay", "timeout", "notify"):
        yield from _in(getattr(task.keys, key), task.at / key, task)
    if task.keys.supervise:
        yield from _in(task.keys.supervise.confirm_within, task.at / "supervise" / "confirm_within", task)
    conditions = [*task.conditions]
    conditions += [
        (value, task.at / key)
        for key in ("until", "changed_when", "failed_when")
        if (value := getattr(task.keys, key)) is not None
    ]
    for condition, at in conditions:
        yield from _in(_expressions(condition), at, task)


def _expressions(value: Any) -> Any:
    """Conditions as templates, so that they can be looked at in the same way."""
    match value:
        case str():
            return templating.as_template(value)
        case list():
            return [_expressions(v) for v in value]
    return value


def _in(value: Any, at: At, task: Task | None) -> Iterator[Use]:
    match value:
        case str():
            if templating.is_template(value):
                names = frozenset(templating.names_used(value))
                yield Use(at, names, _guarded(value), task, _fields(value))
        case list() | tuple():
            for index, one in enumerate(value):
                yield from _in(one, at / index, task)
        case dict():
            for key, one in value.items():
                yield from _in(one, at / key, task)


def _guarded(text: str) -> frozenset[str]:
    try:
        tree = templating.parse(text)
    except TemplateError:
        return frozenset()
    guards = [n.node for n in tree.find_all(nodes.Test) if n.name in ("defined", "undefined")]
    guards += [n.node for n in tree.find_all(nodes.Filter) if n.name in ("default", "d") and n.node is not None]
    names = {g.name for g in guards if isinstance(g, nodes.Name)}
    names |= {name.name for g in guards for name in g.find_all(nodes.Name)}
    return frozenset(names)


def _fields(text: str) -> frozenset[tuple[str, str]]:
    try:
        tree = templating.parse(text)
    except TemplateError:
        return frozenset()
    guarded = _guarded(text) | {n.name for n in tree.find_all(nodes.Name) if n.ctx != "load"}
    found: set[tuple[str, str]] = set()
    asked: list[tuple[nodes.Expr, Any]] = [(n.node, n.attr) for n in tree.find_all(nodes.Getattr)]
    asked += [(n.node, n.arg.value) for n in tree.find_all(nodes.Getitem) if isinstance(n.arg, nodes.Const)]
    for of, key in asked:
        if isinstance(of, nodes.Name) and of.name not in guarded and isinstance(key, str):
            found.add((of.name, key))
    return frozenset(found)


def wrong_fields(play: Play) -> Iterator[UsageError]:
    """What templates ask of registered results that their modules never give."""
    registered: dict[str, list[Task]] = {}
    for task in play.all_tasks():
        if task.keys.register_:
            registered.setdefault(task.keys.register_, []).append(task)
    for use in uses(play):
        own = {name for values, _ in (use.task.variables if use.task else ()) for name in values}
        for name, field in sorted(use.fields):
            its_own = name == "result" and use.task is not None
            by = [use.task] if its_own and use.task else registered.get(name, [])
            if not by or name in own or name in play.keys.vars or name in play.keys.params or hasattr(dict, field):
                continue
            known = [_given_by(task, whole=not its_own) for task in by]
            given = frozenset().union(*(fields or () for fields in known))
            if all(fields is not None for fields in known) and field not in given:
                what = f"the result of {by[0].module} has no {field!r}"
                yield UsageError(what, where=use.at.place, hint=did_you_mean(field, given))


def _given_by(task: Task, *, whole: bool) -> frozenset[str] | None:
    """What the result of a task may hold, `whole` or of one element of its loop; None where that is not known."""
    if whole and task.keys.loop is not None:
        return RESULTS | {"results"}
    own = modules.get(task.module).results
    return None if own is None else RESULTS | own


def template_files(play: Play) -> frozenset[str] | None:
    """Variables that the template files of the play use; None if one of the files is not known beforehand."""
    names: set[str] = set()
    for task in play.all_tasks():
        if modules.get(task.module).src != "templates":
            continue
        text = _template_file(task, Path(play.at.source.file))
        if text is None:
            return None
        names |= templating.names_used(text)
    return frozenset(names)


def _template_file(task: Task, playbook: Path) -> str | None:
    """What the template file of a task holds; None if there is none, or it is not known beforehand."""
    src = task.args.get("src")
    if modules.get(task.module).src != "templates" or not isinstance(src, str) or templating.is_template(src):
        return None
    try:
        return read_text(find.file("templates", src, playbook))
    except (UsageError, OSError, UnicodeDecodeError):
        return None
