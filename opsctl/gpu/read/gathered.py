"""From what the agent gathered on a host (opsctl/agent/gpu/gather.py) to evidence."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from opsctl.answers import made
from opsctl.errors import Unreadable
from opsctl.gpu.model import (
    CudaStart,
    Evidence,
    Host,
    KernelLog,
    MemoryController,
    Mount,
    NetworkPort,
    PciDevice,
    Reading,
    SmiRun,
    Unit,
)
from opsctl.gpu.ownership import ProcessEntry, ProcessTable, ServerRecord
from opsctl.gpu.read import hosttext, klog, smi_errors, smi_links, smi_xml
from opsctl.gpu.wanted import Wanted
from opsctl.text import one_line
from opsctl.wire.calls import gpu as calls
from opsctl.wire.protocol import Call, Reply


def ask(wanted: Wanted) -> Call[calls.Gathered]:
    """The one call that gathers everything."""
    return calls.gpu_gather(
        keep=klog.WORTH.pattern,
        limit=wanted.smi_seconds,
        folders=list(wanted.folders),
        weights=wanted.weights,
        unit=wanted.unit,
        user_unit=wanted.user_unit,
        port=wanted.port,
        container=wanted.container,
        root=wanted.root,
        programs=list(wanted.programs),
        quick=wanted.settings.limit("smi.warn"),
        cuda=wanted.settings.limit("cuda.limit"),
    )


def look(ask_host: Callable[[Call[calls.Gathered]], Reply[calls.Gathered]], wanted: Wanted) -> Evidence:
    """One round trip; the host's clock is compared with the middle of it."""
    before = time.time()
    found = ask_host(ask(wanted)).result
    # `now` is read at the start of the gathering: half of what is left of the round trip came before it.
    travel = max(0.0, time.time() - before - found.get("seconds", 0.0)) / 2
    now = (found.get("host") or {}).get("now")
    offset = None if now is None else now - before - travel
    # Less than the trip itself cannot be told from delay.
    if offset is not None and abs(offset) <= travel:
        offset = 0.0
    return evidence(found, wanted, offset=offset)


def evidence(found: calls.Gathered, wanted: Wanted, *, offset: float | None = None) -> Evidence:
    """offset: the host's clock minus ours, in seconds, measured around the call."""
    run, reading, refused = _smi(found.get("smi") or {})
    host = _host(found, wanted, offset)
    return Evidence(
        readings=(reading,) if reading else (),
        smi_errors=refused,
        smi_run=run,
        kernel=_kernel(found.get("klog")),
        pci=_pci(found.get("pci")),
        table=_table(found, host, reading),
        host=host,
    )


def _smi(said: calls.Smi) -> tuple[SmiRun, Reading | None, tuple[Any, ...]]:
    if said.get("stuck"):
        return SmiRun(stuck_pids=tuple(said["stuck"])), None, ()
    if said.get("missing"):
        return SmiRun(missing=True), None, ()
    if said.get("timed_out"):
        return SmiRun(seconds=said.get("seconds"), timed_out=True), None, ()
    text, code = str(said.get("text", "")), said.get("code")
    refused = smi_errors.read(text, code)
    start = text.find("<?xml")
    reading, garbage = None, None
    if start >= 0:
        try:
            reading = smi_xml.read(text[start:])
        except Unreadable as error:
            garbage = error.message
    elif not refused:
        garbage = one_line(text, 120) or f"nothing, exit code {code}"
    return SmiRun(seconds=said.get("seconds"), garbage=garbage, rc=code), reading, refused


def _kernel(said: calls.KernelLog | None) -> KernelLog:
    if not said or said.get("unreadable"):
        return KernelLog(unreadable=(said or {}).get("unreadable") or "the kernel log did not answer in time")
    return replace(klog.read(said["text"]), lines=said["lines"])


def _pci(said: Sequence[calls.PciDevice] | None) -> tuple[PciDevice, ...] | None:
    if said is None:
        return None
    return tuple(made(PciDevice, device) for device in said)


def _host(found: calls.Gathered, wanted: Wanted, offset: float | None) -> Host:
    said: calls.HostFacts = found.get("host") or {}
    smi: calls.Smi = found.get("smi") or {}
    fields: dict[str, Any] = {
        "machine": said.get("machine"),
        "driver_loaded": said.get("driver_loaded"),
        "driver_on_disk": found.get("module"),
        "persistence_daemon": _word(found.get("persistenced")),
        "cmdline": said.get("cmdline") or None,
        "numa_balancing": said.get("numa_balancing"),
        "governors": tuple(said.get("governors") or ()) or None,
        "cpus_online": said.get("cpus_online"),
        "cpus_present": said.get("cpus_present"),
        "mounts": tuple(made(Mount, m) for m in said["mounts"]) if "mounts" in said else None,
        "reboot_required": said.get("reboot_required"),
        "kernel_running": said.get("kernel_running") or None,
        "kernel_installed": said.get("kernel_installed"),
        "unattended": _unattended(said.get("unattended")),
        "p2p_disabled": found.get("p2p_disabled"),
        "hugepages": _chosen(said.get("hugepages", "")),
        "clock_synced": {"yes": True, "no": False}.get(found.get("ntp") or ""),
        "now": said.get("now"),
        "clock_offset": offset,
        "port": wanted.port,
        "iommu_off": said.get("iommus") == 0 if "iommus" in said else None,
        "reasons": _reasons(found),
        "fabric_manager": _word(found.get("manager")),
        "numa_nodes": said.get("numa_nodes"),
        "memory_controllers": _controllers(said.get("memory_controllers")),
        "network": _ports(said.get("network"), found.get("pci") or ()),
        "cuda": made(CudaStart, cuda) if (cuda := smi.get("cuda")) else None,
        "links": smi_links.read(links.get("status", ""), links.get("errors", ""))
        if (links := smi.get("links"))
        else None,
    }
    for text, read in (
        (said.get("meminfo"), hosttext.meminfo),
        (said.get("file_nr"), hosttext.file_nr),
        (found.get("unit"), hosttext.unit),
        (found.get("limits"), hosttext.limits),
        (smi.get("p2p"), hosttext.p2p),
    ):
        fields.update((text and read(text)) or {})
    if (listeners := found.get("listeners")) is not None:
        fields.update(hosttext.listeners(listeners) or {"listeners": ()})
    if fields.get("unit"):
        fields["unit"] = _aged(fields["unit"], found.get("unit") or "", said.get("uptime"))
        fields["server_pid"] = fields["unit"].main_pid or None
    if shards := found.get("weights"):
        fields.update(weights_missing=tuple(shards["missing"]), weights_found=shards["found"])
    if answers := found.get("endpoint"):
        fields.update(
            health_status=answers.get("health"),
            generate_status=answers.get("generate"),
            generate_timed_out=bool(answers.get("timed_out")),
        )
    return made(Host, fields)


