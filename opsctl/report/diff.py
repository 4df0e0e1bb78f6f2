"""A change of a file for people: unified, cut where it is long, binary summarised, secrets left out."""

from __future__ import annotations

import difflib

from opsctl.modules.contract import FileDiff
from opsctl.secret import mask
from opsctl.text import printable, size

_MOST_LINES = 200
_MOST_BYTES = 1 << 20  # difflib is quadratic in the worst case


def unified(diff: FileDiff, most: int = _MOST_LINES) -> list[str]:
    """The lines of a unified diff, safe to print."""
    names = "/dev/null" if diff.before is None else diff.path, "/dev/null" if diff.after is None else diff.path
    head = f"--- {names[0]}", f"+++ {names[1]}"
    if diff.secret:
        return [*map(printable, head), "(content is secret)"]
    before, after = _text(diff.before), _text(diff.after)
    if before is None or after is None:
        return [*map(printable, head), f"(binary: {_size(diff.before)} -> {_size(diff.after)})"]
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm=""))
    if not lines and before != after:
        lines = [*head, "(only the end of the last line differs)"]
    if len(lines) > most:
        lines = [*lines[:most], f"(... {len(lines) - most} more lines)"]
    return [printable(mask(line)) for line in lines]


def _text(content: bytes | None) -> str | None:
    """Content as text, None where it is binary or too long to compare line by line."""
    if content is None:
        return ""
    if len(content) > _MOST_BYTES or b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _size(content: bytes | None) -> str:
    return "absent" if content is None else size(len(content))
