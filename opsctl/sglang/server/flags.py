"""Flags of a launch command that the SGLang which is to take them does not have. Pure.

An unknown flag ends a start at once, when the server before it has already been stopped.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache

from opsctl.sglang import releases
from opsctl.sglang.releases import Version
from opsctl.text import nearest
from opsctl.wire import command_line

OLDEST, NEWEST = releases.known()[0], releases.known()[-1]


@dataclass(frozen=True, slots=True)
class Since:
    """The releases with a flag; None: older than the oldest that was read, newer than the newest."""

    first: Version | None
    last: Version | None

    def __str__(self) -> str:
        if self.first and self.last:
            return f"from {self.first} to {self.last}"
        return f"from {self.first} on" if self.first else f"up to {self.last}" if self.last else ""


@cache
def history() -> dict[str, Since]:
    """Every flag of the releases OLDEST to NEWEST, from their source."""
    return {
        flag: Since(first if first > OLDEST else None, last if last < NEWEST else None)
        for flag, (first, last) in releases.spans("flags").items()
    }


@dataclass(frozen=True, slots=True)
class Unknown:
    """A flag that is not taken. near: the nearest that is. since: the releases that have it, where any does."""

    flag: str
    near: str | None
    since: Since | None

    @property
    def hint(self) -> str:
        if self.since is not None and str(self.since):
            there = f"SGLang has it {self.since}"
            return f"{there}; the nearest here is {self.near}" if self.near else there
        return f"did you mean {self.near}?" if self.near else "`python -m sglang.launch_server --help` lists them"


def interpreter(argv: Sequence[str]) -> str | None:
    """The Python that runs a launch command; None where it is another program's affair."""
    if not argv or command_line.arguments(argv) is None:
        return None
    folder, program = posixpath.split(argv[0])
    if program.startswith("python"):
        return argv[0]
    return posixpath.join(folder, "python") if program == "sglang" and folder else None


def unknown(argv: Sequence[str], taken: Collection[str] | None = None) -> list[Unknown]:
    """The flags of a launch command that are not among those `taken`; by default, that no release has.

    As argparse does, a beginning is taken for the whole. A command of something else has none.
    """
    known = history() if taken is None else taken
    said = command_line.read(argv) if command_line.arguments(argv) is not None else ()
    names = dict.fromkeys(one.words[0].partition("=")[0] for one in said if one.name.startswith("--"))
    return [
        Unknown(name, nearest(name, known), history().get(name))
        for name in names
        if not any(flag.startswith(name) for flag in known)
    ]
