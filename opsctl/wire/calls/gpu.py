"""Calls of the room `gpu`: what is seen of the GPUs and the host around them, tests that load them, leftovers."""

from __future__ import annotations

from typing import Literal, TypedDict

from opsctl.wire.calls import declared
from opsctl.wire.protocol import Call


class Links(TypedDict, total=False):
    """What `nvidia-smi nvlink` says: -s, and -e where there are links."""

    status: str
    errors: str


class Cuda(TypedDict, total=False):
    """How CUDA's driver library started: cuInit's code (None: no answer) and its name; `missing`: why it did not."""

    code: int | None
    name: str
    devices: int
    missing: str


class Smi(TypedDict, total=False):
    """What `nvidia-smi -q -x` gave, and after a quick answer what else the driver was asked; else why nothing.

    stuck: pids of earlier ones that hang in the kernel. missing: it is not installed.
    """

    stuck: list[int]
    missing: bool
    timed_out: bool
    seconds: float
    code: int
    text: str
    links: Links | None
    cuda: Cuda | None
    p2p: str | None


class KernelLog(TypedDict, total=False):
    """The lines worth judging, out of `lines`; or why there are none."""

    source: str
    lines: int
    text: str
    unreadable: str


class PciDevice(TypedDict):
    """A GPU, an NVSwitch or a bridge above a GPU, from sysfs. generations: PCIe's, in a few looks at a slow link."""

    bus_id: str
    gpu: bool
    switch: bool
    driver: str | None
    answering: bool
    slot: str | None
    numa_node: int | None
    width_current: int | None
    width_max: int | None
    parents: list[str]
    acs_redirect: bool | None
    iommu: str | None
    aer_correctable: int | None
    aer_nonfatal: int | None
    aer_fatal: int | None
    generations: list[int]


class Mount(TypedDict):
    path: str
    use: Literal["shm", "disk"]
    size: int
    available: int
    inodes: int
    inodes_free: int
    read_only: bool


class MemoryController(TypedDict):
    """EDAC's counts since the kernel began; dimms: those with uncorrected errors."""

    name: str
    corrected: int
    uncorrected: int
    dimms: list[str]


class NetworkPort(TypedDict):
    """A port of an InfiniBand or RoCE adapter. rate: Gb/s."""

    name: str
    state: str
    physical: str
    kind: str
    rate: float | None
    downed: int | None
    numa_node: int | None


class Upgrade(TypedDict):
    date: str
    packages: str


class HostFacts(TypedDict, total=False):
    """What is read of a host without starting a program. now: its clock when the gathering began."""

    now: float
    uptime: float
    machine: str | None
    boot_id: str
    driver_loaded: str | None
    cmdline: str
    numa_balancing: int | None
    meminfo: str
    file_nr: str
    governors: list[str]
    cpus_online: int | None
    cpus_present: int | None
    hugepages: str
    mounts: list[Mount]
    reboot_required: bool
    kernel_running: str
    kernel_installed: str | None
    unattended: list[Upgrade] | None
    numa_nodes: int | None
    memory_controllers: list[MemoryController]
    network: list[NetworkPort]
    iommus: int


class ProcessEntry(TypedDict):
    """A process as /proc shows it. Times: started in epoch seconds, age in seconds. ticks: field 22 of stat."""

    pid: int
    ppid: int
    sid: int
    uid: int
    state: str
    ticks: int
    comm: str
    cmdline: str
    exe: str
    cgroup: str
    wchan: str
    started: float
    age: float
    stays_in_d: bool
    kill_pending: bool
    holds_gpu: bool


class ServerRecord(TypedDict):
    """Our record of a server that we started: what proves that a process is part of it."""

    name: str
    main_pid: int
    sid: int
    uid: int
    ticks: int
    boot_id: str


class Shards(TypedDict):
    """Of the files that an index of weights names: which are missing, how many are there."""

    missing: list[str]
    found: int


class Endpoint(TypedDict, total=False):
    """Statuses of /health and /health_generate; None: no answer."""

    health: int | None
    generate: int | None
    timed_out: bool


class Gathered(TypedDict, total=False):
    """What `opsctl health` judges. A section that did not come in time is missing, and its reason is in `errors`."""

    smi: Smi
    manager: str | None
    klog: KernelLog
    pci: list[PciDevice] | None
    host: HostFacts
    module: str | None
    persistenced: str | None
    ntp: str | None
    unit: str | None
    container: str | None
    listeners: str | None
    endpoint: Endpoint
    weights: Shards | None
    limits: str
    p2p_disabled: bool
    server_uid: int | None
    servers: list[ServerRecord]
    processes: list[ProcessEntry]
    errors: dict[str, str]
    seconds: float


Test = Literal["nvbandwidth", "all_reduce_perf", "torch"]


class _Test(TypedDict):
    test: Test


class ActiveTest(_Test, total=False):
    """What a test said; or `missing`, why it was not run. code: None where it was ended after its limit."""

    missing: str
    code: int | None
    seconds: float
    text: str


class File(TypedDict):
    """A file that a server may have left. in_use: None where that could not be seen."""

    path: str
    folder: Literal["shm", "tmp"]
    uid: int
    size: int
    modified: float
    socket: bool
    inode: int
    in_use: bool | None


class Files(TypedDict):
    files: list[File]
    uid: int
    now: float


class Ended(TypedDict):
    """A process to end, as it was listed: it is looked at again first."""

    pid: int
    ticks: int
    sid: int
    cgroup: str
    uid: int


class Unlinked(TypedDict):
    """A file to remove, as it was listed: it is looked at again first."""

    path: str
    inode: int
    modified: float


class _Done(TypedDict):
    done: bool
    why: str


class Done(_Done, total=False):
    """Whether a process (`pid`) or a file (`path`) is gone; why not, or how."""

    pid: int
    path: str


class Removed(TypedDict):
    done: list[Done]


@declared
def gpu_gather(
    keep: str = ".",
    limit: float = 25.0,
    root: str = "/",
    path: str | None = None,
    programs: list[str] | None = None,
    quick: float = 5.0,
    cuda: float = 30.0,
    folders: list[str] | None = None,
    weights: str | None = None,
    unit: str | None = None,
    user_unit: bool = False,
    port: int | None = None,
    container: str | None = None,
    servers: list[ServerRecord] | None = None,
) -> Call[Gathered]: ...


@declared
def gpuactive_run(
    gpus: int,
    limit: float,
    python: str | None = None,
    env: dict[str, str] | None = None,
    programs: list[str] | None = None,
) -> Call[list[ActiveTest]]: ...


@declared
def gpuclean_files(root: str = "/", temporary: str = "/tmp") -> Call[Files]: ...


@declared
def gpuclean_remove(
    processes: list[Ended], paths: list[Unlinked], root: str = "/", patience: float = 10.0
) -> Call[Removed]: ...


@declared
def vram_processes() -> Call[dict[str, int] | None]: ...
