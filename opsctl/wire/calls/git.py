"""Calls of the room `git`: checkouts looked at, brought to a commit, put back."""

from __future__ import annotations

from typing import Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call


class Edited(TypedDict):
    """A tracked file that was changed. status: two letters of git-status(1). submodule: it is a checkout by itself."""

    path: str
    status: str
    submodule: bool


class Head(TypedDict):
    """How a checkout is. under_way: what was begun in it, in words. untracked: the first of `untracked_count`."""

    head: str | None
    branch: str | None
    origin: str | None
    under_way: str | None
    changed: list[Edited]
    untracked: list[str]
    untracked_count: int


class _Looked(TypedDict):
    state: Literal["absent", "empty", "repo", "other"]
    wanted: str | None


class Checkout(_Looked, total=False):
    """A checkout, with what Head has where `state` is repo. wanted: the full id of the commit that was asked for."""

    head: str | None
    branch: str | None
    origin: str | None
    under_way: str | None
    changed: list[Edited]
    untracked: list[str]
    untracked_count: int


class Expected(TypedDict, total=False):
    """What a checkout must still be like."""

    head: str | None
    changed: list[Edited]


class CheckedOut(TypedDict):
    """Commits; before: None where there was none. saved: paths of local changes that are kept in the journal."""

    before: str | None
    after: str
    saved: list[str]


class Restored(TypedDict):
    restored: bool


@declared
def git_look(
    path: str, commit: str | None = None, ref: str | None = None, source: str | None = None, timeout: float = 60.0
) -> Call[Checkout]: ...


@declared
def git_checkout(
    path: str,
    commit: str,
    source: str | None = None,
    depth: int | None = None,
    submodules: bool = False,
    save_changes: bool = False,
    expect: Expected | None = None,
    timeout: float = 1800.0,
    keep: str | None = None,
) -> Call[CheckedOut]: ...


@declared
def git_restore(path: str, keep: str, timeout: float = 1800.0) -> Call[Restored]: ...
