"""Tests that load the GPUs: whether they may run now, how they are asked for, and what they said."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.gpu.model import ActiveRun, Evidence
from opsctl.gpu.settings import Settings
from opsctl.gpu.wanted import Wanted
from opsctl.wire.calls.gpu import ActiveTest, gpuactive_run
from opsctl.wire.protocol import Call

TESTS = 3
# They hold the devices open on every host and use no GPU.
_SERVANTS = ("nvidia-persiste", "nv-fabricmanage", "nv-hostengine", "nvidia-smi", "dcgm-exporter")


def refusal(evidence: Evidence, settings: Settings) -> str | None:
    """Why the GPUs must not be loaded now; None when nothing uses them."""
    host, table = evidence.host, evidence.table
    gpus = [g for r in evidence.readings for g in r.gpus]
    if not gpus or any(r.truncated for r in evidence.readings):
        return "nvidia-smi gave no complete reading"
    broken = next((g for g in gpus if g.lost), None)
    if broken:
        return f"{broken.ref} cannot be read"
    if host.unit is not None and host.unit.active in ("active", "activating", "reloading"):
        return f"{host.unit.name} is {host.unit.active}"
    listening = next((name for number, _, name in host.listeners or () if number == host.port), None)
    if listening:
        return f"{listening} listens on port {host.port}"
    for gpu in gpus:
        if gpu.processes:
            return f"pid {gpu.processes[0].pid} ({gpu.processes[0].name}) uses {gpu.ref}"
        if gpu.memory_used is None or gpu.memory_used > settings.limit("leftover.fail"):
            return f"{gpu.ref} holds {gpu.memory_used or 0:.0f} MiB"
    if table is None:
        return "who has them open cannot be seen"
    holder = next((p for p in table.processes if p.holds_gpu and p.comm not in _SERVANTS), None)
    return f"pid {holder.pid} ({holder.comm}) has a GPU open" if holder else None


def ask(wanted: Wanted, gpus: int) -> Call[list[ActiveTest]]:
    return gpuactive_run(
        gpus=gpus,
        limit=wanted.settings.limit("active.limit"),
        python=wanted.python,
        env=dict(wanted.env),
        programs=list(wanted.programs),
    )


def longest(wanted: Wanted) -> float:
    """Seconds after which every test has ended or been ended."""
    return TESTS * (wanted.settings.limit("active.limit") + 5) + 15


def runs(said: Sequence[ActiveTest]) -> tuple[ActiveRun, ...]:
    return tuple(
        ActiveRun(one["test"], one.get("missing"), one.get("code"), one.get("seconds", 0.0), one.get("text", ""))
        for one in said
    )


def not_run(why: str) -> tuple[ActiveRun, ...]:
    return tuple(ActiveRun(test, f"refused: {why}") for test in ("nvbandwidth", "all_reduce_perf", "torch"))
