"""How the GPUs hang together: NUMA nodes, and whether peer-to-peer transfers can work."""

from __future__ import annotations

from opsctl.gpu.checks.fabric import linked
from opsctl.gpu.checks.over import fail, sound, warn
from opsctl.gpu.model import Evidence, Found, GpuRef, PciDevice, Verdict, skip
from opsctl.gpu.settings import Settings


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
