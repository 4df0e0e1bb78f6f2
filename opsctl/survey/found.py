"""What was found on a host. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Checkout:
    """A source tree. commit, branch: None where it is no git checkout (or git could not say)."""

    path: str
    commit: str | None = None
    branch: str | None = None
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Running:
    """The server that runs.

    unit, container: how it is run; both None for a plain process. user_unit: of the user's own systemd.
    argv: as the process list shows it, keys masked. ours: whether opsctl started it.
    """

    pid: int
    argv: tuple[str, ...]
    python: str
    user: str | None
    unit: str | None
    user_unit: bool
    container: str | None
    log: str | None
    env: Mapping[str, str]
    ours: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """Everything that bears on the inventory.

    Attributes:
        name: what the host calls itself.
        home, user: of the user that we are there.
        port: of the server that is meant, where the user named one.
        environment, unit, model: what to use where nothing runs; the first of those that lie there.
        others: what was found besides, by kind, and not used.
        profile: of the GPUs, as `opsctl health --record` prints it; empty where there are none.
        notes: what could not be found out, in words.
    """

    name: str
    home: str
    user: str | None = None
    port: int | None = None
    server: Running | None = None
    checkout: Checkout | None = None
    package: str | None = None
    environment: str | None = None
    unit: str | None = None
    user_unit: bool = False
    model: str | None = None
    others: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    profile: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def owner(self) -> str | None:
        """The user that we must become to drive the server: it is a unit of a systemd that is not our own."""
        server = self.server
        return server.user if server and server.user_unit and server.user != self.user else None

    @property
    def foreign(self) -> bool:
        """Whether a plain process serves that somebody started by hand."""
        server = self.server
        return server is not None and not (server.ours or server.unit or server.container)
