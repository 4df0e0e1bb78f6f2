"""A probe's result as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from opsctl.findings import Finding
from opsctl.sglang.probe.gates import Outcome
from opsctl.sglang.probe.probe_findings import word

_BAR = 40  # characters of the longest bar


def lines(
    result: dict[str, Any], sentence: str | None, noticed: Sequence[Finding], outcomes: Sequence[Outcome]
) -> Iterator[str]:
    """`result`: the object of `--json`. sentence: the break-even in words."""
    server = result["server"]
    yield f"SGLang {server['version']}, {_speculation(server)}"
    if result["accept_length"]:
        yield from _acceptance(result)
    for level, t in result["throughput"].items():
        yield f"throughput at {level:>3}  {number(t['per_request'])} tok/s a request, {number(t['total'])} in total"
    for key, words in (("first_token", "first token"), ("inter_token", "between tokens")):
        if q := result["latency"][key]:
            yield f"{words:18} {q['median']:.1f} ms  (95 %: {q['p95']:.1f}, 99 %: {q['p99']:.1f})"
    if result["cycle_ms"]:
        yield f"verify cycle       {result['cycle_ms']:.1f} ms"
    if sentence:
        yield sentence
    if result["outputs_agree"]:
        same, of = result["outputs_agree"]
        yield f"greedy output      equal to the baseline's for {same} of {of} prompts"
    for f in noticed:
        yield f"{word(f.level)}: {f.message}"
        if f.remedy:
            yield f"  → {f.remedy}"
    for o in outcomes:
        yield f"gate {o}"


def figures(result: dict[str, Any]) -> str:
    """The two figures that matter, on one line."""
    accept = result["accept_length"]
    parts = [f"acceptance length {accept['mean']:.2f}" if accept else "no speculation"]
    parts += [f"{number(t['per_request'])} tok/s a request at {level}" for level, t in result["throughput"].items()]
    return ", ".join(parts)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _speculation(server: dict[str, Any]) -> str:
    if not server["algorithm"]:
        return "no speculation"
    return (
        f"{server['algorithm']}, {server['steps']} steps, top-k {server['topk']}, {server['draft_tokens']} draft tokens"
    )


def _acceptance(result: dict[str, Any]) -> Iterator[str]:
    accept = result["accept_length"]
    low, high = accept["ci95"]
    yield (
        f"acceptance length  {accept['mean']:.2f}  (95 %: {low:.2f} to {high:.2f}, "
        f"{accept['verify_steps']} verify steps, {accept['requests']} answers)"
    )
    yield f"acceptance rate    {number(result['accept_rate'])}  accepted drafts / proposed drafts"
    if result["accept_rate_in_log"] is not None:
        yield f"  in its log       {number(result['accept_rate_in_log'])}"
    most = max(accept["histogram"], default=0) or 1
    for n, count in enumerate(accept["histogram"]):
        yield f"  {n} accepted       {'#' * round(_BAR * count / most):{_BAR}} {count}"
    for name, part in result["workloads"].items():
        if part:
            yield f"  {name:16} {part['mean']:.2f}"
    sampled = result["sampled"]
    if sampled and sampled["accept_length"]:
        yield f"  temperature {sampled['temperature']:g}  {sampled['accept_length']['mean']:.2f}"
