"""What a host answers is data from outside: what cannot be made sense of is an error of that host, told in words."""

from __future__ import annotations

import struct
import traceback
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from opsctl.errors import OpsctlError, RemoteError
from opsctl.text import one_line

T = TypeVar("T")

_PACKAGE = str(Path(__file__).parent)
# What Python raises when data has another shape than the code that reads it expects.
_MISREAD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, zlib.error, struct.error)
_last: dict[str, object] = {}  # by host: the last answer that was taken without its shape being known


class Ours(Exception):
    """An error of opsctl itself, where answers of a host are read, and none that it could be due to."""


def taken(host: str) -> None:
    """Note that `host` has given an answer whose shape nobody has checked."""
    _last[host] = object()


@contextmanager
def understood(host: str, *, before: bool = False) -> Iterator[None]:
    """Within it answers of `host` are read. Raises RemoteError, kind `not-understood`, where one makes no sense.

    Where an answer came whose shape was not checked as it came in (`remote/shapes.py`), it cannot be told from here
    which is wrong, it or the code that reads it, so the error says both. Where none came the error is ours: Ours.

    Args:
        before: what is read was answered before.
    """
    seen = None if before else _last.get(host)
    try:
        yield
    except _MISREAD as error:
        if isinstance(error, OpsctlError):
            raise
        if _last.get(host) is seen:
            raise Ours(f"{type(error).__name__}: {error}") from error
        raise RemoteError(
            f"its answer was not understood: {one_line(f'{type(error).__name__}: {error}')} ({_place(error)})",
            kind="not-understood",
            where=host,
            hint="is something between us and its agent, or its Python damaged? If the host is sound, this is a bug in "
            "opsctl: please report it with this line",
        ) from error


def made(kind: type[T], told: Any) -> T:
    """A dataclass from an object of an answer. Raises ValueError where a field is unknown or of another type."""
    hints = _hints(kind)  # type: ignore[arg-type]  # a class is hashable
    if not isinstance(told, Mapping) or told.keys() - hints.keys():
        raise ValueError(f"{told!r} is no {kind.__name__}")
    return kind(**{name: _fitting(value, hints[name], f"{kind.__name__}.{name}") for name, value in told.items()})


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


def _fitting(value: Any, hint: Any, what: str) -> Any:
    """A value as a type wants it: JSON has lists for tuples, and whole numbers for floats."""
    options = get_args(hint)
    if hint is Any:
        return value
    if is_typeddict(hint):
        return _object_of(value, hint, what)
    if get_origin(hint) in (Union, UnionType):
        for option in options:
            with suppress(ValueError):
                return _fitting(value, option, what)
    elif get_origin(hint) is tuple:
        if isinstance(value, list | tuple):
            wanted = options[:1] * len(value) if options[-1] is ... else options
            if len(wanted) == len(value):
                return tuple(_fitting(v, option, what) for v, option in zip(value, wanted, strict=True))
    elif get_origin(hint) in (list, dict) and isinstance(value, get_origin(hint)):
        inside = value.values() if isinstance(value, dict) else value
        for inner in inside:
            _fitting(inner, options[-1], f"each of {what}")
        return value
    elif get_origin(hint) is Literal:
        if value in options:
            return value
    elif isinstance(value, bool):  # which is an int to Python
        if hint is bool:
            return value
    elif isinstance(value, (int, float) if hint is float else get_origin(hint) or hint):
        return value
    raise ValueError(f"{what} cannot be {value!r:.100}")


def _object_of(value: Any, hint: Any, what: str) -> Any:
    """An object with at least what a TypedDict says; it may have more."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} cannot be {value!r:.100}")
    hints = _hints(hint)
    for name, wanted in hints.items():
        if name in value:
            _fitting(value[name], wanted, f"`{name}` of {what}")
        elif name in hint.__required_keys__:
            raise ValueError(f"`{name}` of {what} is missing")
    return value


def fitting(value: Any, hint: Any, what: str) -> None:
    """Raises ValueError, in words, where `value` is not as the type `hint` says."""
    _fitting(value, hint, what)


def _place(error: BaseException) -> str:
    """The line of ours that could not go on."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if frame.filename.startswith(_PACKAGE)] or frames
    return f"{ours[-1].filename.removeprefix(_PACKAGE).lstrip('/')}:{ours[-1].lineno}"
