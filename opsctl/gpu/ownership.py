"""Whose process is it? By what survives the parent's death: cgroup, session, user, start time; never by name.

SGLang's workers overwrite argv and environment (setproctitle) and their comm is cut to 15 characters, so a name only
ever says "looks like a worker", not whose it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

_WORKER = re.compile(r"^sglang::(?:scheduler|detokenizer|tokenizer_worker|gpu_worker|data_parallel)|^sglang::schedul")


class Class(StrEnum):
    OWN_LIVE = "own-live"
    OWN_ORPHAN = "own-orphan"
    FOREIGN = "foreign"
    ZOMBIE = "zombie"
    STUCK = "stuck"
    INVISIBLE = "invisible"


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """One process as /proc shows it. Times: started in epoch seconds, age in seconds. ticks: field 22 of stat."""

    pid: int
    ppid: int
    sid: int
    uid: int
    state: str
    ticks: int
    comm: str
    user: str = ""
    cmdline: str = ""
    exe: str = ""
    cgroup: str = ""
    wchan: str = ""
    started: float = 0.0
    age: float = 0.0
    stays_in_d: bool = False  # D in every sample of the probe
    kill_pending: bool = False  # SIGKILL has waited for long to be delivered
    holds_gpu: bool = False  # has /dev/nvidia* open
    gpu_memory_mib: float | None = None

    @property
    def title(self) -> str:
        return self.cmdline.strip("\0 ") or self.comm

    @property
    def worker(self) -> bool:
        """Looks like a worker of an SGLang server, whoever's it is."""
        return bool(_WORKER.match(self.title) or _WORKER.match(self.comm))


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """How one of our servers was started: what proves that a process is part of it.

    managed: systemd runs, starts or stops it at this moment. What is in it then is no leftover, also while it has no
    main process yet or no longer: ending it behind the back of its manager would make that start it again.
    """

    name: str
    cgroup: str | None = None  # of its systemd unit
    main_pid: int | None = None
    container: str | None = None
    sid: int | None = None
    uid: int | None = None
    ticks: int | None = None
    boot_id: str | None = None
    managed: bool = False


@dataclass(frozen=True, slots=True)
class ProcessTable:
    processes: tuple[ProcessEntry, ...]
    boot_id: str = ""
    gpu_pids: tuple[tuple[int, float | None], ...] = ()  # what nvidia-smi lists: pid, MiB
    records: tuple[ServerRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Owned:
    """A process worth telling about: what it is to us, and what proves it."""

    process: ProcessEntry | None
    pid: int
    klass: Class
    proof: str
    server: str | None = None
    gpu_memory_mib: float | None = None


def classify(table: ProcessTable, *, stuck_after: float = 60.0) -> tuple[Owned, ...]:
    """Every process that holds a GPU, looks like a worker, or belongs to one of our servers."""
    by_pid = {p.pid: p for p in table.processes}
    memory = dict(table.gpu_pids)
    claims = {p.pid: claim for p in table.processes if (claim := _claim(p, table, by_pid))}
    found = [
        _owned(p, claims.get(p.pid), by_pid, memory, stuck_after)
        for p in table.processes
        if p.pid in claims or p.holds_gpu or p.worker or p.pid in memory
    ]
    unseen = "nvidia-smi lists it, /proc does not: another PID namespace, or a driver leak"
    found += [
        Owned(None, pid, Class.INVISIBLE, unseen, gpu_memory_mib=mib)
        for pid, mib in table.gpu_pids
        if pid not in by_pid
    ]
    return tuple(sorted(found, key=lambda o: (o.klass.value, o.pid)))


def removable(found: Iterable[Owned]) -> tuple[Owned, ...]:
    """What `clean` may end: orphans of our own. Nothing else, ever."""
    return tuple(o for o in found if o.klass is Class.OWN_ORPHAN)


def _claim(
    process: ProcessEntry, table: ProcessTable, by_pid: Mapping[int, ProcessEntry]
) -> tuple[ServerRecord, str] | None:
    for record in table.records:
        if record.cgroup and _within(process.cgroup, record.cgroup):
            return record, f"in the cgroup of {record.name}"
        if record.container and record.container in process.cgroup:
            return record, f"in the container of {record.name}"
        if record.sid is not None and _in_session(process, record, by_pid.get(record.sid), table.boot_id):
            return record, f"session {record.sid}, user {process.uid}, started after {record.name}, same boot"
    return None


def _within(cgroup: str, parent: str) -> bool:
    parent = parent.rstrip("/")
    # The root group holds everything: it proves nothing.
    return bool(parent) and (cgroup == parent or cgroup.startswith(parent + "/"))


def _in_session(process: ProcessEntry, record: ServerRecord, leader: ProcessEntry | None, boot_id: str) -> bool:
    return (
        process.sid == record.sid
        and not _taken(record, leader)
        and record.uid is not None
        and process.uid == record.uid
        and record.ticks is not None
        and process.ticks >= record.ticks
        and record.boot_id is not None
        and record.boot_id == boot_id
    )


def _taken(record: ServerRecord, leader: ProcessEntry | None) -> bool:
    """Whether the session's number is another's now: no pid is given anew while a member of its session lives."""
    return leader is not None and leader.pid == record.main_pid and leader.ticks != record.ticks


def _owned(
    process: ProcessEntry,
    claim: tuple[ServerRecord, str] | None,
    by_pid: Mapping[int, ProcessEntry],
    memory: Mapping[int, float | None],
    stuck_after: float,
) -> Owned:
    mib = memory.get(process.pid, process.gpu_memory_mib)
    server = claim[0].name if claim else None
    proof = claim[1] if claim else "nothing ties it to a server of ours"
    if process.state == "Z":
        return Owned(process, process.pid, Class.ZOMBIE, f"dead, not reaped by {process.ppid}; {proof}", server, mib)
    if process.age > stuck_after and (process.stays_in_d or (process.kill_pending and process.state == "R")):
        why = f"state {process.state}" + (f" in {process.wchan}" if process.wchan not in ("", "0") else "")
        why += ", does not die of SIGKILL" if process.kill_pending else ""
        return Owned(process, process.pid, Class.STUCK, f"{why}; {proof}", server, mib)
    if claim is None:
        return Owned(process, process.pid, Class.FOREIGN, proof, None, mib)
    alive = _main_alive(claim[0], process, by_pid)
    return Owned(process, process.pid, Class.OWN_LIVE if alive else Class.OWN_ORPHAN, proof, server, mib)


def _main_alive(record: ServerRecord, process: ProcessEntry, by_pid: Mapping[int, ProcessEntry]) -> bool:
    """Whether the server still runs, as its manager or its main process tells; a pid alone may be another's by now."""
    if record.managed:
        return True
    main = by_pid.get(record.main_pid) if record.main_pid else None
    if main is None or main.state == "Z":
        return False
    return record.ticks is None or main.ticks == record.ticks


def orphan_workers(found: Sequence[Owned], by_pid: Mapping[int, ProcessEntry]) -> tuple[Owned, ...]:
    """Workers whose server is gone: ours by proof, and anybody's that init has adopted."""
    return tuple(
        o
        for o in found
        if o.klass is Class.OWN_ORPHAN
        or (o.klass is Class.FOREIGN and o.process is not None and o.process.worker and _adopted(o.process, by_pid))
    )


def _adopted(process: ProcessEntry, by_pid: Mapping[int, ProcessEntry]) -> bool:
    """Its parent is init, or the session manager that stands in for it."""
    parent = by_pid.get(process.ppid)
    return process.ppid in (0, 1) or parent is None or parent.comm == "systemd"
