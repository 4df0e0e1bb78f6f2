"""What ties the GPUs together: NVLink, its fabric and manager, CUDA's start on it, NUMA nodes, peer to peer."""

from __future__ import annotations

from collections import Counter

from opsctl.gpu import state
from opsctl.gpu.checks.host import unanswered
from opsctl.gpu.checks.over import fail, no_reading, over_gpus, sound, warn
from opsctl.gpu.model import Evidence, Found, Gpu, GpuRef, Links, PciDevice, Verdict, skip
from opsctl.gpu.settings import Settings

_READY = ("Completed", "Success")
_WAITING = ("Not Started", "In Progress")
# Words of <fabric><health> that say nothing is wrong, and how bad the others are, by what they are about.
_WELL = frozenset({"healthy", "full", "false", "none", "no error", "yes", "true"})
_DOUBTFUL = ("bandwidth", "route recovery in progress", "access timeout recovery")
_WHEN_TRUE = ("route recovery in progress", "route unhealthy", "access timeout recovery")


def fabric(evidence: Evidence, settings: Settings) -> list[Found]:
    """State and health of each GPU in the fabric, and the manager that puts them there."""
    manager = _manager(evidence)
    starts = evidence.host.cuda is not None and evidence.host.cuda.code == 0
    found = over_gpus(evidence, lambda gpu: _joined(gpu, starts), "no GPU is part of an NVLink fabric")
    faults = sorted(
        [*manager, *_left_out(evidence), *(f for f in found if f.verdict.rank > 1)], key=lambda f: -f.verdict.rank
    )
    if faults:
        return faults
    if has_switches(evidence) and found[0].verdict is Verdict.SKIP:
        if starts or evidence.host.fabric_manager == "active":
            return [sound(f"NVSwitches, and {'CUDA starts' if starts else 'the fabric manager runs'}")]
        return skip("NVSwitches are there; whether their fabric manager runs is not known")
    return found


def _joined(gpu: Gpu, cuda_starts: bool) -> Found | None:
    if gpu.fabric_state is None:
        return None
    said = f"fabric {gpu.fabric_state}" + (f", {gpu.fabric_status}" if gpu.fabric_status else "")
    if gpu.fabric_state != _READY[0] and (cuda_starts or gpu.fabric_state not in _WAITING):
        why = ", and CUDA starts all the same: peers are not reached by NVLink" if cuda_starts else ", an unknown state"
        return warn(said + why, gpu.fabric_state, _READY[0], remedy="fabric")
    if gpu.fabric_state != _READY[0]:
        return fail(f"{said}: CUDA does not start (error 802)", gpu.fabric_state, _READY[0], remedy="fabric")
    if gpu.fabric_status not in (None, _READY[1]):
        return fail(said, gpu.fabric_status, _READY[1], remedy="fabric")
    ill = [(what, word) for what, word in gpu.fabric_health if _ill(what, word)]
    if ill:
        text = ", ".join(f"{what} {word}" for what, word in ill)
        doubtful = all(what in _DOUBTFUL or word.lower() == "limited capacity" for what, word in ill)
        return (warn if doubtful else fail)(f"fabric health: {text}", text, "Healthy", remedy="fabric_health")
    return sound(said, gpu.fabric_state, _READY[0])


def _left_out(evidence: Evidence) -> list[Found]:
    """GPUs that name no fabric while others of the same product have joined one. With MIG a GPU leaves it."""
    gpus = [g for r in evidence.readings if not r.truncated for g in r.readable if g.mig != "Enabled"]
    joined = {g.name for g in gpus if g.fabric_state is not None}
    return [
        warn("in no fabric, its peers are", "N/A", _READY[0], remedy="fabric", gpu=g.ref)
        for g in gpus
        if g.fabric_state is None and g.name in joined
    ]


def _ill(what: str, word: str) -> bool:
    if what in _WHEN_TRUE:
        return word.lower() not in ("false", "no", "none")
    if what == "partition assigned":
        return word.lower() in ("false", "no")
    return word.lower() not in _WELL


