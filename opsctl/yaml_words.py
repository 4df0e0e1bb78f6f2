"""Plain words that other YAML readers take for a bool or null, such as `yes`: a type decides, or they are an error."""

from __future__ import annotations

import re
import typing
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo

from opsctl.errors import Place, UsageError
from opsctl.text import one_line

if TYPE_CHECKING:
    from opsctl.yaml_source import DocPath, Source

JUDGED_LATER = object()
"""Marks a field of a model whose value is checked on its own, against what is known only then."""

_BOOLS = {"yes": True, "no": False, "on": True, "off": False, "y": True, "n": False, "true": True, "false": False}
_NULL = "null"
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")


class Word(str):
    """A scalar without quotes that is text here, and a bool or null to other readers of YAML."""

    __slots__ = ()

    @classmethod
    def of(cls, text: str) -> str:
        """The text, as a Word if it is one: `yes`, `Yes` and `YES` are, `yEs` is not."""
        low = text.lower()
        known = (low in _BOOLS or low == _NULL) and text in (low, low.capitalize(), low.upper())
        return cls(text) if known else text

    @property
    def meant(self) -> bool | None:
        """What those other readers take it for."""
        return as_bool(self)


def as_bool(text: str) -> bool | None:
    """What a word means where a bool is expected; None if it is no such word."""
    return _BOOLS.get(text.lower())


def ambiguous(word: Word, where: Place | None, what: str = "") -> UsageError:
    """The error for a word whose meaning nothing decides."""
    plain = {True: "true", False: "false", None: _NULL}[word.meant]
    kind = "null" if word.meant is None else "a bool"
    return UsageError(f"{what}`{word}` without quotes is text to some readers of YAML and {kind} to others",
                      where=where, hint=f'write {plain}, or "{word}" where the text is meant')  # fmt: skip


def refuse(value: Any, source: Source, path: Sequence[str | int]) -> None:
    """Raise UsageError for the first such word in a value that no type describes."""
    match value:
        case Word():
            raise ambiguous(value, source.place(path))
        case list():
            for index, one in enumerate(value):
                refuse(one, source, (*path, index))
        case dict():
            for key, one in value.items():
                refuse(one, source, (*path, key))


def settled(annotation: Any, value: Any, source: Source, path: DocPath) -> Any:
    """`value` with each such word a bool where `annotation` wants one. Raises UsageError for all others."""
    members = list(_members(annotation))
    match value:
        case Word() if bool in members and str not in members and value.meant is not None:
            return value.meant
        case Word():
            raise ambiguous(value, source.place(path))
        case list():
            inner = [args[0] for m in members if typing.get_origin(m) is list and (args := typing.get_args(m))]
            return [settled(_union(inner), one, source, (*path, i)) for i, one in enumerate(value)]
        case dict():
            model = next((m for m in members if isinstance(m, type) and issubclass(m, BaseModel)), None)
            if model is not None:
                return {key: _field(model, key, one, source, (*path, key)) for key, one in value.items()}
            inner = [args[1] for m in members if typing.get_origin(m) is dict and (args := typing.get_args(m))]
            return {key: settled(_union(inner), one, source, (*path, key)) for key, one in value.items()}
    return value


def _field(model: type[BaseModel], key: str, value: Any, source: Source, path: DocPath) -> Any:
    info = next((i for name, i in model.model_fields.items() if (i.alias or name) == key), None)
    if info is not None and JUDGED_LATER in info.metadata:
        return value
    if info is not None and isinstance(value, str) and _takes_whole_numbers(info):
        try:
            whole_number(value)
        except ValueError as error:
            raise UsageError(f"{key}: {error}", where=source.place(path)) from None
    return settled(info.annotation if info else Any, value, source, path)


def _takes_whole_numbers(info: FieldInfo) -> bool:
    """Whether a field takes nothing but whole numbers, and has no reader of its own."""
    wanted = info.annotation is int or set(typing.get_args(info.annotation)) == {int, type(None)}
    return wanted and not any(isinstance(m, BeforeValidator) for m in info.metadata)


def whole_number(value: Any) -> Any:
    """The value. Raises ValueError for digits with leading zeros or underscores: octal to some, decimal to others."""
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9_]+", value) and not _WHOLE.match(value):
        raise ValueError(f"expected a whole number in plain decimal digits, got {one_line(repr(value), 60)}")
    return value


def _union(annotations: list[Any]) -> Any:
    return typing.Union[tuple(annotations)] if annotations else Any  # noqa: UP007  of as many as there are


def _members(annotation: Any) -> typing.Iterator[Any]:
    """The types of which a value may be one."""
    if typing.get_origin(annotation) is Annotated:
        yield from _members(typing.get_args(annotation)[0])
    elif typing.get_origin(annotation) in (typing.Union, type(int | str)):
        for one in typing.get_args(annotation):
            yield from _members(one)
    else:
        yield annotation
