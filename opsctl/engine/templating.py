"""Templates: Jinja2 in a sandbox, strict about undefined names, with values that keep their types.

A text that is one expression (`{{ port }}`) gives the expression's value as it is; any other text with templates in it
gives text, which is never parsed again. Only what stands in the user's files is a template: values that come from a
host are data, whatever braces they hold.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

from jinja2 import StrictUndefined, Template, TemplateSyntaxError, Undefined, UndefinedError, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.nativetypes import NativeTemplate

from opsctl.engine.bounded import BoundedEnvironment, ValueGenerator, bounded, rendering
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import Place, UsageError
from opsctl.patterns import compiled
from opsctl.secret import MASK, Secret
from opsctl.text import nearest, one_line
from opsctl.yaml_source import Source

# What filters and operators raise on values that do not fit them, or that are nested too deeply.
_AT_RUN_TIME = (
    TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError, MemoryError,
)  # fmt: skip
# What reading a template raises that is nested too deeply, or has a number of thousands of digits in it.
_TOO_DEEP = (RecursionError, MemoryError, SyntaxError, ValueError)


@dataclass(frozen=True, slots=True)
class At:
    """Where a value stands: a path in a source."""

    source: Source
    path: tuple[str | int, ...] = ()

    def __truediv__(self, step: str | int) -> At:
        return At(self.source, (*self.path, step))

    @property
    def place(self) -> Place:
        return self.source.place(self.path)


def is_template(text: Any) -> bool:
    """Whether `text` holds a template."""
    return isinstance(text, str) and ("{{" in text or "{%" in text or "{#" in text)


def holds_template(value: Any) -> bool:
    """Whether `value` or anything in it holds a template."""
    match value:
        case str():
            return is_template(value)
        case list() | tuple():
            return any(holds_template(v) for v in value)
        case dict():
            return any(holds_template(v) for v in value.values())
    return False


def render(value: Any, variables: Mapping[str, Any], at: At) -> Any:
    """`value` with every template in it rendered. Raises UsageError with a place, Undecided."""
    match value:
        case str():
            return _value_of(value, variables, at) if is_template(value) else value
        case list() | tuple():
            return [render(v, variables, at / i) for i, v in enumerate(value)]
        case dict():
            return {k: render(v, variables, at / k) for k, v in value.items()}
    return value


def evaluate(expression: str, variables: Mapping[str, Any], at: At) -> Any:
    """The value of an expression. Raises UsageError with a place, Undecided."""
    return _value_of(as_template(expression), variables, at)


def holds(condition: bool | str | Iterable[bool | str], variables: Mapping[str, Any], at: At, what: str) -> bool:
    """Whether a condition, or every one of several, is true. It has to be a bool: text and numbers are no answer."""
    if isinstance(condition, bool):
        return condition
    if not isinstance(condition, str):
        return all(holds(one, variables, at / i, what) for i, one in enumerate(condition))
    value = evaluate(condition, variables, at)
    if not isinstance(value, bool):
        raise UsageError(
            f"`{what}` must be true or false, but `{one_line(condition, 80)}` is {one_line(repr(value), 60)} "
            f"({_kind(value)})",
            where=at.place,
            hint="compare it: `x == 'yes'`, `x | length > 0`, `x is defined`",
        )
    return value


def render_text(text: str, variables: Mapping[str, Any], name: str) -> str:
    """A template file's text rendered: secrets appear in clear, so the result is for the host only."""
    try:
        template = _text_environment().from_string(text)
    except TemplateSyntaxError as error:
        raise UsageError(f"template error: {error.message}", where=Place(name, error.lineno)) from None
    except _TOO_DEEP:
        raise UsageError("the template is nested too deeply", where=Place(name)) from None
    try:
        with rendering():
            return _text_environment().concat(_parts(template, variables))
    except (Undecided, UsageError):
        raise
    except UndefinedError as error:
        raise _undefined(error, variables, Place(name, _line(error, template))) from None
    except _AT_RUN_TIME as error:
        raise UsageError(f"template error: {_said(error)}", where=Place(name, _line(error, template))) from None


def check_syntax(value: Any, at: At) -> None:
    """Raise UsageError for the first template in `value` that does not parse."""
    match value:
        case str():
            if is_template(value):
                _compiled(value, at)
        case list() | tuple():
            for i, v in enumerate(value):
                check_syntax(v, at / i)
        case dict():
            for k, v in value.items():
                check_syntax(v, at / k)


