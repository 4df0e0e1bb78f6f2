"""One change of a text taken back from what the text has become since, as a three-way merge does. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import NamedTuple


class _Change(NamedTuple):
    """Lines `first` to `last` (not itself) of a text become `lines`."""

    first: int
    last: int
    lines: tuple[bytes, ...]


def taken_back(now: bytes, after: bytes, before: bytes) -> bytes | None:
    """`now` without the change from `before` to `after`, all that came later kept.

    None where something came later in the lines of that change, or right beside them: then it is not told apart.
    """
    lines = after.splitlines(keepends=True)
    later = _changes(lines, now.splitlines(keepends=True))
    back = [change for change in _changes(lines, before.splitlines(keepends=True)) if change not in later]
    if any(one.first <= other.last and other.first <= one.last for one in back for other in later):
        return None
    for first, last, new in sorted((*later, *back), reverse=True):
        lines[first:last] = new
    return b"".join(lines)


def _changes(old: Sequence[bytes], new: Sequence[bytes]) -> list[_Change]:
    found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [_Change(a, b, tuple(new[c:d])) for tag, a, b, c, d in found if tag != "equal"]
