"""Timelines of logs as one HTML page: starts with their phases, throughput and acceptance over time, errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from opsctl.report.html import Cell, Page, Tone
from opsctl.sglang.logs import timeline
from opsctl.sglang.logs.lives import Start
from opsctl.sglang.logs.timeline import Summary
from opsctl.text import duration, one_line, size

_MOST_EVENTS = 200
_END_TONES: Mapping[str | None, Tone] = {"crashed": "bad", "killed": "bad", "vanished": "warn"}


def log_page(summaries: Mapping[str, Summary]) -> str:
    """The page. summaries: by host or file."""
    page = Page("Server log: " + ", ".join(summaries))
    for name, summary in summaries.items():
        if len(summaries) > 1:
            page.section(name)
        _overview(page, summary)
        _error(page, summary)
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


def _error(page: Page, summary: Summary) -> None:
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
