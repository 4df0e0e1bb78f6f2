"""SGLang versions and ranges of them: the one type for both, wherever a version is named."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Any

from opsctl.errors import UsageError

_TEXT = re.compile(
    r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:[.-]?(post|rc|a|b|dev)(\d{1,9}))?(?:\.dev\d+)?(?:\+[\w.]+)?", re.ASCII
)
_TOLD = re.compile(r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:\.?post(\d{1,9}))?(?![\d.]*\d)", re.ASCII)
_BETWEEN = " to "


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """An SGLang version. Post releases come after their release; a pre-release counts as the release it leads to.

    text: how it was written, where that differs from how it is printed.
    """

    major: int
    minor: int
    patch: int
    post: int = 0
    text: str = ""

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read what a user wrote. Raises UsageError."""
        found = _TEXT.fullmatch(text.strip())
        if not found:
            raise UsageError(f"{text!r} is not an SGLang version", hint="write it like 0.5.9 or 0.5.10.post1")
        major, minor, micro, kind, number = found.groups()
        post = int(number) if kind == "post" else 0
        return cls(int(major), int(minor), int(micro), post, text.strip())

    @classmethod
    def told(cls, text: str | None) -> Version | None:
        """Read the release that a program names; None where it names none.

        Development versions name no release: the version a checkout reports is made up from the nearest tag, or is
        0.0.0.dev0 without one, so nothing may be concluded from it.
        """
        if not text or "dev" in text or "+" in text:
            return None
        match = _TOLD.match(text.strip())
        if not match:
            return None
        major, minor, patch, post = (int(part or 0) for part in match.groups())
        found = cls(major, minor, patch, post)
        return found if found > cls(0, 0, 0) else None

    @property
    def key(self) -> tuple[int, int, int, int]:
        """What versions are compared by."""
        return self.major, self.minor, self.patch, self.post

    def __lt__(self, other: Version) -> bool:
        return self.key < other.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return self.text or f"{self.major}.{self.minor}.{self.patch}" + (f".post{self.post}" if self.post else "")


@dataclass(frozen=True, slots=True)
class Range:
    """The releases from `first` to `last`, both included: all that is known of a server that does not name its own."""

    first: Version
    last: Version

    @classmethod
    def told(cls, text: str | None) -> Range | None:
        """Read `0.5.9` or `0.5.10 to 0.5.10.post1`; None where it is neither."""
        first, _, last = (text or "").partition(_BETWEEN)
        low, high = Version.told(first), Version.told(last or first)
        return cls(low, high) if low and high and low <= high else None

    def __contains__(self, version: Any) -> bool:
        return isinstance(version, Version) and self.first <= version <= self.last

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}{_BETWEEN}{self.last}"
