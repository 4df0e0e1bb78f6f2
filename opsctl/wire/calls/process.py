"""Calls of the room `process`: commands, processes, units, containers, and waiting for them."""

from __future__ import annotations

from typing import Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call

OUTPUT = 1 << 20  # bytes of each output stream that are returned: the first and the last half of it


class Restored(TypedDict):
    restored: bool


class Stopped(TypedDict):
    """Whether there was something to stop."""

    stopped: bool


class Started(TypedDict):
    """Whether something was started again."""

    started: bool


# proc


class Ran(TypedDict):
    """How a command ended; code: negative for a signal. dropped: bytes of output that were left out."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    dropped: int


@declared
def proc_run(
    argv: list[str] | str,
    shell: str = "/bin/sh",
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 600.0,
    idle: float | None = None,
    keep_output: int = OUTPUT,
    ok: list[int] | None = None,
    live: bool = False,
    sealed: int = 0,
    keep: str | None = None,
    body: bytes = b"",
) -> Call[Ran]: ...


@declared
def proc_undo(
    keep: str,
    argv: list[str] | str,
    shell: str = "/bin/sh",
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    timeout: float = 600.0,
    idle: float | None = None,
) -> Call[Restored]: ...


# process


class ProcessRecord(TypedDict):
    """What is kept of a process that was started; its environment is not told."""

    name: str
    argv: list[str]
    cwd: str
    log: str
    port: int | None
    pid: int
    sid: int
    start: int
    boot: str
    uid: int
    log_offset: int
    log_file: list[int]
    since: float
    exe: str | None


class Member(TypedDict):
    """A living process of a session; state: the letter of proc(5)."""

    pid: int
    state: str
    command: str


class _Status(TypedDict):
    state: Literal["running", "orphans", "dead", "absent"]


class Status(_Status, total=False):
    """A process by its record. orphans: it has died, children of it live. absent: there is no record, and no more here.

    group, bystanders: of one that was taken over; log_file: not of such a one. env_digest: of its environment.
    """

    name: str
    argv: list[str]
    cwd: str
    log: str
    port: int | None
    pid: int
    sid: int
    start: int
    boot: str
    uid: int | None
    log_offset: int
    log_file: list[int]
    since: float
    exe: str | None
    env_digest: str
    members: list[Member]
    group: int
    bystanders: list[list[int]]


class StoppedProcess(Stopped, total=False):
    pid: int


class Resumed(Started, total=False):
    """pid: of what was started, or runs in its place."""

    pid: int


class Service(TypedDict):
    """The unit of systemd that a process is; user: of a user's own systemd."""

    unit: str
    user: bool


class _Listener(TypedDict):
    pid: int | None
    command: str


class Listener(_Listener, total=False):
    """Who listens on a port: the first process of the SGLang server (`server`), else the listener itself.

    began: in seconds since the epoch. service: what would start it again. obstacle: why it cannot be taken over. Where
    `pid` is None, another user's process listens, and there is no more here.
    """

    start: int
    argv: list[str]
    server: bool
    user: str | None
    began: float
    service: Service | None
    obstacle: str | None


class Adopted(TypedDict):
    """adopted: the pid."""

    adopted: int


@declared
def process_status(name: str) -> Call[Status]: ...


@declared
def process_start(
    name: str,
    argv: list[str],
    log: str,
    cwd: str | None = None,
    env: dict[str, str] | None = None,
    port: int | None = None,
    sealed: int = 0,
    keep: str | None = None,
    judge: bool = False,
    body: bytes = b"",
) -> Call[ProcessRecord]: ...


@declared
def process_start_like(
    name: str, like: str, without: str | None = None, keep: str | None = None
) -> Call[ProcessRecord]: ...


@declared
def process_stop(name: str, wait: float = 90.0, keep: str | None = None) -> Call[StoppedProcess]: ...


@declared
def process_listener(port: int) -> Call[Listener | None]: ...


