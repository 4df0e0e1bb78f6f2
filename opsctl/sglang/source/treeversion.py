"""Which release a source tree is, as far as the tree itself can tell.

A checkout carries no version since 0.5.7: `_version.py` is made by the build and stays behind when another commit is
checked out. The files that each release added are there in any case, so they bound the version, and a version file is
believed inside those bounds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.sglang.releases.version import Version

VERSION_FILES = (
    "_version.py",
    "version.py",
    "__init__.py",
)  # made by the build; kept by hand up to 0.5.6.post2; by hand

# The first release with each file, read from the wheels of 0.5.6 to 0.5.23; each file is in every later one. Releases
# that only mend one (0.5.8.post1 and the like) add none.
MARKERS: tuple[tuple[Version, str], ...] = (
    (Version(0, 5, 6, 1), "srt/models/ministral3.py"),
    (Version(0, 5, 6, 2), "srt/models/paddleocr_vl.py"),
    (Version(0, 5, 7), "srt/models/glmasr.py"),
    (Version(0, 5, 8), "srt/models/afmoe.py"),
    (Version(0, 5, 9), "srt/models/sdar.py"),
    (Version(0, 5, 10), "srt/models/sarvam_moe.py"),  # in its release candidate too
    (Version(0, 5, 11), "srt/models/dflash.py"),
    (Version(0, 5, 12), "srt/models/laguna.py"),
    (Version(0, 5, 13), "srt/models/step3p7.py"),
    (Version(0, 5, 14), "srt/models/zaya.py"),
    (Version(0, 5, 15), "srt/models/hrm_text.py"),
    (Version(0, 5, 16), "srt/models/mellum.py"),
    (Version(0, 5, 17), "srt/models/kimi_k3.py"),
    (Version(0, 5, 18), "srt/models/muse_glimmer.py"),
    (Version(0, 5, 19), "srt/models/dots3.py"),
    (Version(0, 5, 20), "srt/models/cosmos3.py"),
    (Version(0, 5, 21), "srt/models/iquest_q1.py"),
    (Version(0, 5, 22), "srt/models/embedding_gemma2.py"),
    (Version(0, 5, 23), "srt/models/beam.py"),
)

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
