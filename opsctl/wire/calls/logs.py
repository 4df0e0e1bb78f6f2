"""Calls of the room `logs`: read, followed, collected."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.calls.server import Begun
from opsctl.wire.protocol import Call

Level = Literal["info", "warning", "error"]
Place = list[int] | str | int  # where to go on: device, inode and offset of a file; a cursor of journald; a time


class _Mark(TypedDict):
    name: str
    at: str | None
    rank: str | None


class Mark(_Mark, total=False):
    """A line of a log that means something. `at` is its own time as text; what else there is depends on `name`.

    Named as the patterns of wire/log_patterns; besides them `exception` (head, errors with the root first, kind,
    where), `problem` (kind, text) and `clock_jump` (seconds). loose: it has no time of its own, `at` is that of the
    line before. before: the time of the line before a start.
    """

    loose: bool
    before: str | None
    args: str
    elapsed: str
    avail: str
    used: str
    type: str
    tokens: str
    context: str
    sizes: str
    what: str
    text: str
    left: str
    requests: str
    pid: str
    code: str
    head: str
    errors: list[str]
    kind: str
    where: str | None
    seconds: int


class Sum(TypedDict):
    count: int
    mean: float
    min: float
    max: float
    last: float


class Bucket(TypedDict):
    """The Decode lines of one stretch of time, from `at` on: means of accept length and tokens a second."""

    at: int
    lines: int
    accept: float | None
    throughput: float


class Decode(TypedDict):
    """What the Decode lines of a log say together; `series` has a bucket for each `bucket_seconds`."""

    lines: int
    accept_length: Sum | None
    last_accept_rate: float | None
    last_accept_at: str | None
    throughput: Sum | None
    bucket_seconds: int
    series: list[Bucket]


class Rank(TypedDict):
    """The lines of interest of one rank: how many, and the last one with its time."""

    lines: int
    last_at: str
    last: str


class Scan(TypedDict):
    """What a log says, in the order of its lines, secrets masked.

    dropped_marks: how many there were beyond those in `marks`. samples: one line of each kind whose wording tells the
    version. sequences: how many began; one whose prompt is taken in parts is counted for each. bytes: length of the
    complete lines, the offset to go on from.
    """

    marks: list[Mark]
    dropped_marks: int
    decode: Decode
    sequences: int
    samples: dict[str, str]
    ranks: dict[str, Rank]
    first_at: str | None
    last_at: str | None
    lines: int
    bytes: int


class FileScan(Scan):
    """The scan of a file, which has this device and inode, from `offset` on."""

    file: list[int]
    offset: int


class LogFile(TypedDict):
    path: str
    size: int
    changed: float


class LogFiles(TypedDict):
    """The files of a log, oldest first, and the host's time."""

    files: list[LogFile]
    now: float


class _Part(TypedDict):
    name: str


class Part(_Part, total=False):
    """A part of a bundle. One of

    argv: the output of a command, stdout and stderr; python, script: what an interpreter prints; path: a file; logs: a
    log, oldest file first; git, tree: what git says in a checkout; call, args: what another call of the agent gives.

    nul: NULs separate its items. since: seconds back; begun: from a start on. seconds: its time limit. head, window,
    tail: bytes kept of its beginning, from the first trouble on, and of its end.
    """

    argv: list[str]
    python: str
    script: str
    path: str
    logs: list[str]
    git: list[str]
    tree: str
    call: str
    args: dict[str, Any]
    nul: bool
    since: float
    begun: Begun
    seconds: float
    head: int
    window: int
    tail: int


class Entry(TypedDict):
    """What became of a part. bytes: of the whole; kept: of what is in the bundle; sent: of what travelled."""

    name: str
    source: str
    exit: int | None
    error: str | None
    sent: int
    bytes: int
    kept: int
    masked: int
    truncated: bool
    seconds: float


class Manifest(TypedDict):
    """The parts in the order they were asked for, and the processor time that they took."""

    parts: list[Entry]
    cpu_seconds: float


@declared
def serverlog_scan(
    path: str, offset: int = 0, limit: int = 0, older: list[str] | tuple[str, ...] = (), body: bytes = b""
) -> Call[FileScan]: ...


@declared
def serverlog_scan_unit(unit: str, user: bool = False, body: bytes = b"") -> Call[Scan]: ...


@declared
def logfiles_look(path: str = "") -> Call[LogFiles]: ...


@declared
def follow_lines(
    path: str | None = None,
    unit: str | None = None,
    user_unit: bool = False,
    container: str | None = None,
    at: Place | None = None,
    past: int = 10,
    grep: str | None = None,
    level: Level = "info",
    keep_prompts: bool = False,
    body: bytes = b"",
) -> Call[None]: ...


@declared
def collect_bundle(
    parts: list[Part],
    more: bool = False,
    hosts: list[str] | tuple[str, ...] = (),
    keep_prompts: bool = False,
    root: str = "/",
    body: bytes = b"",
) -> Call[Manifest]: ...
