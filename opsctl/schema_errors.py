"""What pydantic says about a document, told with the place in the file and the nearest valid name."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from opsctl.errors import UsageError
from opsctl.secret import Secret, masked
from opsctl.text import did_you_mean, one_line
from opsctl.wire.secret_names import holds_secret
from opsctl.yaml_source import Source, settled

_PLAINLY = {
    "string_type": "expected text",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "list_type": "expected a list",
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a mapping",
    "model_attributes_type": "expected a mapping",
    "is_instance_of": "expected another kind of value",
    "greater_than": "expected more than {gt}",
    "greater_than_equal": "expected at least {ge}",
    "less_than": "expected less than {lt}",
    "less_than_equal": "expected at most {le}",
    "string_too_short": "expected at least {min_length} characters",
    "string_pattern_mismatch": "expected text that matches {pattern}",
    "too_short": "expected a list of at least {min_length}",
    "extra_forbidden": "unknown key",
    "missing": "is missing",
}
_IN_OUR_WORDS = ("value_error", "assertion_error")  # raised by a validator of ours, name and all
_OF_ANOTHER_KIND = ("_type", "_parsing", "is_instance_of")


def validate(model: type[BaseModel], value: Any, source: Source, base: Sequence[str | int] = ()) -> Any:
    """`value`, which stands at `base` of `source`, as a `model`. Raises UsageError with every problem."""
    value = settled(model, value, source, tuple(base))
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise UsageError.of(problems(error, model, source, base)) from None


def problems(
    error: ValidationError, model: type[BaseModel], source: Source, base: Sequence[str | int] = ()
) -> list[UsageError]:
    """Every problem of a failed validation as an error with a place, in the order of the file."""
    # Where a union was tried, pydantic reports each member: the report that got deepest is the one that helps, and of
    # those one of a member whose kind the value has.
    found = sorted(
        error.errors(include_url=False),
        key=lambda e: (-_depth(e["loc"], source, base), e["type"].endswith(_OF_ANOTHER_KIND)),
    )
    told: dict[tuple[str | int, ...], UsageError] = {}
    for one in found:
        path = _path(one["loc"], source, base)
        if any(path == seen[: len(path)] for seen in told):
            continue
        told[path] = _problem(one, path, path[-1] if len(path) > len(base) else "", model, source)
    return sorted(told.values(), key=lambda e: (getattr(e.where, "line", 0) or 0, getattr(e.where, "column", 0) or 0))


def _problem(
    one: Any, path: tuple[str | int, ...], name: str | int, model: type[BaseModel], source: Source
) -> UsageError:
    """`name`: of the value itself, where it has one."""
    kind, last = one["type"], str(one["loc"][-1]) if one["loc"] else ""
    if kind == "extra_forbidden":
        valid = _fields_at(model, one["loc"][:-1])
        return UsageError(
            f"unknown key {one_line(last)!r}", where=source.key_place(path), hint=did_you_mean(last, valid)
        )
    if kind == "missing":
        return UsageError(f"the key {last!r} is missing", where=source.place(path))
    named = f"{name}: " if isinstance(name, str) and name and kind not in _IN_OUR_WORDS else ""
    return UsageError(f"{named}{plainly(one)}", where=source.place(path))


def plainly(one: Any) -> str:
    """What one of the errors of a failed validation says, in our words and without its place."""
    kind = one["type"]
    if kind in _IN_OUR_WORDS:
        return str(one["ctx"]["error"])
    if isinstance(one["input"], Secret):
        return "a secret cannot stand here: it would be seen by others"
    known = _PLAINLY.get(kind)
    message = known.format_map(one.get("ctx", {})) if known else one["msg"].replace("Input should be", "expected")
    if kind in ("extra_forbidden", "missing") or any(_names_secret(part) for part in one["loc"]):
        return message
    return f"{message}, got {_shown(one['input'])}"


def _names_secret(part: Any) -> bool:
    """Whether what stands under this key is a secret, whatever it is: then it is not quoted."""
    return isinstance(part, str) and holds_secret(part, "a value")


def _shown(value: Any) -> str:
    return one_line(repr(masked(value)), 80)


def _depth(loc: Sequence[str | int], source: Source, base: Sequence[str | int]) -> int:
    return len(_path(loc, source, base))


def _path(loc: Sequence[str | int], source: Source, base: Sequence[str | int]) -> tuple[str | int, ...]:
    """`loc` without the parts that name members of unions and not places in the document."""
    path = tuple(base)
    for part in loc:
        if (*path, part) in source.values or (*path, part) in source.keys:
            path = (*path, part)
    return path


def _fields_at(model: Any, loc: Sequence[str | int]) -> list[str]:
    """The keys that are valid where `loc` leads, starting at `model`."""
    here = [model]
    for part in loc:
        step: list[Any] = []
        for candidate in here:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                named = {info.alias or name: info.annotation for name, info in candidate.model_fields.items()}
                step += _members(named[part]) if part in named else []
            else:
                step += [m for arg in typing.get_args(candidate) for m in _members(arg)]
        here = step or here
    models = [c for c in here if isinstance(c, type) and issubclass(c, BaseModel)]
    return [info.alias or name for m in models for name, info in m.model_fields.items()]


def _members(annotation: Any) -> list[Any]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [m for arg in typing.get_args(annotation) for m in _members(arg)]
    return [annotation]
