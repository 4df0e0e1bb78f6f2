"""A Jinja environment in which no template can take more than its share of memory or time.

Nothing is evaluated while a template is read. While one is rendered, each turn of a loop, each call and each value that
is made counts; what goes over the limits is an error like any other mistake in a template.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from jinja2 import nodes
from jinja2.compiler import CodeGenerator
from jinja2.exceptions import TemplateRuntimeError
from jinja2.meta import TrackingCodeGenerator
from jinja2.nativetypes import NativeCodeGenerator
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

STEPS = 200_000  # turns of loops and calls of one rendering, and what its values cost: a few microseconds each
COPIED = 1024  # characters of a value that cost a step where they are only copied
WORKED_ON = 64  # the same where a filter or method looks at each
LOOKED_AT = 16  # elements of a value that cost a step
SIZE = 16 << 20  # characters of one value, all that is in it included
ELEMENTS = 1 << 20  # of lists and mappings of one value, likewise
BITS = 10_000  # of a whole number
WIDTH = 10_000  # that text may be padded to; also the longest indentation

_PADS = ("center", "indent", "batch", "slice", "tojson", "to_json", "wordwrap", "round", "truncate", "format")
_PADDING_METHODS = ("center", "ljust", "rjust", "zfill", "expandtabs")
_NOT_CALLED = {"translate", "maketrans", "to_bytes"}
_WIDE = re.compile(r"[0-9]{5,}|%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")  # a width that is long, or taken from an argument


class TooMuch(TemplateRuntimeError):
    """A template would take more memory or time than one may."""


class _Spent(threading.local):
    steps = 0
    depth = 0


_spent = _Spent()


@contextmanager
def rendering() -> Iterator[None]:
    """Count what is done inside; variables that are rendered on the way count to the template that uses them."""
    if _spent.depth == 0:
        _spent.steps = 0
    _spent.depth += 1
    try:
        yield
    finally:
        _spent.depth -= 1


def bounded(value: Any, characters: int = COPIED) -> Any:
    """The value. Raises TooMuch if it, with all that is in it, is larger than a value may be, or too much was done.

    characters: how many of them cost a step.
    """
    if isinstance(value, int | float) or value is None:
        return value
    size, elements = 0, 0
    left: list[Any] = [[value]]
    while left:
        inside = left.pop()
        elements += len(inside)
        _check_size(size, elements)
        for one in inside:
            kind = type(one)
            if kind is int or kind is float or kind is bool:
                continue
            if isinstance(one, str | bytes):
                size += len(one)
            elif isinstance(one, dict):
                left += [list(one.keys()), list(one.values())]
            elif isinstance(one, list | tuple):
                left.append(one)
    _check_size(size, elements)
    _spend(size // characters + elements // LOOKED_AT)
    return value


def _spend(more: int = 0) -> None:
    _spent.steps += 1 + more
    if _spent.steps > STEPS:
        raise TooMuch("this takes too many steps: loops and calls within one another, or over too much text")


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """A loop's elements, each of which counts."""
    for value in values:
        _spend()
        yield value


def _text(*values: Any) -> str:
    """What `~` makes of its values."""
    return str(bounded("".join([str(bounded(value)) for value in values])))


class _Rewritten(NodeTransformer):
    """Loops and `~` are calls, so that they can be counted."""

    def __init__(self, environment: ImmutableSandboxedEnvironment) -> None:
        self.environment = environment

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = self._filter(cast("nodes.Expr", node.iter), "_counted", [])
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return self._filter(node.nodes[0], "_text", node.nodes[1:])

    def _filter(self, value: nodes.Expr, name: str, arguments: list[nodes.Expr]) -> nodes.Filter:
        made = nodes.Filter(value, name, arguments, [], None, None, lineno=value.lineno)
        return made.set_environment(self.environment)  # type: ignore[return-value]  # it returns itself


class _NothingFolded:
    """No expression is evaluated to see whether it is constant."""

    def _output_child_to_const(self, node: nodes.Expr, frame: Any, finalize: Any) -> Any:
        if not isinstance(node, nodes.Const | nodes.TemplateData):
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)  # type: ignore[misc]  # of the generator it is mixed into


