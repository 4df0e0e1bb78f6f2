"""A probe's result as one HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from opsctl.report.html import Cell, Page, Tone

_TONES: Mapping[str, Tone] = {"error": "bad", "warning": "warn", "note": "plain"}


def probe_page(result: Mapping[str, Any], break_even_curve: Sequence[tuple[float, float]]) -> str:
    """The page. result: the object of `opsctl probe --json`. break_even_curve: (acceptance length, speed-up)."""
    server, accept = result["server"], result["accept_length"]
    page = Page(f"Probe of {result['target']}")
    page.section("Result")
    page.table(["figure", "value"], _figures(result))
    if result["findings"]:
        page.section("Findings")
        page.table(
            ["", "what", "what to do"],
            [[Cell(f["severity"], _TONES[f["severity"]]), f["message"], f["hint"]] for f in result["findings"]],
        )
    if accept and accept["histogram"]:
        page.section("Acceptance")
        page.bar_chart("Verify steps by accepted drafts", {str(n): c for n, c in enumerate(accept["histogram"])})
        positions = {str(n): share for n, share in enumerate(accept["by_position"], start=1)}
        page.bar_chart("Share of steps that accepted the draft at a position", positions)
        page.bar_chart("Acceptance length by workload", {k: a["mean"] for k, a in result["workloads"].items() if a})
    levels = result["throughput"]
    page.section("Throughput")
    page.line_chart(
        "Tokens per second by requests at a time",
        {
            "one request": [(int(n), t["per_request"]) for n, t in levels.items() if t["per_request"]],
            "in total": [(int(n), t["total"]) for n, t in levels.items()],
        },
        unit="tok/s",
    )
    if break_even_curve and accept:
        page.section("Break-even")
        page.line_chart(
            "Speed-up by acceptance length",
            {
                "this host": list(break_even_curve),
                "measured": [(accept["mean"], 0), (accept["mean"], result["speedup"])],
                "neither gain nor loss": [(break_even_curve[0][0], 1), (break_even_curve[-1][0], 1)],
            },
            unit="times",
        )
    page.section("Configuration")
    page.table(["setting", "value"], [[key, "" if value is None else value] for key, value in server.items()])
    return page.html()


def _figures(result: Mapping[str, Any]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    if accept := result["accept_length"]:
        low, high = accept["ci95"]
        rows.append(["acceptance length", f"{accept['mean']:.2f} ({low:.2f} to {high:.2f}, 95 %)"])
        rows.append(["verify steps", accept["verify_steps"]])
    for key, words in (
        ("accept_rate", "accepted drafts / proposed drafts"),
        ("accept_rate_in_log", "accept rate in its log"),
        ("cycle_ms", "verify cycle, ms"),
        ("baseline", "tok/s without speculation"),
        ("speedup", "speed-up"),
        ("break_even", "break-even acceptance length"),
    ):
        if result[key] is not None:
            rows.append([words, f"{result[key]:.2f}"])
    for key, words in (("first_token", "first token, ms"), ("inter_token", "between tokens, ms")):
        if q := result["latency"][key]:
            rows.append([words, f"{q['median']:.1f} (95 %: {q['p95']:.1f}, 99 %: {q['p99']:.1f})"])
    return rows
