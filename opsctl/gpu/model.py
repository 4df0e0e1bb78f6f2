"""What is known about a GPU host, as plain values. `None` always means absent: not said, or not on this card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from opsctl.gpu.ownership import ProcessTable


class Verdict(StrEnum):
    PASS = "pass"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"

    @property
    def rank(self) -> int:
        """How bad: skip 0, pass 1, warn 2, fail 3."""
        return ("skip", "pass", "warn", "fail").index(self.value)


def worst(verdicts: list[Verdict]) -> Verdict:
    """The worst of `verdicts`; skip when there are none."""
    return max(verdicts, key=lambda v: v.rank, default=Verdict.SKIP)


def of_all(hosts: list[Verdict]) -> Verdict:
    """The verdict over several hosts: one of which it is not known whether it is fit keeps the others from a pass."""
    found = worst(hosts)
    return Verdict.SKIP if found is Verdict.PASS and Verdict.SKIP in hosts else found


@dataclass(frozen=True, slots=True)
class GpuRef:
    """Which GPU, in every name it has."""

    index: int | None
    uuid: str | None
    bus_id: str | None

    def __str__(self) -> str:
        parts = [f"GPU{self.index}" if self.index is not None else "GPU", self.bus_id or self.uuid or ""]
        return " ".join(p for p in parts if p)


@dataclass(frozen=True, slots=True)
class Process:
    """A process that nvidia-smi lists on a GPU. kind: C, G, C+G or M+C."""

    pid: int
    kind: str | None
    name: str
    memory_mib: float | None


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi describes it: MiB, °C, W, lanes, microseconds."""

    ref: GpuRef
    name: str | None = None
    driver: str | None = None
    vbios: str | None = None
    persistence: str | None = None
    mig: str | None = None
    compute_mode: str | None = None
    display_active: str | None = None
    pstate: str | None = None
    utilization: float | None = None
    recovery_action: str | None = None
    reset_required: str | None = None
    drain_and_reset: str | None = None
    ecc_mode: str | None = None
    ecc_pending: str | None = None
    ecc_volatile: float | None = None
    ecc_aggregate: float | None = None
    sram_threshold_exceeded: bool | None = None
    unrepairable_memory: bool | None = None
    channel_repair_pending: bool | None = None
    tpc_repair_pending: bool | None = None
    rows_uncorrectable: float | None = None
    rows_pending: bool | None = None
    rows_failure: bool | None = None
    rows_low: float | None = None
    rows_none: float | None = None
    pages_pending: bool | None = None  # before Ampere pages are retired, not rows remapped
    pages_single: float | None = None
    pages_double: float | None = None
    gen_current: float | None = None
    gen_max: float | None = None
    gen_device_max: float | None = None
    gen_host_max: float | None = None
    width_current: float | None = None
    width_max: float | None = None
    replays: float | None = None
    temperature: float | None = None
    headroom_reported: float | None = None
    slowdown_temperature: float | None = None
    memory_temperature: float | None = None
    hw_slowdown: bool | None = None
    hw_thermal: bool | None = None
    hw_power_brake: bool | None = None
    sw_thermal: bool | None = None
    hw_thermal_us: float | None = None
    hw_power_brake_us: float | None = None
    power_draw: float | None = None
    power_limit: float | None = None
    power_default: float | None = None
    sm_clock: float | None = None  # MHz
    sm_clock_max: float | None = None
    sw_power_cap: bool | None = None
    locked_clocks: bool | None = None  # held by a setting of the operator
    fabric_state: str | None = None  # of the NVLink fabric; None: the card is part of none
    fabric_status: str | None = None
    fabric_cluster: str | None = None  # the UUID of a fabric of several hosts; zeros on one of its own
    fabric_health: tuple[tuple[str, str], ...] = ()  # (what, word), as far as told
    license: str | None = None  # of a vGPU
    virtualization: str | None = None  # None, Pass-Through, VGPU, Host VGPU
    memory_total: float | None = None
    memory_used: float | None = None
    processes: tuple[Process, ...] | None = None
    lost: str | None = None  # why nothing it says can be trusted
    odd: tuple[tuple[str, str], ...] = ()  # single unreadable cells: (field, word)

    @property
    def headroom(self) -> float | None:
        """°C to the slowdown point: the card's own margin where it tells it, else threshold minus temperature."""
        if self.headroom_reported is not None:
            return self.headroom_reported
        if self.slowdown_temperature is None or self.temperature is None:
            return None
        return self.slowdown_temperature - self.temperature

    @property
    def busy(self) -> bool:
        """Whether it does something: in P0 (data centre cards at work), P1 (workstation cards) or P2 (GeForce).

        A display that is drawn makes a few per cent of utilisation: enough to compare a card with its peers, not more.
        """
        return self.pstate in ("P0", "P1", "P2") and bool(self.utilization)

    @property
    def loaded(self) -> bool:
        """Whether it works hard, by utilisation or power: only then its link and clocks must be what they can be."""
        if not self.busy or self.utilization is None:
            return False
        drawn = self.power_draw / self.power_limit if self.power_draw and self.power_limit else 0.0
        return self.utilization >= 50 or drawn >= 0.5

    @property
    def in_rack(self) -> bool:
        """Whether its fabric spans several hosts: its switches are then outside of this one."""
        return bool(set(self.fabric_cluster or "") - {"0", "-"})

    @property
    def at_power_limit(self) -> bool:
        """Whether it draws all that it may: a low clock is then its work, not a fault."""
        return bool(self.sw_power_cap and self.power_draw and self.power_limit) and (
            (self.power_draw or 0.0) >= 0.9 * (self.power_limit or 0.0)
        )

    @property
    def gen_possible(self) -> float | None:
        """The PCIe generation that both card and slot can."""
        both = [gen for gen in (self.gen_device_max, self.gen_host_max) if gen is not None]
        return min(both) if len(both) == 2 else self.gen_max


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer of nvidia-smi. `truncated`: it breaks off, so nothing may be called sound for the whole host."""

    source: str  # xml | text | table | csv | list
    gpus: tuple[Gpu, ...]
    driver: str | None = None
    cuda: str | None = None
    attached: int | None = None
    truncated: str | None = None  # how it was noticed
    part: str | None = None  # the section of a longer capture: idle, load

    @property
    def partial(self) -> bool:
        """Of several GPUs one was asked about. One that is lost is listed as such, or keeps nvidia-smi from listing."""
        return self.attached is not None and len(self.gpus) == 1 < self.attached

    @property
    def readable(self) -> tuple[Gpu, ...]:
        return tuple(g for g in self.gpus if g.lost is None)


@dataclass(frozen=True, slots=True)
class SmiError:
    """nvidia-smi refused to answer. `kind` names a row of data/smi_errors.csv."""

    kind: str
    text: str
    check: str
    bus_id: str | None = None
    rc: int | None = None
    remedy: str | None = None  # a row of data/remedies.csv


@dataclass(frozen=True, slots=True)
class SmiRun:
    """How one live call of nvidia-smi went."""

    seconds: float | None = None
    timed_out: bool = False
    missing: bool = False
    garbage: str | None = None
    stuck_pids: tuple[int, ...] = ()
    rc: int | None = None


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A PCI function from sysfs or lspci. `acs_redirect`: whether the bridge redirects peer requests upwards."""

    bus_id: str
    gpu: bool = False
    switch: bool = False  # an NVSwitch
    driver: str | None = None  # the kernel driver that holds it
    answering: bool = True
    name: str | None = None
    slot: str | None = None
    numa_node: int | None = None
    width_current: int | None = None
    width_max: int | None = None
    parents: tuple[str, ...] = ()
    generations: Sequence[int] = ()  # in further looks at a link that was slow under load
    acs_redirect: bool | None = None
    iommu: str | None = None  # DMA, DMA-FQ (translated) or identity
    aer_correctable: int | None = None
    aer_nonfatal: int | None = None
    aer_fatal: int | None = None


