"""The kernel log of this boot, one check per kind of finding."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from opsctl.gpu import state, xids
from opsctl.gpu.checks.driver import short
from opsctl.gpu.checks.over import sound
from opsctl.gpu.model import Evidence, Found, GpuRef, KernelEvent, KernelLog, Verdict, skip, worst
from opsctl.gpu.settings import Settings
from opsctl.text import one_line

_AS_VERDICT = {"fail": Verdict.FAIL, "warn": Verdict.WARN, "info": Verdict.PASS}
Grouping = Callable[[KernelEvent], tuple[object, ...]]


def xid(evidence: Evidence, settings: Settings) -> list[Found]:
    # What has no device stands together by what is to be done about it.
    return _judge(evidence, "klog.xid", lambda e: (e.kind, e.bdf, e.xid, None if e.bdf else e.remedy))


def offbus(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "klog.offbus", lambda e: (e.bdf,))


def sxid(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "klog.sxid", lambda e: (e.bdf, e.xid, e.link))


def aer(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "klog.aer", lambda e: (e.bdf, e.severity))


def iommu(evidence: Evidence, settings: Settings) -> list[Found]:
    gpus = {short(bus).rpartition(".")[0] for bus in _gpu_buses(evidence)} | _named_by_driver(evidence)
    return _judge(evidence, "klog.iommu", lambda e: (e.bdf,), gpus)


def oom(evidence: Evidence, settings: Settings) -> list[Found]:
    unit = (settings.unit or "").removesuffix(".service")
    groups = {f"{unit}.service"} if unit else set()
    for record in evidence.table.records if evidence.table else ():
        groups |= {said for said in (record.cgroup, record.container) if said and said != "/"}
    # `a.service` must not be found in `data.service`; a container's id stands in `docker-ID.scope`.
    named = re.compile("|".join(rf"(?<![\w@.]){re.escape(g)}(?!\w)" for g in groups)) if groups else None
    pid = evidence.host.server_pid

    def ours(event: KernelEvent) -> bool:
        return bool(named and named.search(event.text)) or (pid is not None and event.pid == str(pid))

    return _judge(evidence, "klog.oom", lambda e: (), ours=ours)


def hung(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "klog.hung", lambda e: (e.process,))


def disk(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "klog.disk", lambda e: ())


def memory(evidence: Evidence, settings: Settings) -> list[Found]:
    """What the kernel log says of host memory: uncorrected errors, and corrected ones when they are many."""
    log = evidence.kernel
    if log is None or log.unreadable:
        return skip(log.unreadable if log and log.unreadable else "no kernel log")
    found = [f for f in _judge(evidence, "host.edac", lambda e: (e.severity,)) if f.verdict.rank > 1]
    corrected = [e for e in log.events if e.check == "host.edac" and e.severity == "info"]
    if len(corrected) >= settings.limit("edac.corrected.lines"):
        text = f"{len(corrected)} lines of corrected errors, last: {one_line(corrected[-1].text, 200)}"
        limit = settings.limit("edac.corrected.lines")
        found.append(Found(Verdict.WARN, text, None, len(corrected), limit, "dimm_corrected"))
    few = f"{len(corrected)} corrected errors" if corrected else "no memory error"
    return found or [sound(f"{few} in {log.lines} lines of the kernel log")]


def _judge(
    evidence: Evidence,
    check: str,
    group: Grouping,
    gpus: set[str] | None = None,
    ours: Callable[[KernelEvent], bool] | None = None,
) -> list[Found]:
    log = evidence.kernel
    if log is None:
        return skip("no kernel log")
    if log.unreadable:
        return skip(log.unreadable)
    groups: dict[tuple[object, ...], list[KernelEvent]] = {}
    for event in log.events:
        if event.check == check:
            groups.setdefault(group(event), []).append(event)
    found = [_group(events, evidence, gpus, ours) for events in groups.values()]
    faults = [f for f in found if f.verdict.rank > 1]
    if faults:
        return sorted(faults, key=lambda f: -f.verdict.rank)
    if found:
        return [Found(Verdict.PASS, f"information only: {found[0].evidence}{_remarks(log)}")]
    return [sound(f"no such line in {log.lines}{_remarks(log)}")]


def _remarks(log: KernelLog) -> str:
    remarks = []
    if log.earlier_boots:
        remarks.append(f"{log.earlier_boots} of earlier boots not counted")
    if log.suppressed:
        remarks.append(f"{log.suppressed} lines say that messages were dropped")
    return f" ({'; '.join(remarks)})" if remarks else ""


def _group(
    events: Sequence[KernelEvent],
    evidence: Evidence,
    gpus: set[str] | None,
    ours: Callable[[KernelEvent], bool] | None,
) -> Found:
    counted = [e for e in events if not e.probe]
    first = (counted or events)[0]
    # Lines that only nvidia-smi met are remarked on; whether it answers is judged by smi.responsive.
    severities = [_AS_VERDICT[e.severity] for e in counted] or [Verdict.WARN]
    if gpus and first.bdf and short(first.bdf) in gpus:
        severities.append(Verdict.FAIL)
    if ours and any(map(ours, events)):
        severities.append(Verdict.FAIL)
    probes = len(events) - len(counted)
    count = f"{len(counted)} lines, first: " if len(counted) > 1 else ""
    told = f"{first.time}: {first.text}" if first.time else first.text
    note = f" [{'and ' if counted else ''}{probes} caused by nvidia-smi itself, not counted]" if probes else ""
    return Found(
        worst(severities),
        one_line(f"{count}{told}", 400) + _cause(first, evidence) + note + _age(counted, evidence),
        _ref(first, evidence),
        _value(first),
        remedy=first.remedy,
    )


def _cause(event: KernelEvent, evidence: Evidence) -> str:
    """The Xid before it on the same GPU that this one is known to follow."""
    known = xids.catalogue().get(event.xid) if event.kind == "xid" and event.xid is not None else None
    for other in evidence.kernel.events if evidence.kernel and known else ():
        if other is event:
            break
        if known and other.bdf == event.bdf and other.xid in known.effect_of:
            return f" [follows Xid {other.xid} on this GPU: that one is the cause]"
    return ""


def _age(events: Sequence[KernelEvent], evidence: Evidence) -> str:
    """A fault of this boot counts until the next one; whether it is news is a different question."""
    new = [state.is_new(event, evidence) for event in events]
    if not new or None in new:
        return ""
    return f" [{sum(map(bool, new))} new since the last look]" if any(new) else " [nothing new since the last look]"


def _value(event: KernelEvent) -> str:
    return {"xid": f"Xid {event.xid}", "sxid": f"SXid {event.xid}"}.get(event.kind, event.kind)


def _named_by_driver(evidence: Evidence) -> set[str]:
    """GPUs that a log names where no list of them is at hand: NVIDIA's driver speaks of nothing else."""
    events = evidence.kernel.events if evidence.kernel else ()
    return {short(e.bdf) for e in events if e.bdf and e.kind in ("xid", "fallen", "nvrm")}


def _gpu_buses(evidence: Evidence) -> list[str]:
    listed = [g.ref.bus_id for r in evidence.readings for g in r.gpus if g.ref.bus_id]
    return listed + [d.bus_id for d in evidence.pci or () if d.gpu]


def _ref(event: KernelEvent, evidence: Evidence) -> GpuRef | None:
    """The GPU the line is about, with its index and UUID where a reading knows them."""
    if event.bdf is None:
        return None
    for reading in evidence.readings:
        for gpu in reading.gpus:
            if gpu.ref.bus_id and short(gpu.ref.bus_id).rpartition(".")[0] == short(event.bdf):
                return gpu.ref
    return GpuRef(None, None, event.bdf)
