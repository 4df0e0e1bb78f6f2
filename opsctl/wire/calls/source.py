"""Calls of the room `source`: SGLang's source trees read, searched and patched, and what lies on a host of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.calls.server import ServerProcess
from opsctl.wire.protocol import Call


class GatheredFile(TypedDict):
    """That many bytes of the body. `head`: as the commit has it, where it was changed since."""

    path: str
    size: int
    sha256: str
    head: bool


class Git(TypedDict):
    """What git says of a tree. `git_refused`: why it was not asked, None where it was or there is no checkout."""

    commit: str | None
    dirty: list[str]
    git_refused: str | None


class Gathered(Git):
    """A source tree. `classes`: files that define them; `names`: all classes, where one of them was not found."""

    root: str
    prefix: str
    files: list[GatheredFile]
    classes: dict[str, list[str]]
    too_large: list[str]
    exists: list[str]
    names: list[str]


class Match(TypedDict):
    path: str
    line: int
    text: str


class Grepped(TypedDict):
    matches: list[Match]
    more: bool


class Proved(TypedDict):
    proof: str
    failures: list[str]


class Flags(TypedDict):
    """The package that a server would import, and the flags that it takes; None where that cannot be told."""

    package: str | None
    flags: list[str] | None


class DraftNames(TypedDict):
    """A served draft model. `layers`: names of its layers' tensors, None where they cannot be read."""

    path: str
    architectures: list[str]
    layers: list[str] | None


class PatchLook(Gathered):
    """A source tree with what bears on patching it. `imported`: the package that is served."""

    servers: list[ServerProcess]
    architectures: list[str]
    imported: str | None
    drafter: DraftNames | None
    readonly: list[str]


class Edit(TypedDict):
    """A file to be written: before (digest; None: absent), size of the new content (None: removed) and mode."""

    path: str
    before: str | None
    size: int | None
    mode: int | None


class Written(TypedDict):
    written: list[str]


class Restored(TypedDict):
    restored: bool


class About(TypedDict):
    """What a patching has noted of itself: names of patches by file (a list in older journals), and of those undone."""

    patches: dict[str, list[str]] | list[str]
    reverted: list[str]


class PatchStep(TypedDict):
    """A step of a journal that has patched a tree. `files`: digests before and after."""

    about: About
    files: dict[str, tuple[str | None, str | None]]


class Applied(TypedDict):
    """Steps that stand, the oldest first; `images`: digest and length of what the body holds one after the other."""

    steps: list[PatchStep]
    now: dict[str, str | None]
    images: list[tuple[str, int]]


class DiffTried(TypedDict):
    applies: bool
    already: bool
    message: str
    paths: list[str]


class DiffChange(TypedDict):
    """What a file would become. `old`, `new`: lengths of its contents in the body, None where there is none."""

    path: str
    before: str | None
    mode: int | None
    old: int | None
    new: int | None


class DiffsTried(TypedDict):
    diffs: list[DiffTried]
    changes: list[DiffChange]


class Model(TypedDict):
    path: str
    architecture: str


class Unit(TypedDict):
    name: str
    user: bool


class Lying(TypedDict):
    """What of SGLang lies on a host. `environments`: those that have SGLang; `models`: without draft models."""

    home: str
    checkouts: list[str]
    environments: list[str]
    models: list[Model]
    units: list[Unit]


@declared
def source_gather(
    root: str,
    files: Sequence[str],
    classes: Sequence[str] = (),
    exists: Sequence[str] = (),
    everywhere: bool = False,
) -> Call[Gathered]: ...


@declared
def source_grep(root: str, pattern: str, globs: Sequence[str] = ("*.py",), limit: int = 200) -> Call[Grepped]: ...


@declared
def source_prove(
    script: str, python: str = "", code: Sequence[str] = (), *, body: bytes = b""
) -> Call[list[Proved]]: ...


@declared
def launchflags_known(python: str, cwd: str | None = None, path: str | None = None) -> Call[Flags]: ...


@declared
def patchlook_look(
    root: str | None,
    files: Sequence[str],
    classes: Sequence[str] = (),
    exists: Sequence[str] = (),
    port: int | None = None,
    model: str | None = None,
    python: str | None = None,
    path: str | None = None,
    drafter: str | None = None,
    cwd: str | None = None,
) -> Call[PatchLook]: ...


@declared
def patching_apply(
    root: str,
    edits: Sequence[Edit],
    about: Mapping[str, Any] | None = None,
    python: str = "",
    script: str | None = None,
    code: Sequence[str] = (),
    *,
    body: bytes = b"",
) -> Call[Written]: ...


@declared
def patching_restore() -> Call[Restored]: ...


@declared
def patching_applied(root: str) -> Call[Applied]: ...


@declared
def diffing_attempt(root: str, sizes: Sequence[int], *, body: bytes = b"") -> Call[DiffsTried]: ...


@declared
def survey_look(roots: Sequence[str] | None = None, units: Sequence[str] | None = None) -> Call[Lying]: ...
