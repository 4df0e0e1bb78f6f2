"""Calls of the room `files`: looked at, changed, put back."""

from __future__ import annotations

from typing import Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call

Owner = str | int | None  # a user or group, by name or number


class _Kind(TypedDict):
    kind: Literal["absent", "file", "dir", "link", "other"]


class State(_Kind, total=False):
    """How a path is. `real`: where it leads, if links were followed. `content`: it is the body of the reply."""

    mode: int
    uid: int
    gid: int
    owner: str
    group: str
    size: int
    sha256: str
    target: str
    real: str
    content: bool
    planted: bool


class Tree(TypedDict):
    """A folder, and all below it by relative path."""

    top: State
    entries: dict[str, State]


class Part(TypedDict):
    """What part of a file the body is: bytes from `offset`; `size` is that of the whole file."""

    size: int
    offset: int


@declared
def filelook_stat(
    path: str,
    digest: bool = True,
    content: int = 0,
    follow: bool = False,
    owner: Owner = None,
    group: Owner = None,
) -> Call[State]: ...


@declared
def filelook_read(path: str, offset: int = 0, limit: int = 1 << 20) -> Call[Part]: ...


@declared
def filelook_tree(path: str, digest: bool = True, owner: Owner = None, group: Owner = None) -> Call[Tree]: ...
