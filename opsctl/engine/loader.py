"""From a YAML file to a checked playbook. Every mistake is a UsageError with its place; no host is needed."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from opsctl import modules
from opsctl.engine import ansible, templating
from opsctl.engine.model import BlockKeys, IncludeKeys, PlayKeys, TaskKeys
from opsctl.engine.tasks import Block, Node, Play, Playbook, Task, walk
from opsctl.engine.templating import At, holds_template
from opsctl.errors import UsageError
from opsctl.localfiles import read
from opsctl.schema_errors import problems, validate
from opsctl.text import did_you_mean, nearest, one_line
from opsctl.yaml_source import Source, parse_yaml, refuse, settled

T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)

_TASK_KEYS = tuple(info.alias or name for name, info in TaskKeys.model_fields.items())
_PLAY_KEYS = tuple(PlayKeys.model_fields)
_MOST_DEEP = 20  # blocks in blocks, includes in includes


def load_playbook(path: Path) -> Playbook:
    """The playbook in the file at `path`. Raises UsageError with every mistake and its place."""
    return _Loader().playbook(path)


class _Loader:
    def __init__(self) -> None:
        self.sources: list[Source] = []
        self._digest = hashlib.sha256()
        self._number = 0
        self._including: list[Path] = []
        self._mistakes: list[UsageError] = []

    def playbook(self, path: Path) -> Playbook:
        source = self._read(path, None)
        top = At(source)
        value = source.value
        if isinstance(value, dict):
            plays = [(value, top)]
        elif isinstance(value, list) and value:
            plays = [(one, top / i) for i, one in enumerate(value)]
        else:
            raise UsageError("a playbook is a play (with hosts and tasks) or a list of plays", where=source.place())
        self._including = [path.resolve()]
        loaded = self._each(plays, lambda play: self._play(*play))
        if self._mistakes:
            raise UsageError.of(self._mistakes)
        return Playbook(path, loaded, tuple(self.sources), self._digest.hexdigest())

    def _each(self, values: Iterable[T], load: Callable[[T], R]) -> tuple[R, ...]:
        """What can be loaded of `values`; the mistakes of the others are kept, and looked for in all of them."""
        loaded = []
        for value in values:
            with self._keeping():
                loaded.append(load(value))
        return tuple(loaded)

    def _validated(self, model: type[M], value: dict[str, Any], at: At) -> M:
        """The keys of a play or block. Where they are wrong its tasks are looked at all the same."""
        try:
            return cast(M, validate(model, value, at.source, at.path))
        except UsageError:
            for key in ("block", "tasks", "handlers", "rescue", "always"):
                if isinstance(values := value.get(key), list):
                    self._nodes(values, at / key, _Around((), (), frozenset(), None))
            raise

    @contextlib.contextmanager
    def _keeping(self) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            self._mistakes.append(error)

    def _read(self, path: Path, included_at: At | None) -> Source:
        try:
            text = read(path, piped=True)
        except OSError as error:
            what = "is a folder, expected a file" if isinstance(error, IsADirectoryError) else error.strerror
            where = included_at.place if included_at else None
            raise UsageError(f"cannot read {path}: {what}", where=where) from None
        self._digest.update(hashlib.sha256(text).digest())
        source = parse_yaml(text, str(path))
        self.sources.append(source)
        return source

    def _play(self, value: Any, at: At) -> Play:
        if not isinstance(value, dict):
            raise UsageError("a play is a mapping with hosts and tasks", where=at.place)
        for key in value:
            if key not in _PLAY_KEYS and key not in ansible.NOT_NEEDED:
                with self._keeping():
                    raise UsageError(f"unknown key {one_line(key)!r} in a play",
                                     where=at.source.key_place((*at.path, key)),
                                     hint=_instead(key, _PLAY_KEYS))  # fmt: skip
        value = {key: kept for key, kept in value.items() if key in _PLAY_KEYS}
        said: PlayKeys = self._validated(PlayKeys, value, at)
        self._number = 0
        become = said.become
        tags = frozenset(said.tags)
        tasks = self._nodes(said.tasks, at / "tasks", _Around((), (), tags, become))
        handlers = self._nodes(said.handlers, at / "handlers", _Around((), (), frozenset(), become))
        for handler in handlers:
            if not isinstance(handler, Task) or not handler.keys.name:
                raise UsageError("a handler is a task with a name", where=handler.at.place)
        rescue = self._nodes(said.rescue, at / "rescue", _Around((), (), tags, become))
        for task in rescue:
            if not isinstance(task, Task):
                raise UsageError("the rescue of a play has tasks, no blocks", where=task.at.place)
        play = Play(
            said.name or self._play_name(said), said, at, tasks, tuple(h for h in handlers if isinstance(h, Task)),
            tuple(task for task in rescue if isinstance(task, Task)),
        )  # fmt: skip
        if not self._mistakes:  # else a handler may only seem not to be there
            _check_play(play)
        return play

    @staticmethod
    def _play_name(said: PlayKeys) -> str:
        return said.hosts if isinstance(said.hosts, str) else ":".join(said.hosts)

    def _nodes(self, values: list[Any], at: At, around: _Around) -> tuple[Node, ...]:
        if around.depth > _MOST_DEEP:
            raise UsageError("blocks and includes are nested too deeply", where=at.place)
        return self._each(enumerate(values), lambda one: self._node(one[1], at / one[0], around))

    def _node(self, value: Any, at: At, around: _Around) -> Node:
        if not isinstance(value, dict):
            raise UsageError("a task is a mapping with a module and its arguments", where=at.place)
        if "block" in value:
            return self._block(value, at, around)
        if "include" in value:
            return self._include(value, at, around)
        return self._task(value, at, around)

    def _block(self, value: dict[str, Any], at: At, around: _Around) -> Block:
        keys: BlockKeys = self._validated(BlockKeys, value, at)
        inside = around.within(keys, at)
        return Block(
            keys, at,
            self._nodes(keys.block, at / "block", inside),
            self._nodes(keys.rescue, at / "rescue", inside),
            self._nodes(keys.always, at / "always", inside),
        )  # fmt: skip

    def _include(self, value: dict[str, Any], at: At, around: _Around) -> Block:
        keys: IncludeKeys = validate(IncludeKeys, value, at.source, at.path)
        here = at / "include"
        if templating.is_template(keys.include):
            raise UsageError("the file of an include cannot be a template", where=here.place,
                             hint="include several files, each with its own `when`")  # fmt: skip
        path = Path(at.source.file).parent / keys.include
        if path.resolve() in self._including:
            trail = " -> ".join(p.name for p in [*self._including, path])
            raise UsageError(f"files include one another: {trail}", where=here.place)
        source = self._read(path, here)
        if not isinstance(source.value, list):
            raise UsageError("an included file is a list of tasks", where=source.place())
        self._including.append(path.resolve())
        body = self._nodes(source.value, At(source), around.within(keys, at))
        self._including.pop()
        return Block(keys, at, body)

    def _task(self, value: dict[str, Any], at: At, around: _Around) -> Task:
        named = [key for key in value if key not in _TASK_KEYS]
        if not named:
            raise UsageError("the task names no module", where=at.place, hint="opsctl doc lists all modules")
        known = [key for key in named if ansible.plain(key) in modules.names()]
        unknown = [key for key in named if key not in known]
        wrong = [_unknown_key(key, at, bool(known)) for key in unknown]
        if not known:
            raise UsageError.of(wrong)
        self._mistakes += wrong
        if len(known) > 1:
            raise UsageError(f"the task names two modules, {known[0]} and {known[1]}", hint="write two tasks",
                             where=at.source.key_place((*at.path, known[1])))  # fmt: skip
        said, name = known[0], ansible.plain(known[0])
        keys: TaskKeys = validate(TaskKeys, {k: v for k, v in value.items() if k in _TASK_KEYS}, at.source, at.path)
        args, at_args = _arguments(name, value[said], at / said)
        args = settled(modules.get(name).args, args, at_args.source, at_args.path)
        inside = around.within(keys, at)
        task = Task(
            number=self._number,
            name=keys.name or _default_name(name, args),
            module=name,
            args=args,
            keys=keys,
            at=at,
            at_args=at_args,
            conditions=inside.conditions,
            variables=inside.variables,
            tags=inside.tags,
            become=inside.become,
        )
        self._number += 1
        _check_task(task)
        return task


class _Around:
    """What the blocks around a task say for it."""

    def __init__(
        self, conditions: Any, variables: Any, tags: frozenset[str], become: bool | str | None, depth: int = 0
    ) -> None:
        self.conditions: tuple[tuple[Any, At], ...] = conditions
        self.variables: tuple[tuple[dict[str, Any], At], ...] = variables
        self.tags, self.become, self.depth = tags, become, depth

    def within(self, keys: TaskKeys | BlockKeys | IncludeKeys, at: At) -> _Around:
        when = () if keys.when is True else ((keys.when, at / "when"),)
        variables = ((keys.vars, at / "vars"),) if keys.vars else ()
        become = self.become if keys.become is None else keys.become
        return _Around(
            (*self.conditions, *when), (*variables, *self.variables), self.tags | set(keys.tags), become, self.depth + 1
        )


def _arguments(name: str, value: Any, at: At) -> tuple[dict[str, Any], At]:
    """The module's arguments as a mapping, and where they stand."""
    module = modules.get(name)
    if isinstance(value, dict):
        return value, at
    if value is None:
        return {}, at
    if module.free_form is None:
        raise UsageError(f"{name} takes a mapping of arguments, got {one_line(repr(value), 60)}", where=at.place,
                         hint=f"opsctl doc {name}")  # fmt: skip
    # The place of the bare value is the place of the argument it fills.
    source, path = at.source, at.path
    values = {**source.values, (*path, module.free_form): source.place(path)}
    return {module.free_form: value}, At(Source(source.file, source.value, source.keys, values), path)


