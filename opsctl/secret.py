"""Secrets: values that are used but never shown.

Two nets, because either alone has holes. By type: a `Secret` prints as `***` wherever it is formatted. By value: what
was revealed once is masked by `mask` in every text that leaves the process (terminal, events, reports, errors).
"""

from __future__ import annotations

import json
from typing import Any, NoReturn
from urllib.parse import quote

MASK = "***"
_SHORTEST = 4  # masking shorter values would blot out ordinary text
_revealed: set[str] = set()


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


def remember(value: str) -> None:
    """Have `mask` hide this value, and each line of it, from now on; as JSON and URLs write it, too."""
    for part in {value.strip(), *(line.strip() for line in value.splitlines())}:
        if len(part) >= _SHORTEST:
            _revealed.update(
                (part, json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], quote(part, ""))
            )


def revealed() -> frozenset[str]:
    """What `mask` hides so far, for a CI system that wants to be told as well."""
    return frozenset(_revealed)


def mask(text: str) -> str:
    """`text` with every value that was revealed replaced by `***`, the longest first."""
    for value in sorted(_revealed, key=len, reverse=True):
        text = text.replace(value, MASK)
    return text


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
