"""Calls of the room `files`: looked at, changed, put back."""

from __future__ import annotations

from typing import Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call

Owner = str | int | None  # a user or group, by name or number
Bar = list[str]  # kind and message, as of an AgentError: why a change cannot be made


class _Kind(TypedDict):
    kind: Literal["absent", "file", "dir", "link", "other"]


class State(_Kind, total=False):
    """How a path is.

    What else there is goes by the kind: all but `absent` have uid, gid, owner and group; links a `target`, the others a
    mode; files a size and, where it was asked for, a digest. `real`: where it leads, if links were followed.
    `content`: it is the body of the reply. `barred`, `ground`, `free`: see agent/files/look. `warning`: what could
    not be done as it should, from a call that changes something.
    """

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
    barred: dict[str, Bar]
    ground: str
    free: int
    warning: str


class Tree(TypedDict):
    """A folder, and all below it by relative path."""

    top: State
    entries: dict[str, State]


class Part(TypedDict):
    """What part of a file the body is: bytes from `offset`; `size` is that of the whole file."""

    size: int
    offset: int


class Restored(TypedDict):
    restored: bool


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


@declared
def files_write(
    path: str,
    mode: int | None = None,
    owner: Owner = None,
    group: Owner = None,
    expect: State | None = None,
    keep: str | None = None,
    *,
    body: bytes = b"",
) -> Call[State]: ...


@declared
def files_adopt(
    partial: str,
    path: str,
    sha256: str,
    mode: int | None = None,
    owner: Owner = None,
    group: Owner = None,
    expect: State | None = None,
    keep: str | None = None,
) -> Call[State]: ...


@declared
def files_attributes(
    path: str,
    mode: int | None = None,
    owner: Owner = None,
    group: Owner = None,
    expect: State | None = None,
    keep: str | None = None,
) -> Call[State]: ...


@declared
def files_mkdir(
    path: str,
    mode: int | None = None,
    owner: Owner = None,
    group: Owner = None,
    keep: str | None = None,
) -> Call[State]: ...


@declared
def files_link(path: str, target: str, expect: State | None = None, keep: str | None = None) -> Call[State]: ...


@declared
def files_remove(path: str, expect: State | None = None, keep: str | None = None) -> Call[State]: ...


@declared
def files_restore(path: str, keep: str) -> Call[Restored]: ...