def _check_task(task: Task) -> None:
    """Raise UsageError for what can be told wrong before the templates are rendered."""
    module = modules.get(task.module)
    raw = raw_fields(task.module)
    for key, value in task.args.items():
        if key in raw:
            if isinstance(value, bool | str | list):
                templating.check_condition(value, task.at_args / key)
        else:
            templating.check_syntax(value, task.at_args / key)
    for key in ("name", "loop", "vars", "retries", "delay", "timeout"):
        templating.check_syntax(getattr(task.keys, key), task.at / key)
    for key in ("when", "until", "changed_when", "failed_when"):
        condition = getattr(task.keys, key)
        if condition is not None:
            templating.check_condition(condition, task.at / key)
    try:
        module.args.model_validate(task.args)
    except ValidationError as error:
        # What holds a template has no value yet, and neither have rules about several arguments together.
        whole = holds_template(task.args)
        certain = [e for e in error.errors() if not holds_template(e["input"]) and (e["loc"] or not whole)]
        if certain:
            kept = ValidationError.from_exception_data(error.title, [_line_error(e) for e in certain])
            raise argument_error(kept, task) from None


def _line_error(error: Any) -> Any:
    kept = {"type": error["type"], "loc": error["loc"], "input": error["input"]}
    return kept | ({"ctx": error["ctx"]} if "ctx" in error else {})


