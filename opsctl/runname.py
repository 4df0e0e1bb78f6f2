"""Names of runs: how they are made, and which run a word names."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from opsctl.errors import UsageError
from opsctl.text import few, nearest

LAST = "last"
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def new() -> str:
    """A name that no other run has; names sort by the time at which they were made."""
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S-") + secrets.token_hex(2)


def check(word: str) -> None:
    """Raise UsageError unless a run can have this name."""
    if not _VALID.match(word):
        raise UsageError(f"{word!r} cannot be the name of a run", hint="opsctl history lists them")


def meant(word: str, known: Sequence[str], where: str) -> str:
    """The one run that `word` names: `last`, its name, or the beginning of it. `known`: all of them, the newest first.

    Raises UsageError with the nearest names; `where` says in it who was asked.
    """
    if word == LAST and known:
        return known[0]
    found = [word] if word in known else [name for name in known if word and name.startswith(word)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} runs begin with {word!r} {where}: {few(found)}", hint="give more of the name")
    close = nearest(word, [LAST, *known[:50]])
    newest = f"the newest {'is' if len(known) == 1 else 'are'} {few(known[:3])}; " if known else ""
    raise UsageError(
        f"there is no run {word!r} {where}",
        hint=(f"did you mean {close!r}? " if close else newest)
        + "`opsctl history` lists the runs of this machine, with --host those of a host",
    )
