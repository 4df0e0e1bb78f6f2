"""Which release a source tree is, as far as the tree itself can tell.

A checkout carries no version since 0.5.7: `_version.py` is made by the build and stays behind when another commit is
checked out. The files that each release added are there in any case, so they bound the version, and a version file is
believed inside those bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.sglang import releases
from opsctl.sglang.releases import Version

VERSION_FILES = (
    "_version.py",
    "version.py",
    "__init__.py",
)  # made by the build; kept by hand up to 0.5.6.post2; by hand

# A file that each release added and every later one has; those that only mend one (0.5.8.post1) add none.
MARKERS = tuple((version, f"srt/models/{names[0]}") for version, names in releases.markers("models"))

_LINE = re.compile(rb"^(?:__version__|version)\s*=\s*(?:version\s*=\s*)?(['\"])([^'\"]+)\1", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TreeVersion:
    """`exact` where a version file tells it and the files agree; else bounds: at least `since`, before `before`."""

    exact: Version | None = None
    since: Version | None = None
    before: Version | None = None

    @property
    def floor(self) -> Version | None:
        """The release that the tree is at least."""
        return self.exact or self.since

    def __str__(self) -> str:
        if self.exact:
            return str(self.exact)
        bounds = [f">={self.since}" if self.since else "", f"<{self.before}" if self.before else ""]
        return ",".join(b for b in bounds if b)


def judge(version_files: Iterable[bytes], exists: frozenset[str]) -> TreeVersion:
    """The version of a tree with these contents of its version files and these of the marker files."""
    there = [release for release, path in MARKERS if path in exists]
    since = max(there, default=None)
    before = next((release for release, _ in MARKERS if since and release > since), None)
    matches = (_LINE.search(text) for text in version_files)
    told = next((Version.told(m.group(2).decode(errors="replace")) for m in matches if m), None)
    # Without any marker the tree is part of one, or older than all of them: nothing contradicts what it says.
    if told and (since is None or (told >= since and (before is None or told < before))):
        return TreeVersion(exact=told)
    return TreeVersion(since=since, before=before)