def _manager(evidence: Evidence) -> list[Found]:
    """The fabric manager, where NVSwitches are there or the GPUs have a fabric; elsewhere nobody needs it."""
    unit = evidence.host.fabric_manager
    members = [g for r in evidence.readings for g in r.readable if g.fabric_state is not None]
    joined = [g.fabric_state for g in members]
    if unit in (None, "active") or not (joined or has_switches(evidence)):
        return []
    if any(g.in_rack for g in members):
        return []  # NVL72: it runs on the switch trays
    if unit == "failed":
        return [fail("nvidia-fabricmanager has failed", unit, "active", remedy="fabric")]
    if not has_switches(evidence):
        return []  # a guest, whose switches are managed outside: the state of each GPU tells
    told = "is not installed" if unit == "absent" else f"is {unit}"
    if joined and all(one == _READY[0] for one in joined):
        text = f"nvidia-fabricmanager {told}: the fabric stays as it is until a reset"
        return [warn(text, unit, "active", remedy="fabric")]
    return [fail(f"nvidia-fabricmanager {told}, and NVSwitches are there", unit, "active", remedy="fabric")]


def has_switches(evidence: Evidence) -> bool:
    return any(d.switch for d in evidence.pci or ())


def linked(evidence: Evidence) -> bool:
    """Whether all GPUs reach each other by NVLink: transfers between them do not pass PCIe then."""
    if _in_fabric(evidence):
        return True
    told = evidence.host.links or ()
    # Bridges tie cards in pairs: of more cards some reach each other over PCIe.
    tied = len(told) <= 2 or all(_on_board(one, evidence) for one in told)
    return bool(told) and tied and all(one.active for one in told)


def links(evidence: Evidence, settings: Settings) -> list[Found]:
    """Active links compared with the peers of the same product, and errors that are new. Unused links are no fault."""
    told = evidence.host.links
    if told is None:
        return unanswered(evidence.host, "gpu.nvlink", "nvidia-smi nvlink -s was not asked")
    if found := _fewer(told, evidence) + _erring(told, evidence, settings):
        return sorted(found, key=lambda f: -f.verdict.rank)
    if odd := list(dict.fromkeys(word for one in told for word in one.others)):
        return skip(f"nvidia-smi says of links what is not known here: {', '.join(odd[:3])}")
    if not any(one.active for one in told) and _divided(evidence):
        return [sound("no NVLink is up: GPUs that MIG divides use none")]
    if not any(one.active or one.inactive for one in told):
        if told and _in_fabric(evidence):
            return [fail("no NVLink of any GPU is up, and the GPUs are in a fabric", 0, remedy="nvlink")]
        return [sound("no GPU has NVLinks")]
    counts = Counter((one.active, one.active + one.inactive) for one in told)
    text = ", ".join(f"{active} of {of} links up on {n} GPUs" for (active, of), n in counts.most_common())
    if not any(one.active for one in told) and _in_fabric(evidence):
        return [fail(f"{text}, and the GPUs are in a fabric", 0, remedy="nvlink")]
    return [sound(text)]


def _in_fabric(evidence: Evidence) -> bool:
    return has_switches(evidence) or any(g.fabric_state is not None for r in evidence.readings for g in r.readable)


def _fewer(told: tuple[Links, ...], evidence: Evidence) -> list[Found]:
    gpus = [g for r in evidence.readings for g in r.gpus]
    names = {g.ref.index: g.name for g in gpus}
    divided = {g.ref.index for g in gpus if g.mig == "Enabled"}  # by MIG, with which a GPU uses no link
    found = []
    for one in told:
        name = names.get(one.index)
        most = max(o.active for o in told if None in (name, names.get(o.index)) or names[o.index] == name)
        # Cards in slots are bridged in pairs or not at all: one that has no link up is simply not bridged.
        whole = _in_fabric(evidence) or _on_board(one, evidence)
        if one.active < most and (one.active or whole) and not one.others and one.index not in divided:
            text = f"{one.active} of {one.active + one.inactive} NVLinks up, its peers {most}"
            ref = _ref(one, evidence)
            found.append((fail if whole else warn)(text, one.active, most, remedy="nvlink", gpu=ref))
    return found