def _controllers(said: Sequence[calls.MemoryController] | None) -> tuple[MemoryController, ...] | None:
    return None if said is None else tuple(made(MemoryController, {**c, "dimms": tuple(c["dimms"])}) for c in said)


def _ports(said: Sequence[calls.NetworkPort] | None, pci: Sequence[calls.PciDevice]) -> tuple[NetworkPort, ...] | None:
    """Each port with the GPUs on its adapter's NUMA node."""
    if said is None:
        return None
    gpus = [d for d in pci if d.get("gpu")]
    return tuple(
        made(NetworkPort, {**{k: v for k, v in port.items() if k != "numa_node"}, "near": _near(port, gpus)})
        for port in said
    )


def _near(port: calls.NetworkPort, gpus: Sequence[calls.PciDevice]) -> tuple[str, ...]:
    node = port.get("numa_node")
    return tuple(g["bus_id"] for g in gpus if node is not None and node == g.get("numa_node"))


def _unattended(said: Sequence[calls.Upgrade] | None) -> tuple[str, ...] | None:
    return None if said is None else tuple(f"{one['date']}: {one['packages']}" for one in said)


def _aged(unit: Unit, shown: str, uptime: float | None) -> Unit:
    since = re.search(r"^ActiveEnterTimestampMonotonic=([1-9]\d*)$", shown, re.MULTILINE)
    return replace(unit, active_seconds=uptime - int(since[1]) / 1e6) if since and uptime else unit


def _reasons(found: calls.Gathered) -> tuple[tuple[str, str], ...]:
    """Why a section is missing, for the checks that live on it."""
    late = found.get("errors") or {}
    families = {"host": "host.", "unit": "svc.unit", "endpoint": "svc."}
    return tuple((families[name], why) for name, why in late.items() if name in families)


def _table(found: calls.Gathered, host: Host, reading: Reading | None) -> ProcessTable | None:
    said = found.get("processes")
    if said is None:
        return None
    listed = tuple((p.pid, p.memory_mib) for g in (reading.gpus if reading else ()) for p in g.processes or ())
    return ProcessTable(
        processes=tuple(made(ProcessEntry, entry) for entry in said),
        boot_id=(found.get("host") or {}).get("boot_id", ""),
        gpu_pids=_summed(listed),
        records=_records(host, found.get("container"), found.get("servers") or ()),
    )


def _summed(listed: tuple[tuple[int, float | None], ...]) -> tuple[tuple[int, float | None], ...]:
    """One entry per process: it may hold memory on several GPUs."""
    total: dict[int, float | None] = {}
    for pid, mib in listed:
        before = total.get(pid)
        total[pid] = mib if before is None else before + (mib or 0)
    return tuple(total.items())


def _records(host: Host, container: str | None, started: Sequence[calls.ServerRecord]) -> tuple[ServerRecord, ...]:
    """What proves that a process is part of our server: its unit's cgroup, its container, our record of its start."""
    found = [made(ServerRecord, record) for record in started]
    unit, words = host.unit, (container or "").split()
    if unit is not None and unit.control_group:
        # Between two starts systemd only waits: what is left then may be why the next start fails.
        busy = unit.active in ("active", "activating", "reloading", "deactivating")
        managed = busy and not (unit.sub or "").startswith("auto-restart")
        main = unit.main_pid or None
        found.append(ServerRecord(unit.name, cgroup=unit.control_group, main_pid=main, managed=managed))
    if len(words) == 2 and re.fullmatch(r"[0-9a-f]{64}", words[0]) and words[1].isdigit():
        found.append(ServerRecord("container", container=words[0], main_pid=int(words[1]) or None))
    return tuple(found)


def _word(text: str | None) -> str | None:
    """The answer of `systemctl is-active`, when it is one and not a complaint."""
    return text if text and re.fullmatch(r"[a-z-]+", text) else None


def _chosen(text: str) -> str | None:
    """'always [madvise] never' -> 'madvise'."""
    found = re.search(r"\[(\w+)\]", text)
    return found[1] if found else None