def check_condition(condition: bool | str | Iterable[bool | str], at: At) -> None:
    """Raise UsageError if a condition does not parse."""
    if isinstance(condition, str):
        _compiled(as_template(condition), at)
    elif not isinstance(condition, bool):
        for i, one in enumerate(condition):
            check_condition(one, at / i)


def names_used(value: Any) -> set[str]:
    """Names of variables that the templates in `value` use."""
    match value:
        case str():
            return set(_names(value)) if is_template(value) else set()
        case list() | tuple():
            return set().union(*(names_used(v) for v in value)) if value else set()
        case dict():
            return set().union(*(names_used(v) for v in value.values())) if value else set()
    return set()


def names_in_condition(condition: bool | str | Iterable[bool | str]) -> set[str]:
    """Names of variables that a condition uses."""
    if isinstance(condition, bool):
        return set()
    if isinstance(condition, str):
        return set(_names(as_template(condition)))
    return set().union(*(names_in_condition(one) for one in condition))


def parse(text: str) -> nodes.Template:
    """The syntax tree of a template. Raises TemplateError."""
    try:
        return _environment().parse(text)
    except _TOO_DEEP:
        raise TemplateError("the template is nested too deeply") from None


def as_template(expression: str) -> str:
    """An expression, written bare or as `{{ expression }}`, as a template."""
    return expression if is_template(expression) else "{{ " + expression + " }}"


@cache
def _names(text: str) -> frozenset[str]:
    try:
        return _environment().names_used(text)
    except (TemplateError, *_TOO_DEEP):
        return frozenset()


def _value_of(text: str, variables: Mapping[str, Any], at: At) -> Any:
    template = _compiled(text, at)
    try:
        with rendering():
            value = _joined(_parts(template, variables))
    except Undecided:
        raise
    except UsageError as error:
        error.where = error.where or at.place
        raise
    except UndefinedError as error:
        raise _undefined(error, variables, at.place) from None
    except _AT_RUN_TIME as error:
        raise UsageError(f"template error: {_said(error)} in {one_line(text, 80)}", where=at.place) from None
    if isinstance(value, str) and MASK in value and any(_holds_secret(variables.get(name)) for name in _names(text)):
        raise UsageError(
            "a secret can be used whole or put into text, but not changed by filters or operators",
            where=at.place,
            hint='write "Bearer {{ key }}" instead of {{ "Bearer " ~ key }}',
        )
    return value


def _holds_secret(value: Any) -> bool:
    """Whether a secret is in `value`: text from a host may hold asterisks of its own."""
    match value:
        case Secret():
            return True
        case list() | tuple():
            return any(_holds_secret(v) for v in value)
        case dict():
            return any(_holds_secret(v) for v in value.values())
    return False


def _parts(template: Template, variables: Mapping[str, Any]) -> Iterable[Any]:
    """What the template yields. Variables are looked up one by one, so that only those in use are rendered."""
    names = ChainMap(cast("dict[str, Any]", variables), template.globals)  # read only
    return template.root_render_func(template.new_context(cast("dict[str, Any]", names), shared=True))


def _joined(parts: Iterable[Any]) -> Any:
    """One value as it is; several as text, which is secret if any part of it is."""
    values = list(parts)
    for value in values:
        if isinstance(value, Undefined):
            value._fail_with_undefined_error()
    bounded(values)
    if len(values) == 1:
        if isinstance(values[0], Unknown):
            str(values[0])  # raises Undecided
        return values[0]
    if any(v is None for v in values):
        raise _NullInText
    if any(isinstance(v, Secret) for v in values):
        return Secret("".join(v.reveal() if isinstance(v, Secret) else str(v) for v in values))
    return "".join(str(v) for v in values)


class _NullInText(TemplateError):
    """A null was to become part of a text."""

    def __init__(self) -> None:
        super().__init__("a null is no text: say what is to stand there, as in {{ name or '' }}")


class _Environment(BoundedEnvironment):
    code_generator_class = ValueGenerator
    template_class = NativeTemplate

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.concat = _joined


def _prepare(environment: BoundedEnvironment) -> BoundedEnvironment:
    environment.bound(FILTERS)
    environment.tests |= TESTS
    for unwanted in ("lipsum", "cycler", "joiner"):
        del environment.globals[unwanted]
    return environment