def argument_error(error: ValidationError, task: Task) -> UsageError:
    """What is wrong with a task's arguments, in our words."""
    first = problems(error, modules.get(task.module).args, task.at_args.source, task.at_args.path)[0]
    return UsageError(
        f"{task.module}: {first.message}", where=first.where, hint=first.hint or f"opsctl doc {task.module}"
    )


def raw_fields(module: str) -> frozenset[str]:
    """Arguments that hold expressions: the engine hands them on as they stand."""
    fields: Mapping[str, Any] = modules.get(module).args.model_fields
    return frozenset(
        info.alias or name
        for name, info in fields.items()
        if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("raw")
    )


def _check_play(play: Play) -> None:
    names = [h.name for h in play.handlers]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise UsageError(f"two handlers are named {name!r}", where=(play.at / "handlers" / index).place)
    for task in play.all_tasks():
        for wanted in task.keys.notify:
            if wanted not in names and not templating.is_template(wanted):
                raise UsageError(f"there is no handler {wanted!r}", where=(task.at / "notify").place,
                                 hint=did_you_mean(wanted, names) if names else "the play has no handlers")  # fmt: skip
    templating.check_syntax(play.keys.vars, play.at / "vars")
    for name, param in play.keys.params.items():
        for key in ("default", "choices"):
            if param.type != "bool":
                refuse(getattr(param, key), play.at.source, (*play.at.path, "params", name, key))
    for index, gate in enumerate(play.keys.gates):
        at = play.at / "gates" / index
        if gate.that is not None:
            templating.check_condition(gate.that, at / "that")
        for key in ("at_least", "at_most"):
            templating.check_syntax(getattr(gate, key), at / key)
    supervised = [t for t in walk(play.tasks) if t.keys.supervise]
    if supervised and play.keys.on_failure != "rollback":
        raise UsageError("`supervise` takes the run back when the play fails: it goes with `on_failure: rollback`",
                         where=(supervised[0].at / "supervise").place)  # fmt: skip


def _unknown_key(key: str, at: At, has_module: bool) -> UsageError:
    valid = list(_TASK_KEYS) if has_module else [*modules.names(), *_TASK_KEYS, "block", "include"]
    what = "unknown key" if has_module else "unknown module or key"
    return UsageError(
        f"{what} {one_line(key)!r}", where=at.source.key_place((*at.path, key)), hint=_instead(key, valid)
    )


def _instead(key: str, valid: list[str] | tuple[str, ...]) -> str:
    if found := ansible.instead(key):
        return found
    close = nearest(key.rpartition(".")[2], valid)
    return f"did you mean {close!r}?" if close else "opsctl doc lists what there is"


def _default_name(module: str, args: Mapping[str, Any]) -> str:
    first = next((str(v) for v in args.values() if isinstance(v, str | int | float) and not isinstance(v, bool)), "")
    return one_line(f"{module} {first}", 60).strip()
