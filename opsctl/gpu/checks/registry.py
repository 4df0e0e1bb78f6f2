"""Every check with its texts, in the order they are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from opsctl.gpu.checks import active, cards, driver, fabric, host, kernel, pcie
from opsctl.gpu.model import Evidence, Found
from opsctl.gpu.read.fields import table
from opsctl.gpu.settings import Settings

CheckFunction = Callable[[Evidence, Settings], list[Found]]

_FUNCTIONS: dict[str, CheckFunction] = {
    "driver.loaded": driver.loaded,
    "driver.mismatch": driver.mismatch,
    "smi.responsive": driver.responsive,
    "gpu.count": driver.count,
    "gpu.lost": cards.lost,
    "gpu.recovery": cards.recovery,
    "gpu.uniform": cards.uniform,
    "gpu.mode": cards.mode,
    "gpu.fabric": fabric.fabric,
    "gpu.nvlink": fabric.links,
    "gpu.cuda": fabric.cuda,
    "gpu.license": fabric.license,
    "gpu.persistence": cards.persistence,
    "ecc.uncorrected": cards.uncorrected,
    "ecc.mode": cards.ecc_mode,
    "ecc.rows": cards.rows,
    "pcie.width": pcie.width,
    "pcie.gen": pcie.generation,
    "pcie.errors": pcie.errors,
    "gpu.temp": cards.temperature,
    "gpu.throttle": cards.throttle,
    "gpu.clocks": cards.clocks,
    "gpu.power": cards.power,
    "gpu.leftover": cards.leftover,
    "gpu.orphans": cards.orphans,
    "proc.stuck": cards.stuck,
    "klog.xid": kernel.xid,
    "klog.offbus": kernel.offbus,
    "klog.sxid": kernel.sxid,
    "klog.aer": kernel.aer,
    "klog.iommu": kernel.iommu,
    "klog.oom": kernel.oom,
    "klog.hung": kernel.hung,
    "klog.disk": kernel.disk,
    "topo.affinity": fabric.affinity,
    "p2p.config": fabric.p2p,
    "host.numa_balancing": host.numa_balancing,
    "host.governor": host.governor,
    "host.cpus": host.cpus,
    "host.ram": host.ram,
    "host.edac": host.memory_errors,
    "host.shm": host.shm,
    "host.disk": host.disk,
    "host.weights": host.weights,
    "host.limits": host.limits,
    "host.fd": host.fd,
    "host.time": host.clock,
    "host.updates": host.updates,
    "host.hugepages": host.hugepages,
    "net.ports": host.ports,
    "dcgm.diag": active.diagnostics,
    "svc.port": host.port,
    "svc.unit": host.unit,
    "svc.ready": host.ready,
    "svc.live": host.live,
    "active.bandwidth": active.bandwidth,
    "active.nccl": active.collective,
    "active.torch": active.torch,
}


# Whether the driver serves all GPUs and each can be read.
_DECISIVE = ("driver.loaded", "gpu.count", "gpu.lost")


@dataclass(frozen=True, slots=True)
class Check:
    """settings: keys of the host's variable `health` that it judges by: `profile.gpus`, `thresholds.shm.fail`."""

    id: str
    title: str
    meaning: str
    causes: str
    remedy: str
    command: str
    settings: tuple[str, ...]
    function: CheckFunction


@cache
def checks() -> dict[str, Check]:
    rows = {row["check"]: row for row in table("checks.csv")}
    return {
        name: Check(
            name, rows[name]["title"], rows[name]["meaning"], rows[name]["causes"], rows[name]["remedy"],
            rows[name]["command"], tuple(rows[name]["settings"].split()), function,
        )
        for name, function in _FUNCTIONS.items()
    }  # fmt: skip


def decisive(check: Check, evidence: Evidence) -> bool:
    """Whether without its answer nobody can say that the host is fit. With NVSwitches CUDA waits for their fabric."""
    return check.id in _DECISIVE or (check.id == "gpu.fabric" and fabric.has_switches(evidence))