def _on_board(one: Links, evidence: Evidence) -> bool:
    """Whether the GPU is one of a board, whose traces link all of them: an SXM module, for H100 named by its HBM3."""
    names = (g.name or "" for r in evidence.readings for g in r.gpus if g.ref.index == one.index)
    return any("SXM" in name or "HBM3" in name for name in names)


def _erring(told: tuple[Links, ...], evidence: Evidence, settings: Settings) -> list[Found]:
    if evidence.before is None:
        return []
    hours, added = state.since(evidence.before, evidence)
    limit = settings.limit("nvlink.errors")
    return [
        warn(
            f"{new:.0f} new NVLink errors in {hours * 60:.0f} minutes", new, limit, remedy="nvlink",
            gpu=_ref(one, evidence),
        )
        for one in told
        if (new := added.get(("nvlink_errors", one.uuid or str(one.index)), 0)) > limit
    ]  # fmt: skip


def _ref(one: Links, evidence: Evidence) -> GpuRef:
    known = (g.ref for r in evidence.readings for g in r.gpus if g.ref.index == one.index)
    return next(known, GpuRef(one.index, one.uuid, None))


_CUDA = {
    802: "cuda_fabric",  # CUDA_ERROR_SYSTEM_NOT_READY
    803: "mismatch",  # CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
    46: "cuda_busy",  # CUDA_ERROR_DEVICE_UNAVAILABLE
    100: "permission",  # CUDA_ERROR_NO_DEVICE
    304: "permission",  # CUDA_ERROR_OPERATING_SYSTEM
    999: "cgroup",  # CUDA_ERROR_UNKNOWN
}


def cuda(evidence: Evidence, settings: Settings) -> list[Found]:
    """What cuInit answered; the numbers are those of cuda.h."""
    said = evidence.host.cuda
    if said is None:
        return unanswered(evidence.host, "gpu.cuda", "CUDA was not started")
    if said.missing is not None:
        return skip(said.missing)
    if said.code is None:
        limit = settings.limit("cuda.limit")
        return [fail(f"cuInit gives no answer within {limit:.0f} s", "no answer", limit, remedy="reboot")]
    if said.code:
        text = f"cuInit fails with {said.code}" + (f" ({said.name})" if said.name else "")
        return [fail(text, said.code, 0, remedy=_CUDA.get(said.code))]
    listed = max((len(r.gpus) for r in evidence.readings), default=None)
    if said.devices is not None and listed is not None and said.devices < listed and not _divided(evidence):
        text = f"CUDA sees {said.devices} of {listed} GPUs"
        return [fail(text, said.devices, listed, remedy="permission")]
    return [sound(f"cuInit answers, {said.devices} devices" if said.devices is not None else "cuInit answers", 0, 0)]


def _divided(evidence: Evidence) -> bool:
    """With MIG a process sees one slice."""
    return any(g.mig == "Enabled" for r in evidence.readings for g in r.gpus)


def license(evidence: Evidence, settings: Settings) -> list[Found]:
    if not evidence.readings:
        return skip(no_reading(evidence))

    def judge(gpu: Gpu) -> Found | None:
        if gpu.license is None or (gpu.virtualization or "VGPU").upper() != "VGPU":
            return None  # a whole GPU computes without a licence
        if gpu.license.lower().startswith("unlicensed"):
            slowed = "unrestricted" not in gpu.license.lower()
            text = f"vGPU {gpu.license}: it {'is' if slowed else 'will be'} slowed down"
            return (fail if slowed else warn)(text, gpu.license, "Licensed", remedy="license")
        return sound(f"vGPU {gpu.license}", gpu.license)

    return over_gpus(evidence, judge, "no virtual GPU")


def affinity(evidence: Evidence, settings: Settings) -> list[Found]:
    told = [d for d in evidence.pci or () if d.gpu and d.numa_node is not None]
    if not told:
        return skip("no NUMA node of any GPU known")
    lone = [d for d in told if d.numa_node == -1]
    if lone and evidence.host.numa_nodes == 1:
        return [sound("one NUMA node", 1)]
    if lone and evidence.host.numa_nodes is None:
        return skip("the firmware names no NUMA node; how many the machine has is not known")
    if lone:
        return [
            Found(Verdict.WARN, "the firmware names no NUMA node", GpuRef(None, None, d.bus_id), -1, ">= 0")
            for d in lone
        ]
    nodes = sorted({d.numa_node for d in told if d.numa_node is not None})
    per_node = ", ".join(f"{sum(d.numa_node == n for d in told)} on node {n}" for n in nodes)
    return [sound(per_node)]


