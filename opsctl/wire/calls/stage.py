"""Calls of the room `stage`: draft models brought to the host as releases, and files that arrive in ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call

Chunk = tuple[int, int, str]  # start, end, digest: SHA-256 over those of its blocks
Span = tuple[str, int, int]  # name of a file, start, end
Stat = tuple[int, int, int]  # of a file: size, mtime in ns, inode
Chunks = Mapping[str, Sequence[Chunk]]  # by the name of the file
Taken = tuple[str, int, str, int, int]  # path of a file of the host, start there; name of a file, start, end


class Arrived(TypedDict):
    arrived: list[Span]


class Dropped(TypedDict):
    """`removed`: bytes of disk that are free again."""

    removed: int


class Received(TypedDict):
    written: int


class Held(TypedDict):
    """A release, and the chunks of its files."""

    path: str
    files: dict[str, list[Chunk]]


class SourceFound(TypedDict):
    """A folder that was read. Of one that is only outlined the digests are empty, unless all are remembered."""

    path: str
    digest: str
    files: dict[str, list[Chunk]]
    stats: dict[str, Stat]


class Stage(TypedDict):
    """What the host has of a draft model.

    Attributes:
        top: the folder of all releases of this name.
        there: what is there in the place of releases, by folder name: the digest, "" where one was changed.
        have: those to take parts from, the newest first; none where the release that is meant is there already.
        damaged: releases that do not say what they hold.
        partial: bytes of disk that one on its way has.
        foreign: its path, if it was begun for other files, else "".
        noted: whether it is known what of it has arrived without reading it.
        arrived: that.
        outdated: releases beyond those to keep, that nobody needs.
        source: the host's own folder that is to be staged, where one was named.
    """

    top: str
    there: dict[str, str]
    have: list[Held]
    damaged: list[str]
    partial: int
    foreign: str
    noted: bool
    arrived: list[Span]
    free: int
    outdated: list[str]
    source: SourceFound | None


class Prepared(TypedDict):
    """`partial`: the folder in which the release comes together."""

    partial: str


class Copied(TypedDict):
    copied: int


class Placed(TypedDict):
    """`made`: whether it was not there before."""

    release: str
    digest: str
    made: bool


class Pruned(TypedDict):
    removed: list[str]


class Removed(TypedDict):
    removed: bool


@declared
def arrival_begin(folder: str, sizes: Mapping[str, int]) -> Call[Arrived]: ...


@declared
def arrival_drop(folder: str) -> Call[Dropped]: ...


@declared
def arrival_receive(folder: str, parts: Sequence[Span]) -> Call[Received]: ...


@declared
def arrival_nothing() -> Call[None]: ...


@declared
def stage_look(
    root: str,
    name: str,
    key: str = "",
    digest: str = "",
    source: str = "",
    follow_links: bool = False,
    old: int = 0,
) -> Call[Stage]: ...


@declared
def stage_resume(root: str, name: str, key: str, files: Chunks) -> Call[list[Span]]: ...


@declared
def stage_prepare(
    root: str, name: str, key: str, sizes: Mapping[str, int], links: Sequence[Sequence[str]] = ()
) -> Call[Prepared]: ...


@declared
def stage_expect(root: str, name: str, key: str, digest: str, files: Chunks) -> Call[None]: ...


@declared
def stage_copy(root: str, name: str, key: str, copies: Sequence[Taken]) -> Call[Copied]: ...


@declared
def stage_place(root: str, name: str, key: str, keep_as: str) -> Call[Placed]: ...


@declared
def stage_prune(root: str, name: str, paths: Sequence[str]) -> Call[Pruned]: ...


@declared
def stage_remove(keep_as: str) -> Call[Removed]: ...


@declared
def stagesource_outline(path: str, follow_links: bool = False) -> Call[SourceFound]: ...


@declared
def stagesource_read(path: str, follow_links: bool = False) -> Call[SourceFound]: ...
