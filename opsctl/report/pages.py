"""Results of a probe and timelines of logs as HTML pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from opsctl.report.html import Cell, Page, Tone
from opsctl.sglang.logs import timeline
from opsctl.sglang.logs.lives import Start
from opsctl.sglang.logs.timeline import Summary
from opsctl.text import duration, one_line, size

_TONES: Mapping[str, Tone] = {"error": "bad", "warning": "warn", "note": "plain"}
_MOST_EVENTS = 200
_END_TONES: Mapping[str | None, Tone] = {"crashed": "bad", "killed": "bad", "vanished": "warn"}


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


def log_page(summaries: Mapping[str, Summary]) -> str:
    """The page. summaries: by host or file."""
    page = Page("Server log: " + ", ".join(summaries))
    for name, summary in summaries.items():
        if len(summaries) > 1:
            page.section(name)
        _overview(page, summary)
        _first_error(page, summary)
        _starts(page, summary)
        _decode(page, summary)
        _events(page, summary)
    return page.html()


def _overview(page: Page, summary: Summary) -> None:
    log, decode = summary.log, summary.decode
    accept, throughput = decode["accept_length"], decode["throughput"]
    facts: dict[str, object] = {
        "SGLang": summary.version or "unknown",
        "log": f"{log['lines']} lines, {size(log['bytes'])}, {log['first_at'] or '?'} to {log['last_at'] or '?'}",
        "starts": len(summary.starts),
        "Decode lines": decode["lines"],
    }
    if throughput and decode["lines"]:
        facts["throughput"] = f"mean {throughput['mean']:.2f}, max {throughput['max']:.2f} token/s"
    if accept:
        facts["acceptance length"] = ", ".join(f"{key} {accept[key]:.2f}" for key in ("mean", "min", "max", "last"))
    page.facts(facts)


def _first_error(page: Page, summary: Summary) -> None:
    error = summary.first_error
    page.section("First error")
    if error is None:
        page.paragraph("No error that cost the server its life.", "good")
        return
    page.paragraph(f"{error.at or '?'} {error.rank or ''}: {one_line(error.message, 400)}", "bad")
    page.items([*(one_line(step) for step in error.chain[:-1]), *([error.where] if error.where else [])])
    if error.cause:
        page.paragraph(error.cause, "warn")


def _starts(page: Page, summary: Summary) -> None:
    page.section("Starts")
    rows = []
    for number, start in enumerate(summary.starts, 1):
        ready = f"{start.ready_at}{_after(start)}" if start.ready_at else Cell("never", "bad")
        ended = Cell(f"{start.ended or ''} {start.end_reason or ''}".strip(), _END_TONES.get(start.end_reason, "plain"))
        rows.append([number, start.at or "before this log begins", ready, ended])
    page.table(["", "started", "ready", "ended"], rows)
    for number, start in enumerate(summary.starts, 1):
        spans = dict(_spans(start))
        if spans:
            page.timeline(f"Phases of start {number}", spans)


def _spans(start: Start) -> Iterator[tuple[str, list[tuple[float, float, str, Tone]]]]:
    begins = [phase.begin for phase in start.phases if phase.begin]
    if not begins:
        return
    zero = datetime.fromisoformat(start.at or min(begins))
    for phase in start.phases:
        if phase.begin is None:
            continue
        begin = max(0.0, (datetime.fromisoformat(phase.begin) - zero).total_seconds())
        tone: Tone = "good" if phase.seconds is not None else "bad"
        yield phase.name, [(begin, begin + (phase.seconds or 0.0), phase.name, tone)]


def _decode(page: Page, summary: Summary) -> None:
    points = timeline.series(summary.decode)
    if not points:
        return
    page.section("Over time")
    times = [datetime.fromisoformat(point["at"]) for point in points]
    hours = [(at - times[0]).total_seconds() / 3600 for at in times]
    said = list(zip(hours, points, strict=True))
    page.line_chart("Throughput", {"tokens": [(h, p["throughput"]) for h, p in said]}, unit="token/s", x_unit="h")
    accepted = [(h, p["accept"]) for h, p in said if p["accept"] is not None]
    if accepted:
        page.line_chart("Acceptance length", {"tokens": accepted}, unit="tokens a step", x_unit="h")
    page.paragraph(f"0 h is {points[0]['at']}.")


def _events(page: Page, summary: Summary) -> None:
    if not summary.events:
        return
    page.section("Events")
    rows = [[e.at or "", e.rank or "", e.kind, one_line(e.message)] for e in summary.events[:_MOST_EVENTS]]
    page.table(["at", "rank", "what", ""], rows)


def _after(start: Start) -> str:
    if start.at is None or start.ready_at is None:
        return ""
    seconds = (datetime.fromisoformat(start.ready_at) - datetime.fromisoformat(start.at)).total_seconds()
    return f" after {duration(seconds)}" if seconds >= 0 else ""
