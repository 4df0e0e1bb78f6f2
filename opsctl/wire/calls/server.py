"""Calls of the room `server`: found, started, waited for."""

from __future__ import annotations

from typing import TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.calls.process import Alive
from opsctl.wire.protocol import Call

LOG_MARK = "server-log"  # under this name a step keeps where the log of the start that it makes begins
STALL_SECONDS = 180.0  # no line and no growth of GPU memory for so long: a hang (NCCL, a stuck loader)


class _Process(TypedDict):
    """The first process of a server. Times are in seconds since the epoch, `start` is in clock ticks since boot.

    members: the pids of the server. argv: secrets masked. model, drafter: those that its command names, from its cwd.
    own: our user or root started it. user_unit: `unit` is one of a user's own systemd. environment: None where we may
    not read it. log: the file that standard output goes to.
    """

    pid: int
    start: int
    members: list[int]
    session: int
    parent: int
    argv: list[str]
    model: str | None
    drafter: str | None
    started: float
    now: float
    user: str | None
    cwd: str | None
    python: str
    own: bool
    environment: dict[str, str] | None
    unit: str | None
    user_unit: bool
    container: str | None
    log: str | None
    log_size: int
    boot: str


class ServerProcess(_Process, total=False):
    """The first process of a server, with what `locate` adds.

    package: the folder of the `sglang` package that it imported, None where its interpreter did not say. newest_file:
    the file of it that was changed last, at `newest`. commit: of the checkout that holds the package, where one does.
    """

    package: str | None
    newest: float | None
    newest_file: str | None
    commit: str | None


class Begun(TypedDict):
    """Where in its log the words of a start begin: `offset` of `file` (device, inode; None: none yet) at time `at`."""

    at: float
    log: str | None
    file: list[int] | None
    offset: int


class Ready(TypedDict):
    """How long a server took until it answered, and when each phase of its start began, in seconds of the wait."""

    seconds: float
    phases: dict[str, float]


@declared
def servers_find(locate: bool = False) -> Call[list[ServerProcess]]: ...


@declared
def startlog_mark(log: str | None = None, keep: str = LOG_MARK) -> Call[Begun]: ...


@declared
def startlog_of_run(run: str) -> Call[Begun | None]: ...


@declared
def ready_wait(
    port: int,
    host: str = "127.0.0.1",
    log: str | None = None,
    offset: int | None = None,
    timeout: float = 1200.0,
    stall: float | None = STALL_SECONDS,
    alive: Alive | None = None,
    begun: str | None = None,
) -> Call[Ready]: ...
