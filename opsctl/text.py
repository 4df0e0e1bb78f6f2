"""Text for people: safe to print, sizes and durations, the nearest valid name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from opsctl.secret import mask

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
"""What the name of a variable looks like."""

_KEEP = {"\n", "\t"}
# What a CI system takes for a command: `::` at the beginning of a line (GitHub, Gitea; one that a newline within the
# text begins, since the first one is begun by us), `##[` (GitHub) and `##vso[` (Azure).
_CI_COMMAND = re.compile(r"(?<=\n)([ \t]*):(?=:)|#(?=#(?:vso)?\[)")


def printable(text: str) -> str:
    """`text` with every character escaped that could drive a terminal, or a CI system that reads our output.

    These are controls, text direction, surrogates, and the first character of a CI system's command. Secrets that are
    known are masked.
    """
    text = mask(text)
    if not text.isprintable():
        text = "".join(c if c in _KEEP or c.isprintable() else _escape(c) for c in text)
    return _CI_COMMAND.sub(lambda found: (found[1] or "") + _escape(found[0][-1]), text)


def one_line(text: str, limit: int = 200) -> str:
    """`text` as one printable line of at most `limit` characters, secrets masked: half of one could not be."""
    flat = printable(" ".join(mask(text).split()))
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name most like `name`, if one is like it."""
    by_lower = {v.lower(): v for v in valid}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return by_lower[found[0]] if found else None


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest valid one, else all of them."""
    names = sorted(valid)
    close = nearest(name, names)
    return f"did you mean {close!r}?" if close else f"valid: {', '.join(names)}"


def few(names: Sequence[str], most: int = 5) -> str:
    """Names on one line, the first few of many: 'a, b, c and 97 more'."""
    if len(names) <= most:
        return ", ".join(names)
    shown = most - 2
    return f"{', '.join(names[:shown])} and {len(names) - shown} more"


def size(n: float) -> str:
    """Bytes for people, in binary units: 1536 -> '1.5 KiB'."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


def moment(iso: str) -> str:
    """A time of ISO 8601 to the second."""
    return re.sub(r"\.\d+", "", iso)


def duration(seconds: float) -> str:
    """Seconds for people: 0.123 -> '0.12 s', 75 -> '1 min 15 s'."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def _escape(c: str) -> str:
    code = ord(c)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