class ValueGenerator(_NothingFolded, NativeCodeGenerator):
    """Keeps the type of a constant expression: `{{ 5 }}` is the number."""

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        values = list(group)
        return repr(values[0]) if len(values) == 1 else repr("".join(str(v) for v in values))


class TextGenerator(_NothingFolded, CodeGenerator):
    pass


class _Names(_NothingFolded, TrackingCodeGenerator):
    def __init__(self, environment: BoundedEnvironment) -> None:
        super().__init__(environment)
        self.optimizer = None


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    code_generator_class: type[CodeGenerator] = TextGenerator
    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, **options: Any) -> None:
        super().__init__(optimized=False, **options)
        self._trees: dict[str, nodes.Template] = {}  # by source
        self.binop_table |= {"+": _plus, "*": _times, "**": _power, "%": _modulo}
        self.concat: Callable[[Iterable[str]], str] = _joined

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        # The checks before a run and the run itself ask for the same trees, and nobody changes one.
        if source not in self._trees:
            self._trees[source] = _Rewritten(self).visit(super()._parse(source, name, filename))
        return self._trees[source]

    def bound(self, filters: Mapping[str, Callable[..., Any]]) -> None:
        """Take these filters besides Jinja's own, all of them within the limits."""
        self.filters |= filters
        self.filters = {name: _within_limits(name, function) for name, function in self.filters.items()}
        self.filters |= {"_counted": _counted, "_text": _text}

    def names_used(self, text: str) -> frozenset[str]:
        """Names that a template looks up. Raises TemplateError."""
        names = _Names(self)
        names.visit(self.parse(text))
        return frozenset(names.undeclared_identifiers)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr not in _NOT_CALLED and super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(__obj, "__self__", None)
        bounded((owner, *args) if isinstance(owner, str) else args, WORKED_ON)
        if isinstance(owner, str):
            _check_call(__obj.__name__, (owner, *args), kwargs)
        return bounded(super().call(__context, __obj, *args, **kwargs))


def _joined(parts: Iterable[str]) -> str:
    return str(bounded("".join(bounded(list(parts)))))


def _within_limits(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        bounded(args, WORKED_ON)
        _check_call(name, args, kwargs)
        return bounded(function(*args, **kwargs))

    return limited


def _check_call(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise TooMuch for a filter or method of text that would make something large out of something small."""
    given = [*args, *kwargs.values()]
    if name in _PADS or name in _PADDING_METHODS:
        numbers = given[1:] if isinstance(given[0], int) else given  # the value itself may be any
        if any(isinstance(n, int) and abs(n) > WIDTH for n in numbers):
            raise TooMuch(f"{name}: a number over {WIDTH} makes too large a text")
    texts = [value for value in given if isinstance(value, str)]
    if name == "format" and texts:
        _check_format(texts[0])
    if name == "replace" and len(texts) >= 3:
        _check_size(len(texts[0]) + (texts[0].count(texts[1]) * len(texts[2])))
    if name == "join":
        lists = [value for value in given if isinstance(value, list | tuple | range)]
        _check_size(sum(map(len, lists)) * max(map(len, texts), default=0))


def _check_format(text: str) -> None:
    if _WIDE.search(text):
        raise TooMuch(f"a width over {WIDTH}, or one that is an argument, makes too large a text")


def _check_size(size: int, elements: int = 0) -> None:
    if size > SIZE or elements > ELEMENTS:
        raise TooMuch("this makes too large a value")


def _plus(left: Any, right: Any) -> Any:
    return bounded(left + right)


def _times(left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if isinstance(one, str | bytes | list | tuple) and isinstance(other, int):
            _check_size(*((len(one) * other, 0) if isinstance(one, str | bytes) else (0, len(one) * other)))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > BITS:
        raise TooMuch("this makes a number of too many digits")
    return bounded(left * right)


def _power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > BITS:
        raise TooMuch("this makes a number of too many digits")
    return left**right


def _modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left)
    return bounded(left % right)