@cache
def _environment() -> BoundedEnvironment:
    return _prepare(_Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False))


@cache
def _text_environment() -> BoundedEnvironment:
    def in_clear(value: Any) -> Any:
        if value is None:
            raise _NullInText
        return value.reveal() if isinstance(value, Secret) else value

    return _prepare(
        BoundedEnvironment(
            undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, lstrip_blocks=True,
            autoescape=False, finalize=in_clear,
        )
    )  # fmt: skip


@cache
def _template(text: str) -> Any:
    environment = _environment()
    for kind, known in ((nodes.Filter, environment.filters), (nodes.Test, environment.tests)):
        for node in environment.parse(text).find_all(kind):
            if node.name not in known:  # Jinja itself leaves those in a branch that may not be taken to the run
                close = nearest(node.name, known)
                hint = f", did you mean {close!r}?" if close else ""
                raise TemplateSyntaxError(f"no {kind.__name__.lower()} is named {node.name!r}{hint}", node.lineno)
            if node.name in PATTERNS and node.args and isinstance(node.args[0], nodes.Const):
                try:
                    compiled(str(node.args[0].value))
                except ValueError as error:
                    raise TemplateSyntaxError(f"{node.name}: {error}", node.lineno) from None
    return environment.from_string(text)


def _compiled(text: str, at: At) -> Any:
    try:
        return _template(text)
    except TemplateSyntaxError as error:
        line = f" (line {error.lineno} of the text)" if "\n" in text.strip() else ""
        raise UsageError(f"template error: {error.message}{line} in {one_line(text, 80)}", where=at.place) from None
    except _TOO_DEEP:
        raise UsageError("the template is nested too deeply", where=at.place) from None


def _undefined(error: UndefinedError, variables: Mapping[str, Any], place: Place) -> UsageError:
    message = error.message or "an undefined value is used"
    found = re.match(r"'([^']*)' is undefined", message)
    hint = None
    if found:
        close = nearest(found[1], variables)
        message = f"the variable {found[1]!r} is not defined"
        hint = f"did you mean {close!r}?" if close else "define it under vars or params, in the inventory, or with -e"
    return UsageError(one_line(message), where=place, hint=hint)


def _line(error: BaseException, template: Template) -> int | None:
    """The line of the template where a run-time error came from."""
    line, trace = None, error.__traceback__
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = template.get_corresponding_lineno(trace.tb_lineno)
        trace = trace.tb_next
    return line


def _said(error: BaseException) -> str:
    if isinstance(error, SecurityError):
        return f"not allowed here: {error}"
    return one_line(str(error) or type(error).__name__)


def _kind(value: Any) -> str:
    kinds = {str: "text", int: "a number", float: "a number", list: "a list", dict: "a mapping", type(None): "nothing"}
    return kinds.get(type(value), type(value).__name__)


def _ends(key: str) -> Callable[[Any], bool]:
    def test(result: Any) -> bool:
        if isinstance(result, Unknown):
            str(result)  # raises Undecided
        if not isinstance(result, Mapping) or key not in result:
            raise UsageError(f"`is {key}` asks for the registered result of a task, got {one_line(repr(result), 40)}")
        return bool(result[key])

    return test


FILTERS: dict[str, Callable[..., Any]] = {
    "basename": posixpath.basename,
    "dirname": posixpath.dirname,
    "quote": lambda value: shlex.quote(str(value)),
    "to_json": lambda value, indent=None: json.dumps(value, indent=indent, ensure_ascii=False),
    "from_json": json.loads,
    "regex_replace": lambda value, pattern, replacement: compiled(pattern).sub(replacement, value),
    "regex_search": lambda value, pattern: found.group(0) if (found := compiled(pattern).search(value)) else "",
}
PATTERNS = ("regex_replace", "regex_search", "match", "search")  # filters and tests that take one first
TESTS: dict[str, Callable[..., Any]] = {
    "match": lambda value, pattern: compiled(pattern).match(value) is not None,
    "search": lambda value, pattern: compiled(pattern).search(value) is not None,
    "changed": _ends("changed"),
    "failed": _ends("failed"),
    "skipped": _ends("skipped"),
    "succeeded": lambda result: not _ends("failed")(result),
}