@dataclass(frozen=True, slots=True)
class KernelEvent:
    """One finding in the kernel log, from one line or a few that belong together."""

    kind: str  # xid sxid nvrm unserved fallen mismatch aer iommu oom hung dstate lockup stall oops disk segv edac
    check: str | None
    severity: str  # fail | warn | info
    text: str
    time: str | None = None
    seconds: float | None = None  # for differences only: the zero point depends on the format
    xid: int | None = None
    bdf: str | None = None
    pid: str | None = None
    process: str | None = None
    probe: bool = False  # caused by nvidia-smi itself
    remedy: str | None = None  # a row of data/remedies.csv
    link: str | None = None  # the NVLink that an SXid names

    @property
    def key(self) -> str:
        """The same event read again has the same key."""
        return f"{self.time}|{self.text}"


@dataclass(frozen=True, slots=True)
class KernelLog:
    """The kernel log of this boot. `unreadable`: why it could not be read, when it could not."""

    events: tuple[KernelEvent, ...] = ()
    lines: int = 0
    earlier_boots: int = 0  # events of earlier boots, not counted
    suppressed: int = 0  # lines that say messages were dropped
    unreadable: str | None = None
    host: str | None = None  # the name its lines carry
    booted: float | None = None  # when the last boot began, where the log tells its beginning and the date


@dataclass(frozen=True, slots=True)
class Links:
    """The NVLinks of one GPU, as `nvidia-smi nvlink -s` and `-e` list them. errors: all counted, of every kind.

    others: what is said of links that are neither active nor inactive, in words that are not known.
    """

    index: int
    uuid: str | None = None
    active: int = 0
    inactive: int = 0
    errors: int | None = None
    others: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CudaStart:
    """What the driver library answered to cuInit in a child. code: 0 started, None no answer within the limit."""

    code: int | None = None
    name: str = ""  # CUDA_ERROR_...
    devices: int | None = None
    missing: str | None = None  # why it was not asked


