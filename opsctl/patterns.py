"""Regular expressions that users write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from re import _constants as ops  # type: ignore[attr-defined]  # the parser's own words have no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_MANY = 16  # repetitions from which a search within a search takes forever
_REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)


@lru_cache(maxsize=256)
def compiled(text: str) -> re.Pattern[str]:
    """The pattern. Raises ValueError where it is none, or where it repeats what repeats, as in `(a+)+`.

    Where text does not match, such a pattern tries every way to share it out, which doubles with each character.
    Patterns that are slow for another reason, such as `(a|a)*`, are not recognised.
    """
    try:
        pattern = re.compile(text)
        tree = parser.parse(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None
    if any(_is_repeat_alone(body) for body in _repeated(tree)):
        raise ValueError(f"{text} repeats what repeats already, which may take forever: leave out one of the two, "
                         "as in (a+)+ or (a|b+)*")  # fmt: skip
    return pattern


def _repeated(tree: Any) -> Iterator[Any]:
    """What stands under a repetition, anywhere in the tree."""
    for op, value in tree:
        if op in _REPEATS and value[1] > _MANY:
            yield value[2]
        for part in _parts(op, value):
            yield from _repeated(part)


def _parts(op: Any, value: Any) -> list[Any]:
    """What is nested in an element."""
    if op is ops.BRANCH:
        return list(value[1])
    nested = value if isinstance(value, tuple) else (value,)
    return [part for part in nested if isinstance(part, parser.SubPattern)]


def _is_repeat_alone(tree: Any) -> bool:
    """Whether the tree may match by one repetition and nothing else: all around it may be empty."""
    for index, (op, value) in enumerate(tree):
        if tree[:index].getwidth()[0] or tree[index + 1 :].getwidth()[0]:
            continue
        if op in _REPEATS and value[1] - value[0] > _MANY:
            return True
        if op in (*_REPEATS, ops.SUBPATTERN, ops.BRANCH) and any(map(_is_repeat_alone, _parts(op, value))):
            return True
    return False
