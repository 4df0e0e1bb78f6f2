"""Processes that hold GPUs: orphaned workers, and those that no signal reaches."""

from __future__ import annotations

from opsctl.gpu.checks.over import fail, sound, warn
from opsctl.gpu.model import Evidence, Found, skip
from opsctl.gpu.ownership import Class, classify, orphan_workers
from opsctl.gpu.settings import Settings

_NO_TABLE = "no process table"


def orphans(evidence: Evidence, settings: Settings) -> list[Found]:
    if evidence.table is None:
        return skip(_NO_TABLE)
    found = classify(evidence.table, stuck_after=settings.limit("stuck.fail"))
    left = orphan_workers(found, {p.pid: p for p in evidence.table.processes})
    if not left:
        return [sound("no worker without a living server", 0, 0)]
    held = sum(o.gpu_memory_mib or 0 for o in left)
    names = ", ".join(f"{o.pid} {o.process.title if o.process else ''}".strip() for o in left[:8])
    return [fail(f"{len(left)} workers without a living server hold {held / 1024:.0f} GiB: {names}", len(left), 0)]


def stuck(evidence: Evidence, settings: Settings) -> list[Found]:
    if evidence.table is None and evidence.smi_run is not None:
        return [fail("reading the process table hangs: a process is stuck in the kernel with its memory locked")]
    if evidence.table is None:
        return skip(_NO_TABLE)
    found = classify(evidence.table, stuck_after=settings.limit("stuck.fail"))
    held = [o for o in found if o.klass is Class.STUCK]
    if held:
        return [fail(f"pid {o.pid} {o.process.comm if o.process else ''}: {o.proof}", o.pid) for o in held]
    old = settings.limit("zombie.warn")
    dead = [o for o in found if o.klass is Class.ZOMBIE and o.process and o.process.age > old]
    if dead:
        return [warn(f"pid {o.pid} {o.process.comm if o.process else ''}: {o.proof}", o.pid) for o in dead]
    return [sound("no process that holds a GPU is stuck")]
