"""Checks that what a host answers is of the declared type, as data from outside; types are compiled to checks once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

T = TypeVar("T")
Check = Callable[[Any], Any]  # gives the value as the type wants it; raises Misfit


class Misfit(ValueError):
    """A value that is not of a type. `path`: where it stands, the innermost place first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{' of '.join(self.path)} {self.reason}"


def fitting(value: Any, hint: Any, what: str) -> Any:
    """The value as the type wants it: JSON has lists for tuples. Raises Misfit, which names the field.

    Objects may have more keys than their type says.
    """
    try:
        return _check(hint)(value)
    except Misfit as error:
        error.path.append(what)
        raise


def made(kind: Callable[..., T], told: Mapping[str, Any]) -> T:
    """A dataclass from an object of an answer, which may have more. Raises Misfit where a field is of another type."""
    hints = {name: hint for name, hint in _hints(kind).items() if name in told}
    return kind(**{name: fitting(told[name], hint, f"`{name}` of the answer") for name, hint in hints.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


@cache
def _check(hint: Any) -> Check:
    options, origin = get_args(hint), get_origin(hint)
    if hint is Any:
        return lambda value: value
    if is_typeddict(hint):
        return _object(hint)
    if origin in (Union, UnionType):
        return _union(options)
    if origin is tuple:
        return _tuple(options)
    if origin is list:
        return _each(list, _check(options[0]), list.__iter__)
    if origin is dict:
        return _each(dict, _check(options[-1]), dict.values)
    if origin is Literal:
        return _where(lambda value: isinstance(value, str | int) and value in options)
    if hint is float:
        return _where(lambda value: isinstance(value, int | float) and not isinstance(value, bool))
    if hint is int:
        return _where(lambda value: isinstance(value, int) and not isinstance(value, bool))
    return _where(lambda value: isinstance(value, origin or hint))


def _where(holds: Callable[[Any], bool]) -> Check:
    def check(value: Any) -> Any:
        if not holds(value):
            raise _wrong(value)
        return value

    return check


def _wrong(value: Any) -> Misfit:
    return Misfit(f"cannot be {value!r:.100}")


def _each(kind: type[Any], inner: Check, inside: Callable[[Any], Any]) -> Check:
    def check(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _wrong(value)
        try:
            for one in inside(value):
                inner(one)
        except Misfit as error:
            error.path.append("each")
            raise
        return value

    return check


def _tuple(options: tuple[Any, ...]) -> Check:
    endless = options[-1] is ...
    checks = [_check(option) for option in (options[:1] if endless else options)]

    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or not (endless or len(value) == len(checks)):
            raise _wrong(value)
        return tuple(fits(one) for fits, one in zip(checks * len(value) if endless else checks, value, strict=True))

    return check


def _union(options: tuple[Any, ...]) -> Check:
    """An object is told from others by its words: where one alone has them, it is that one's fields that are judged."""
    checks = [_check(option) for option in options]
    objects = [option for option in options if is_typeddict(option)]

    def check(value: Any) -> Any:
        if isinstance(value, Mapping):
            meant = [option for option in objects if _says(value, option)]
            if len(meant) == 1:
                return _check(meant[0])(value)
        for fits in checks:
            try:
                return fits(value)
            except Misfit:
                continue
        raise _wrong(value)

    return check


def _says(value: Mapping[str, Any], hint: Any) -> bool:
    """Whether an object has the words that only objects of this type have."""
    words = {name: get_args(kind) for name, kind in _hints(hint).items() if get_origin(kind) is Literal}
    return all(value.get(name) in allowed for name, allowed in words.items() if name in hint.__required_keys__)


def _object(hint: Any) -> Check:
    fields = [(name, _check(kind), name in hint.__required_keys__) for name, kind in _hints(hint).items()]

    def check(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _wrong(value)
        for name, fits, required in fields:
            if name in value:
                try:
                    fits(value[name])
                except Misfit as error:
                    error.path.append(f"`{name}`")
                    raise
            elif required:
                missing = Misfit("is missing")
                missing.path.append(f"`{name}`")
                raise missing
        return value

    return check