@declared
def process_adopt(name: str, pid: int, start: int, port: int | None = None) -> Call[Adopted]: ...


@declared
def process_restore(name: str, keep: str, wait: float = 90.0) -> Call[Restored]: ...


@declared
def process_resume(name: str, keep: str, wait: float = 90.0, judge: bool = False) -> Call[Resumed]: ...


# service

Action = Literal["daemon-reload", "enable", "disable", "start", "stop", "restart", "reload"]


class _Unit(TypedDict):
    up: bool
    enabled: bool


class Unit(_Unit, total=False):
    """A unit as `systemctl show` tells it, word for word; `up` and `enabled` are drawn from that.

    failing: why one that is up does not run as it should, None where nothing speaks against it.
    """

    failing: str | None
    Type: str
    RemainAfterExit: str
    ConditionResult: str
    TriggeredBy: str
    ExecMainCode: str
    LoadState: str
    ActiveState: str
    SubState: str
    UnitFileState: str
    MainPID: str
    ControlGroup: str
    NRestarts: str
    Result: str
    ExecMainStatus: str
    NeedDaemonReload: str
    FragmentPath: str
    InvocationID: str
    ExecMainStartTimestampMonotonic: str


@declared
def service_show(unit: str, user: bool = False) -> Call[Unit]: ...


@declared
def service_change(
    unit: str,
    actions: list[Action],
    user: bool = False,
    expect: dict[str, str | None] | None = None,
    timeout: float = 300.0,
    keep: str | None = None,
    judge: bool = False,
) -> Call[Unit]: ...


@declared
def service_restore(unit: str, keep: str, user: bool = False, timeout: float = 300.0) -> Call[Restored]: ...


@declared
def service_resume(
    unit: str, keep: str, user: bool = False, timeout: float = 300.0, judge: bool = False
) -> Call[Started]: ...


# container


class _Container(TypedDict):
    exists: bool
    running: bool


class Container(_Container, total=False):
    """A container, of which there is more only where it exists. mounts: folder inside -> folder on the host.

    restarting: it has ended and docker is about to start it again; restarts: how often it did.
    """

    restarting: bool
    restarts: int
    started: str | None
    pid: int | None
    image: str | None
    command: list[str]
    mounts: dict[str, str | None]


@declared
def container_look(name: str) -> Call[Container]: ...


@declared
def container_stop(name: str, wait: float, keep: str) -> Call[Stopped]: ...


@declared
def container_start(name: str, keep: str) -> Call[Container]: ...


@declared
def container_restore(name: str, keep: str, wait: float) -> Call[Restored]: ...


@declared
def container_resume(name: str, keep: str) -> Call[Started]: ...


# wait


class Alive(TypedDict, total=False):
    """What must not die while one waits: a process by its name or by pid and start, a unit, a container."""

    process: str
    unit: str
    user: bool
    container: str
    pid: int
    start: int


class Waited(TypedDict):
    """seconds: how long it took."""

    seconds: float


class HttpWaited(Waited):
    status: int


class LogWaited(Waited):
    line: str


@declared
def wait_port(
    port: int,
    host: str = "127.0.0.1",
    state: Literal["open", "closed"] = "open",
    timeout: float = 300.0,
    alive: Alive | None = None,
) -> Call[Waited]: ...


@declared
def wait_path(
    path: str, state: Literal["present", "absent"] = "present", timeout: float = 300.0, alive: Alive | None = None
) -> Call[Waited]: ...


@declared
def wait_http(
    url: str,
    status: list[int] | None = None,
    contains: str | None = None,
    headers: dict[str, str] | None = None,
    timeout: float = 300.0,
    alive: Alive | None = None,
    sealed: int = 0,
    body: bytes = b"",
) -> Call[HttpWaited]: ...


@declared
def wait_log(
    pattern: str,
    path: str | None = None,
    fail: str | None = None,
    offset: int | None = None,
    timeout: float = 300.0,
    stall: float | None = None,
    alive: Alive | None = None,
) -> Call[LogWaited]: ...
