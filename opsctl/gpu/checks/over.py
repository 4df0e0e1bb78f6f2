"""Run a judgement over every GPU that can be read, and say what it means for the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from opsctl.gpu.model import Evidence, Found, Gpu, GpuRef, Reading, Verdict, skip

Judge = Callable[[Gpu], Found | None]


def over_gpus(evidence: Evidence, judge: Judge, absent: str) -> list[Found]:
    """Findings of `judge`, which gives None where a GPU does not say what it needs.

    Faults are told one by one; without any, one line speaks for all. Nothing is called sound when the answer breaks
    off, and GPUs that cannot be read are left to gpu.lost.
    """
    if not evidence.readings:
        return skip(no_reading(evidence))
    found = [f for reading in evidence.readings for f in _one(reading, judge, absent)]
    return merge(found)


def merge(found: list[Found]) -> list[Found]:
    """The faults, worst first; without faults the first pass, else the first skip."""
    faults = sorted((f for f in found if f.verdict.rank > 1), key=lambda f: -f.verdict.rank)
    passed = [f for f in found if f.verdict is Verdict.PASS]
    once = {(f.verdict, f.gpu, f.value, f.expected): f for f in reversed(faults)}  # several parts tell the same
    return [f for f in faults if f in once.values()] or passed[:1] or found[:1]


def no_reading(evidence: Evidence) -> str:
    if evidence.smi_errors:
        return "nvidia-smi gave no readings"
    run = evidence.smi_run
    if run and (run.timed_out or run.stuck_pids):
        return "nvidia-smi did not answer"
    if run and run.missing:
        return "nvidia-smi is not installed"
    return "no output of nvidia-smi"


def _one(reading: Reading, judge: Judge, absent: str) -> list[Found]:
    where = f" ({reading.part})" if reading.part else ""
    judged = [(gpu, judge(gpu)) for gpu in reading.readable]
    told = [(gpu, f) for gpu, f in judged if f is not None]
    faults = [replace(f, gpu=gpu.ref, evidence=f.evidence + where) for gpu, f in told if f.verdict.rank > 1]
    if faults:
        return faults
    if reading.truncated:
        return skip(
            f"the output {reading.truncated}: {len(reading.gpus)} of {reading.attached or '?'} GPUs begun{where}"
        )
    if not told:
        return skip((absent if reading.gpus else "no GPU is listed") + where)
    return [_for_all([f for _, f in told], len(reading.gpus), where)]


def _for_all(passed: list[Found], listed: int, where: str) -> Found:
    first = passed[0]
    words = list(dict.fromkeys(f.evidence for f in passed))
    text = words[0] if len(words) == 1 else f"{words[0]} … {words[-1]}"
    count = "" if listed == 1 else f" on {len(passed)} of {listed}"
    value = first.value if all(f.value == first.value for f in passed) else None
    unknown = next((f for f in passed if f.verdict is Verdict.SKIP), None)
    if unknown:
        return Found(Verdict.SKIP, unknown.evidence + where)
    return Found(Verdict.PASS, text + count + where, None, value, first.expected)


def sound(evidence: str, value: str | float | None = None, expected: str | float | None = None) -> Found:
    return Found(Verdict.PASS, evidence, None, value, expected)


def warn(
    evidence: str,
    value: str | float | None = None,
    expected: str | float | None = None,
    *,
    remedy: str | None = None,
    gpu: GpuRef | None = None,
) -> Found:
    return Found(Verdict.WARN, evidence, gpu, value, expected, remedy)


def fail(
    evidence: str,
    value: str | float | None = None,
    expected: str | float | None = None,
    *,
    remedy: str | None = None,
    gpu: GpuRef | None = None,
) -> Found:
    return Found(Verdict.FAIL, evidence, gpu, value, expected, remedy)
