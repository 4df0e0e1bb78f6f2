"""What each SGLang release can do, as data: one file for each in `data/`, by `python -m opsctl.sglang.releases`.

A file tells what changed since the release before it, so that its review is the review of that release. Every answer is
for a release that was read: of another version nothing is said, and `nearest` names the one to compare with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from opsctl.sglang.releases.version import Range, Version

__all__ = ["Capture", "Layers", "Range", "Release", "Target", "Version", "known", "nearest", "of"]

_LAYER = re.compile(r"(?:(?P<number>\d+)|n(?: // (?P<part>\d+))?)(?: (?P<sign>[+-]) (?P<shift>\d+))?")


class Capture(StrEnum):
    """Whether a class records hidden states for EAGLE-3."""

    YES = "yes"
    DEPENDS = "depends"  # on the model that it is built around
    PATCH = "patch"  # not as it is; `opsctl patch sglang` gives it what it lacks
    NO_EFFECT = "setter-without-effect"  # it takes the layer ids, and nothing that runs reads them
    NO = "no"
    UNKNOWN = "unknown"  # built in a way that cannot be read


@dataclass(frozen=True, slots=True)
class Layers:
    """A layer counted from the number of layers n: n // part + shift; part 0: shift alone."""

    part: int
    shift: int

    @classmethod
    def parse(cls, text: str) -> Layers:
        """Read `2`, `n // 2`, `n - 3`. Raises ValueError."""
        found = _LAYER.fullmatch(text)
        if not found:
            raise ValueError(f"{text!r} counts no layer")
        shift = int(found["shift"] or 0) * (-1 if found["sign"] == "-" else 1)
        return cls(0, int(found["number"]) + shift) if found["number"] else cls(int(found["part"] or 1), shift)

    def of(self, n: int) -> int:
        return (n // self.part if self.part else 0) + self.shift

    def __add__(self, other: int) -> Layers:
        return Layers(self.part, self.shift + other)

    def __sub__(self, other: int) -> Layers:
        return Layers(self.part, self.shift - other)

    def __floordiv__(self, other: int) -> Layers:
        if self.shift:
            raise ValueError("a shifted count is not divided")
        return Layers(self.part * other, 0)

    def __str__(self) -> str:
        if not self.part:
            return str(self.shift)
        count = "n" if self.part == 1 else f"n // {self.part}"
        return f"{count} {'-' if self.shift < 0 else '+'} {abs(self.shift)}" if self.shift else count


@dataclass(frozen=True, slots=True)
class Target:
    """What a model class does as the target of EAGLE-3.

    default: the layers whose input it records when no ids are given, counted from the number of layers `n`.
    ids: what becomes of ids that are given: `+1`, `as written`, `+1 if first is 1`, `+1 unless last is n`.
    why: what stands against it, as the end of a sentence that begins with the class.
    around: the inner models that it has to be built around, where it may be built around others as well.
    """

    capture: Capture
    default: tuple[str, ...] = ()
    ids: str = ""
    why: str = ""
    around: tuple[str, ...] = ()

    def layers(self, n: int, ids: Iterable[int] | None = None) -> tuple[int, ...]:
        """The layers of a model of `n` whose input is recorded; () where it records none."""
        if ids is None:
            return tuple(Layers.parse(text).of(n) for text in self.default)
        given = tuple(ids)
        written = (
            not self.ids.startswith("+1")
            or (self.ids == "+1 if first is 1" and given[:1] != (1,))
            or (self.ids == "+1 unless last is n" and max(given, default=0) == n)
        )
        return given if written else tuple(i + 1 for i in given)


@dataclass(frozen=True)
class Release:
    """The facts of one release.

    algorithms: what `--speculative-algorithm` takes -> the algorithm that it means.
    draft_classes: architectures of draft models that have a class. nextn: architecture of a target -> that of the draft
    model that is in its own checkpoint. targets: every registered class that is no draft model.
    flags: of the launch command. fields: of ServerArgs, as the log prints them. models: files in srt/models.
    draft: what its draft model code does, as `opsctl source facts` names it.
    """

    version: Version
    algorithms: Mapping[str, str]
    draft_classes: frozenset[str]
    nextn: Mapping[str, str]
    targets: Mapping[str, Target]
    flags: frozenset[str]
    fields: frozenset[str]
    models: frozenset[str]
    draft: Mapping[str, str]

    @classmethod
    def made(cls, version: Version, state: State) -> Release:
        """The release whose whole state this is."""
        return cls(
            version,
            state["algorithms"],
            frozenset(state["draft_classes"]),
            state["nextn"],
            {
                name: Target(
                    Capture(t["capture"]),
                    tuple(t.get("default", ())),
                    t.get("ids", ""),
                    t.get("why", ""),
                    tuple(t.get("around", ())),
                )
                for name, t in state["targets"].items()
            },
            frozenset(state["flags"]),
            frozenset(state["fields"]),
            frozenset(state["models"]),
            state["draft"],
        )


# Section -> name -> what is said of it; a section that is a set says True of each.
State = dict[str, dict[str, Any]]
SETS = ("draft_classes", "flags", "fields", "models")
SECTIONS = ("algorithms", "nextn", "targets", "draft", *SETS)


def known() -> tuple[Version, ...]:
    """Every release that was read, oldest first."""
    return tuple(_states())


@cache
def of(version: Version) -> Release:
    """The facts of a release. Raises KeyError where it was not read: see `nearest`."""
    return Release.made(version, _states()[version])


def nearest(version: Version) -> Version:
    """The release to compare with: the newest read that is not newer than `version`, else the oldest."""
    return max((one for one in known() if one <= version), default=known()[0])


@cache
def _states() -> dict[Version, State]:
    return states(Path(__file__).parent / "data")  # not importlib.resources: it takes 10 ms to load


@cache
def spans(section: str) -> dict[str, tuple[Version, Version]]:
    """The first and the last release with each name of a section."""
    found: dict[str, tuple[Version, Version]] = {}
    for version, state in _states().items():
        for name in state[section]:
            found[name] = (found[name][0] if name in found else version, version)
    return found


def drafting_class(architecture: str) -> str | None:
    """The class that a target's own layers draft by, in the newest release that has one for it."""
    found = (state["nextn"].get(architecture) for state in reversed(_states().values()))
    return next((name for name in found if name), None)


def first(section: str, name: str, said: Any = True) -> Version:
    """The first release that has a name, or says this of it. Raises KeyError where none does."""
    for version, state in _states().items():
        if state[section].get(name) == said:
            return version
    raise KeyError(name)


@cache
def markers(section: str) -> tuple[tuple[Version, tuple[str, ...]], ...]:
    """For each release that has some, the names that are new in it and in every later one, oldest first."""
    found: dict[Version, list[str]] = {version: [] for version in known()}
    for name, (first, _) in sorted(spans(section).items()):
        if all(name in state[section] for version, state in _states().items() if version >= first):
            found[first].append(name)
    return tuple((version, tuple(names)) for version, names in list(found.items())[1:] if names)


def states(folder: Path) -> dict[Version, State]:
    """The whole state of each release with a file in `folder`, oldest first."""
    files = {Version.parse(f.name.removesuffix(".json")): f for f in folder.iterdir() if f.name.endswith(".json")}
    found: dict[Version, State] = {}
    state: State = {section: {} for section in SECTIONS}
    for version in sorted(files):
        state = after(state, json.loads(files[version].read_text("utf-8")))
        found[version] = state
    return found


def after(state: State, change: Mapping[str, Any]) -> State:
    """The state of the release that changed so much since the one whose state is given."""
    found = {}
    for section, before in state.items():
        told = change.get(section, {})
        new = told.get("new", {})
        if section in SETS:
            new = dict.fromkeys(new, True)
        elif section == "targets":
            groups = [(group.pop("classes"), group) for group in map(dict, new)]
            new = {name: answer for classes, answer in groups for name in classes}
        gone = set(told.get("gone", ()))
        found[section] = {name: said for name, said in {**before, **new}.items() if name not in gone}
    return found