def p2p(evidence: Evidence, settings: Settings) -> list[Found]:
    """`topo -p2p` saying OK proves nothing: translated IOMMU with ACS redirect above a GPU hangs NCCL all the same."""
    host, pci = evidence.host, evidence.pci
    devices = {d.bus_id: d for d in pci or ()}
    gpus = [d for d in pci or () if d.gpu]
    count = len(gpus) or max((len(r.gpus) for r in evidence.readings), default=0)  # 0: not known
    mode = "off" if host.iommu_off else iommu_mode(host.cmdline, gpus)
    bridges = _redirecting(gpus, devices)
    told_acs = any(devices[b].acs_redirect is not None for g in gpus for b in g.parents if b in devices)
    faults = [
        e for e in (evidence.kernel.events if evidence.kernel else ()) if e.kind == "iommu" and e.severity == "fail"
    ]
    found: list[Found] = [fail(f"IOMMU page fault on a GPU: {faults[0].text}")] if faults else []
    if linked(evidence):
        return found or [sound("the GPUs reach each other by NVLink")]
    if bridges:
        where = ", ".join(f"{bridge} (above {', '.join(below)})" for bridge, below in sorted(bridges.items()))
        if mode in ("off", "pt"):
            found.append(warn(f"IOMMU {mode}, ReqRedir+ on {where}", "ReqRedir+", "ReqRedir-"))
        elif mode == "translated":
            found.append(fail(f"IOMMU translated, ReqRedir+ on {where}", "ReqRedir+", "ReqRedir-"))
        else:
            found.append(warn(f"ReqRedir+ on {where}; the IOMMU mode is not known", "ReqRedir+", "ReqRedir-"))
    elif mode == "translated" and count != 1:
        found.append(warn("IOMMU translated: peers may hang or read zeros", "translated", "off"))
    elif mode == "pt" and count != 1:
        found.append(warn("IOMMU in passthrough: enough on some hosts, off is safer", "pt", "off", remedy="iommu_off"))
    unlinked = _not_ok(host.p2p)
    if unlinked and not host.p2p_disabled:
        found.append(warn(f"nvidia-smi says no peer access: {', '.join(unlinked[:4])}", unlinked[0], "OK"))
    if found:
        return sorted(found, key=lambda f: -f.verdict.rank)
    if mode == "off" or told_acs:
        parts = [f"IOMMU {mode}"] if mode else []
        parts += ["no bridge above a GPU redirects requests"] if told_acs else []
        return [sound(", ".join(parts))]
    return skip("neither the IOMMU mode nor the bridges' ACS bits are known (lspci -vvv shows them to root only)")


def iommu_mode(cmdline: str | None, gpus: list[PciDevice]) -> str | None:
    """off, pt or translated; None when neither the groups nor the command line say."""
    kinds = {g.iommu for g in gpus if g.iommu}
    if kinds:
        return "translated" if any(k.startswith("DMA") for k in kinds) else "pt"
    words = (cmdline or "").split()
    if any(w in words for w in ("iommu=off", "amd_iommu=off", "intel_iommu=off")):
        return "off"
    if any(w in words for w in ("iommu=pt", "iommu.passthrough=1")):
        return "pt"
    if any(w in words for w in ("intel_iommu=on", "amd_iommu=on", "iommu.passthrough=0", "iommu=force")):
        return "translated"
    return None


def _redirecting(gpus: list[PciDevice], devices: dict[str, PciDevice]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for gpu in gpus:
        for parent in gpu.parents:
            if parent in devices and devices[parent].acs_redirect:
                found.setdefault(parent, []).append(gpu.bus_id)
    return found


def _not_ok(matrix: tuple[tuple[str, ...], ...] | None) -> list[str]:
    return [
        f"GPU{i}-GPU{j} {cell}"
        for i, row in enumerate(matrix or ())
        for j, cell in enumerate(row)
        if i < j and cell not in ("OK", "X")
    ]
