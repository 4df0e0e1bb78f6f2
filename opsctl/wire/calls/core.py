"""Calls of the room `core`: what a host is, its lock, its journal of runs, supervised changes, HTTP from the host."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call

NamedCall = list[Any]  # [name, arguments]: a call without body, as it lies in a journal
StepCall = list[Any]  # [name, arguments, length of its part of the body]


class Fault(TypedDict):
    """What went wrong on the host, see AgentError; there may be more in it."""

    kind: str
    message: str


# facts


class OsFacts(TypedDict):
    id: str
    version: str
    name: str


class KernelFacts(TypedDict):
    release: str
    machine: str
    command_line: str


class CpuFacts(TypedDict):
    model: str
    count: int
    sockets: int


class MemoryFacts(TypedDict):
    """In bytes."""

    total: int
    available: int
    swap_total: int
    swap_free: int


class _Disk(TypedDict):
    path: str
    device: str
    type: str


class Disk(_Disk, total=False):
    """A mounted file system; its size in bytes where it is a local one."""

    total: int
    free: int


class NumaNode(TypedDict):
    node: int
    cpus: str


class GpuDevice(TypedDict):
    """A GPU as the kernel lists it. bus, device, numa: as in sysfs."""

    bus: str
    device: str
    numa: str


class Gpu(TypedDict, total=False):
    """A GPU as nvidia-smi tells it, word for word."""

    index: str
    uuid: str
    bus: str
    name: str
    driver: str
    memory_mib: str


class _GpuFacts(TypedDict):
    devices: list[GpuDevice]
    driver: str | None
    gpus: list[Gpu]
    count: int


class GpuFacts(_GpuFacts, total=False):
    """nvidia_smi: why it did not answer."""

    nvidia_smi: str | None


class PythonFacts(TypedDict):
    version: str
    executable: str


class CudaFacts(TypedDict):
    homes: list[str]
    home: str | None
    version: str | None


class HostFacts(TypedDict):
    """uptime: in seconds."""

    name: str
    boot: str
    uptime: float


class UserFacts(TypedDict):
    name: str
    uid: int
    home: str
    shell: str


class _Facts(TypedDict):
    missing: dict[str, str]


class Facts(_Facts, total=False):
    """The parts that were asked for. missing: why others are not there, by part."""

    os: OsFacts
    kernel: KernelFacts
    cpu: CpuFacts
    memory: MemoryFacts
    disks: list[Disk]
    numa: list[NumaNode]
    gpu: GpuFacts
    python: PythonFacts
    cuda: CudaFacts
    host: HostFacts
    user: UserFacts


@declared
def facts_gather(parts: list[str] | None = None, limit: float = 5.0) -> Call[Facts]: ...


# lock

Holder = TypedDict("Holder", {"who": str, "from": str, "run": str, "playbook": str, "since": str}, total=False)


class ServerOf(TypedDict):
    """A server whose owner's lock is wanted, too. unit: of the system's systemd, None where it is none."""

    port: int
    unit: str | None


class Taken(TypedDict):
    """waited: in seconds."""

    waited: float


@declared
def lock_take(
    holder: Holder, name: str = "host", wait: float = 0.0, token: str = "", server: ServerOf | None = None
) -> Call[Taken]: ...


@declared
def lock_release(name: str = "host") -> Call[bool]: ...


@declared
def lock_show(name: str = "host") -> Call[Holder | None]: ...


# journal


class RunMeta(Holder, total=False):
    """What a run tells of itself when it begins; there may be more in it.

    found_by: what its playbook was found by. users: in whose journals on the host it may stand besides; None: the login
    user.
    """

    found_by: str
    digest: str
    vars: dict[str, Any]
    version: str
    hosts: list[str]
    inventory: str | None
    host: str
    users: list[str | None]


class Checkpoint(TypedDict, total=False):
    """What a later process needs to go on with a run. play, done, left: numbers of a play and of tasks."""

    digest: str
    play: int
    done: int
    left: list[int]
    registered: dict[str, Any]
    notified: list[str]
    measures: dict[str, float]


class Begun(TypedDict):
    """supervised: a supervisor carries a change of this run through, as of when we took the run up."""

    folder: str
    supervised: bool


class StepReplies(TypedDict):
    """The replies of a step's calls, each with the length of its part of the body."""

    replies: list[tuple[Any, int]]


class UndoneStep(TypedDict):
    """kept: it never said how it is undone."""

    seq: int
    task: str | None
    status: Literal["undone", "kept", "failed"]
    error: Fault | None


class Settled(TypedDict):
    """A call that was made once all was undone."""

    call: str
    error: Fault | None


