"""Tests that load the GPUs: whether they may run now, how they are asked for, and what they have shown.

Without --active nothing is said of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from statistics import median

from opsctl.gpu.checks.over import fail, sound, warn
from opsctl.gpu.model import ActiveRun, Evidence, Found, skip
from opsctl.gpu.settings import Settings
from opsctl.gpu.wanted import Wanted
from opsctl.text import one_line
from opsctl.wire.calls.gpu import ActiveTest, gpuactive_run
from opsctl.wire.protocol import Call

_ROW = re.compile(r"^[ \t]*(\d+)((?:[ \t]+(?:N/A|\d+(?:\.\d+)?))+)[ \t]*$", re.MULTILINE)


def bandwidth(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "nvbandwidth", lambda run: _pairs(run.text, settings.limit("active.pair")))


def collective(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "all_reduce_perf", lambda run: _nccl_tests(run.text))


def torch(evidence: Evidence, settings: Settings) -> list[Found]:
    return _judge(evidence, "torch", lambda run: _two_ranks(run.text))


def diagnostics(evidence: Evidence, settings: Settings) -> list[Found]:
    """The results of `dcgmi diag` that were given as a capture."""
    told = evidence.host.diagnostics
    if not told:
        return []
    found = [
        (fail if one.outcome == "fail" else warn)(
            f"{one.test}{f' on GPU {one.gpu}' if one.gpu else ''}: {one.outcome}{f': {one.text}' if one.text else ''}",
            one.outcome, "pass",
        )
        for one in told
        if one.outcome in ("fail", "warn")
    ]  # fmt: skip
    passed = sum(one.outcome == "pass" for one in told)
    skipped = sum(one.outcome == "skip" for one in told)
    if not found and not passed:
        return skip(f"none of its {skipped} tests was run")
    return sorted(found, key=lambda f: -f.verdict.rank) or [sound(f"{passed} tests passed, {skipped} skipped", passed)]


def _judge(evidence: Evidence, test: str, read: Callable[[ActiveRun], Found]) -> list[Found]:
    run = next((r for r in evidence.active or () if r.test == test), None)
    if run is None:
        return []
    if run.missing is not None:
        return skip(run.missing)
    if run.code is None:
        return [fail(f"no end after {run.seconds:.0f} s: transfers between the GPUs hang", "no answer")]
    found = read(run)
    if run.code != 0 and found.verdict.rank < 3:
        last = next((line for line in reversed(run.text.splitlines()) if line.strip()), "no output")
        return [fail(f"ended with code {run.code}: {one_line(last, 200)}", run.code, 0)]
    return [found]


def _pairs(text: str, share: float) -> Found:
    """nvbandwidth prints a matrix in GB/s: the slowest cell is compared with the usual one."""
    cells = [
        (float(value), f"{row[1]} and {column}")
        for row in _ROW.finditer(text)
        for column, value in enumerate(row[2].split())
        if value != "N/A" and "." in value
    ]
    if not cells:
        return fail("no bandwidth in its output")
    usual = median(value for value, _ in cells)
    slowest, where = min(cells)
    told = f"{usual:.0f} GB/s usual, {slowest:.0f} GB/s slowest (GPUs {where})"
    return (warn if slowest < usual * share else sound)(told, round(slowest, 1), round(usual * share, 1))


def _nccl_tests(text: str) -> Found:
    wrong = re.search(r"Out of bounds values\s*:\s*(\d+)", text)
    speed = re.search(r"Avg bus bandwidth\s*:\s*([\d.]+)", text)
    if wrong and int(wrong[1]):
        return fail(f"{wrong[1]} values arrived wrong", int(wrong[1]), 0)
    if not wrong or not speed:
        return fail("no result in its output")
    return sound(f"data right, {float(speed[1]):.1f} GB/s bus bandwidth", float(speed[1]))


def _two_ranks(text: str) -> Found:
    line = re.search(r"^OPSCTL (\{.*\})$", text, re.MULTILINE)
    if line is None:
        return fail("no result in its output")
    said = json.loads(line[1])
    if not said["right"]:
        return fail("the sum over two GPUs is wrong", "wrong", "right")
    return sound(f"two ranks: sum right, {said['gb_per_s']:.1f} GB/s", round(said["gb_per_s"], 1))


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
