"""SGLang release numbers, for the tables that say what each release does."""

from __future__ import annotations

import re
from typing import NamedTuple

_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:\.?post(\d+))?(?![\d.]*\d)")


class Release(NamedTuple):
    """A release; compares in the order of publication."""

    major: int
    minor: int
    patch: int
    post: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")


def parse(text: str | None) -> Release | None:
    """The release `text` names, or None.

    Development versions name no release: the version a checkout reports is made up from the nearest tag, or is
    0.0.0.dev0 without one, so nothing may be concluded from it.
    """
    if not text or "dev" in text or "+" in text:
        return None
    match = _RELEASE.match(text.strip())
    if not match:
        return None
    found = Release(*(int(part or 0) for part in match.groups()))
    return found if found > Release(0, 0, 0) else None