class RolledBack(TypedDict):
    """What taking a run back did. damage: what its journal lacks. unlogged: why it does not have all of the undo."""

    outcome: Literal["rolled-back", "rolled-back-partly"]
    why: str | None
    steps: list[UndoneStep]
    settle: list[Settled]
    damage: list[str]
    unlogged: str | None


class Lacking(TypedDict):
    """A step that cannot be taken back as things are, and why, a sentence each."""

    seq: int
    task: str | None
    why: list[str]


class Foreseen(TypedDict):
    """What an undo would make of a file. now, then: lengths of its contents in the body, None where it is absent."""

    seq: int
    path: str
    ours: bool
    now: int | None
    then: int | None


class Finished(TypedDict):
    """removed: earlier runs whose journals nobody needs any more."""

    outcome: str
    removed: list[str]


@declared
def journal_begin(run: str, meta: RunMeta, resume: bool = False) -> Call[Begun]: ...


@declared
def journal_apply(
    run: str,
    seq: int,
    calls: list[StepCall],
    task: str | None = None,
    undo: list[NamedCall] | None = None,
    settle: list[NamedCall] | None = None,
    shows: list[str] | None = None,
    body: bytes = b"",
) -> Call[StepReplies]: ...


@declared
def journal_rollback(run: str, why: str | None = None, wait: float = 300.0) -> Call[RolledBack]: ...


@declared
def journal_lacking(run: str) -> Call[list[Lacking]]: ...


@declared
def journal_foreseen(run: str) -> Call[list[Foreseen]]: ...


@declared
def journal_finish(run: str, outcome: str, why: str | None = None, keep: int = 50) -> Call[Finished]: ...


@declared
def journal_checkpoint(run: str, data: Checkpoint) -> Call[None]: ...


# history

RunState = Literal["running", "supervised", "unfinished", "ended", "damaged", "unreadable"]


class _Run(TypedDict):
    run: str
    order: int
    meta: RunMeta
    begun: float
    ended: float | None
    state: RunState
    unfinished: bool
    outcome: str | None
    why: str | None
    damage: list[str]
    confirmed: bool
    attended: bool
    steps: int
    last: int
    done: int
    undone: int


class Run(_Run, total=False):
    """A run as its journal tells it.

    order: its number among the runs of this host; 0: made before they were counted. begun, ended: seconds since 1970.
    damage: what its journal lacks. attended: its operator is still connected. last: the highest number of a step.
    done, undone: how many steps. checkpoint: only where it was asked for, None where there is none.
    """

    checkpoint: Checkpoint | None


class LoggedStep(TypedDict):
    """One change of a run; `can_undo`: it said how."""

    seq: int
    task: str | None
    calls: list[str]
    begun: float
    state: Literal["begun", "done", "failed"]
    error: Fault | None
    can_undo: bool
    undone: bool
    undo_error: Fault | None


class ShownRun(Run):
    log: list[LoggedStep]


class Runs(TypedDict):
    """The newest first."""

    runs: list[Run]


@declared
def history_list(limit: int = 50, checkpoints: bool = False) -> Call[Runs]: ...


@declared
def history_show(run: str, checkpoint: bool = False) -> Call[ShownRun]: ...


# supervise


class Applied(StepReplies):
    """The change is made, and waits to be confirmed; offset: of the events, where `follow` goes on."""

    state: Literal["applied"]
    offset: int
    confirm_within: float


class Kept(TypedDict):
    """The change was confirmed."""

    state: Literal["confirmed"]


class PutBack(TypedDict):
    """The host has taken the run back."""

    state: Literal["reverted"]
    why: Literal["failed", "not confirmed", "reverted"]
    error: Fault | None
    report: RolledBack


Supervised = Applied | Kept | PutBack


class Confirmed(TypedDict):
    confirmed: bool


@declared
def supervise_start(
    run: str,
    seq: int,
    calls: list[StepCall],
    confirm_within: float,
    task: str | None = None,
    undo: list[NamedCall] | None = None,
    settle: list[NamedCall] | None = None,
    shows: list[str] | None = None,
    body: bytes = b"",
) -> Call[Supervised]: ...


@declared
def supervise_follow(run: str, offset: int = 0, until: str = "applied") -> Call[Supervised]: ...


@declared
def supervise_confirm(run: str, outcome: str | None = None, timeout: float = 20.0) -> Call[Confirmed]: ...


@declared
def supervise_revert(run: str) -> Call[RolledBack]: ...


# http


class Answered(TypedDict):
    """An answer of a server, whatever its status; `truncated`: there was more of the body."""

    status: int
    headers: dict[str, str]
    seconds: float
    truncated: bool


@declared
def http_request(
    url: str,
    method: str = "GET",
    headers: dict[str, str] | None = None,
    timeout: float = 30.0,
    most: int = 1 << 20,
    sealed: int = 0,
    follow: bool = True,
    body: bytes = b"",
) -> Call[Answered]: ...
