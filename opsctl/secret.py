"""Secrets: values that are used but never shown.

Two nets, because either alone has holes. By type: a `Secret` prints as `***` wherever it is formatted. By value: what
is known is masked by `mask` in every text that leaves the process (terminal, events, reports, errors).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from opsctl.wire import masking
from opsctl.wire.secret_values import parts

MASK = masking.MASK


class Secret:
    """A value that formats as `***`. `reveal()` gives it, and from then on `mask` hides it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        remember(self._value)
        return self._value

    def __repr__(self) -> str:
        return MASK

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return MASK

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is never serialised")


def secrets_in(value: Any) -> Iterator[Secret]:
    """Every secret inside settings, variables or arguments."""
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Mapping):
        for element in value.values():
            yield from secrets_in(element)
    elif isinstance(value, list | tuple):
        for element in value:
            yield from secrets_in(element)
    elif hasattr(value, "model_dump"):
        yield from secrets_in(vars(value))


def remember(value: str) -> None:
    """Have `mask` hide this value, and each line of it, from now on, in every form in which a text may carry it."""
    masking.learn([value])


def revealed() -> frozenset[str]:
    """What `mask` hides so far, for a CI system that wants to be told as well."""
    return frozenset(part for value in masking.learnt() for part in parts(value))


def mask(text: str) -> str:
    """`text` with every value that is known replaced by `***`. Comes before anything that cuts or wraps it."""
    return masking.known(text)


def masked(value: Any) -> Any:
    """`value` (JSON-like) with every secret in it masked, by type and by value."""
    match value:
        case Secret():
            return MASK
        case str():
            return mask(value)
        case dict():
            return {masked(k): masked(v) for k, v in value.items()}
        case list() | tuple() | set():
            return [masked(v) for v in value]
    return value