@dataclass(frozen=True, slots=True)
class MemoryController:
    """One memory controller's counts of errors since the kernel began. dimms: those with uncorrected errors."""

    name: str
    corrected: int
    uncorrected: int
    dimms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NetworkPort:
    """A port of an InfiniBand or RoCE adapter. rate: Gb/s. near: GPUs on the same NUMA node, by bus id."""

    name: str  # mlx5_0/1
    state: str  # ACTIVE, DOWN, INIT, ARMED
    physical: str  # LinkUp, Polling, Disabled
    kind: str  # InfiniBand or Ethernet
    rate: float | None = None
    downed: int | None = None  # times that the link went down
    near: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DiagnosticResult:
    """One line of `dcgmi diag`. outcome: pass, warn, fail or skip."""

    test: str
    outcome: str
    gpu: str | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Mount:
    """A file system of interest. bytes and inodes; `use` says what for."""

    path: str
    use: str
    size: int
    available: int
    inodes: int = 0
    inodes_free: int = 0
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd service, as `systemctl show` prints it."""

    name: str
    active: str | None = None
    sub: str | None = None
    result: str | None = None
    restarts: int | None = None
    kill_mode: str | None = None
    main_pid: int | None = None
    control_group: str | None = None
    active_seconds: float | None = None  # since it became active


@dataclass(frozen=True, slots=True)
class Host:
    """What the host says about itself, apart from its GPUs and kernel log."""

    machine: str | None = None  # the same on every look at this machine, whatever it is called
    driver_loaded: str | None = None  # version of the loaded module
    driver_on_disk: str | None = None
    persistence_daemon: str | None = None
    cmdline: str | None = None
    fabric_manager: str | None = None  # state of nvidia-fabricmanager: active, failed, inactive; absent: not installed
    links: tuple[Links, ...] | None = None
    cuda: CudaStart | None = None
    memory_controllers: tuple[MemoryController, ...] | None = None
    network: tuple[NetworkPort, ...] | None = None
    diagnostics: tuple[DiagnosticResult, ...] | None = None
    numa_nodes: int | None = None
    iommu_off: bool | None = None  # the kernel runs no IOMMU
    p2p: tuple[tuple[str, ...], ...] | None = None  # nvidia-smi topo -p2p r
    numa_balancing: int | None = None
    governors: tuple[str, ...] | None = None
    cpus_online: int | None = None
    cpus_present: int | None = None
    memory_total: int | None = None  # bytes
    memory_available: int | None = None
    swap_used: int | None = None
    mounts: tuple[Mount, ...] | None = None
    weights_missing: tuple[str, ...] | None = None
    weights_found: int | None = None
    limits: tuple[tuple[str, str], ...] | None = None  # of the running server
    fd_used: int | None = None
    fd_max: int | None = None
    now: float | None = None  # the host's clock, epoch seconds
    clock_synced: bool | None = None
    clock_offset: float | None = None  # seconds, host minus controller
    reboot_required: bool | None = None
    kernel_running: str | None = None
    kernel_installed: str | None = None
    unattended: tuple[str, ...] | None = None  # upgrades of NVIDIA packages that nobody asked for
    p2p_disabled: bool | None = None  # NCCL_P2P_DISABLE=1 in the unit or the running server
    hugepages: str | None = None
    listeners: tuple[tuple[int, int | None, str], ...] | None = None  # port, pid, program
    port: int | None = None
    unit: Unit | None = None
    server_pid: int | None = None
    health_status: int | None = None
    generate_status: int | None = None
    generate_timed_out: bool = False
    reasons: tuple[tuple[str, str], ...] = ()  # check id -> why it cannot be answered


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """One test that loaded the GPUs. missing: why it was not run; code: None when it was ended at its limit."""

    test: str
    missing: str | None = None
    code: int | None = None
    seconds: float = 0.0
    text: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """Counters at one moment, to tell what happened since: `counters` by (what, which). at: epoch seconds."""

    at: float
    boot_id: str
    counters: Mapping[tuple[str, str], float]
    told: frozenset[str] = frozenset()  # keys of the kernel events that were there already


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything known about one host at one moment: what the checks look at."""

    readings: tuple[Reading, ...] = ()
    smi_errors: tuple[SmiError, ...] = ()
    smi_run: SmiRun | None = None
    kernel: KernelLog | None = None
    pci: tuple[PciDevice, ...] | None = None
    table: ProcessTable | None = None
    before: State | None = None  # counters of an earlier look at the same host
    host: Host = field(default_factory=Host)
    active: tuple[ActiveRun, ...] | None = None  # with --active


@dataclass(frozen=True, slots=True)
class Found:
    """What one check saw, about one GPU or the whole host."""

    verdict: Verdict
    evidence: str
    gpu: GpuRef | None = None
    value: str | float | None = None
    expected: str | float | None = None
    remedy: str | None = None  # a row of data/remedies.csv; None: what the check says


def skip(reason: str) -> list[Found]:
    return [Found(Verdict.SKIP, reason)]
