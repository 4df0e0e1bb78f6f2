"""A recorded run in every format: the lines it was shown with, findings, Markdown, an HTML page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from opsctl.engine.record import Record
from opsctl.errors import Place, UsageError
from opsctl.findings import Finding, Level
from opsctl.modules.contract import FileDiff
from opsctl.report.diff import unified
from opsctl.report.findings import cell
from opsctl.report.html import Cell, Page, Tone
from opsctl.text import did_you_mean, duration, few, moment, one_line, printable

_MARKS = {"ok": "✅", "failed": "❌", "rolled-back": "↩️", "rollback-failed": "❌", "unreachable": "❌", "locked": "🔒"}
_TONES: dict[str, Tone] = {
    "ok": "good", "changed": "warn", "ran": "warn", "unknown": "plain", "skipped": "plain", "failed": "bad",
    "unreachable": "bad", "rolled-back": "warn", "rollback-failed": "bad", "locked": "bad", "interrupted": "bad",
}  # fmt: skip
_LEVELS: dict[str, Level] = {"failed": "error", "unreachable": "error", "skipped": "skipped", "unknown": "skipped"}
_MOST_OUTPUT = 40  # lines that a failed command printed
_GATES: dict[bool | None, Level] = {True: "passed", False: "error", None: "skipped"}


def lines(record: Record, task: str | None = None) -> Iterator[str]:
    """What happened in the run, with all output, safe for a terminal.

    task: only what is told of tasks whose name has these words, or of the one with this number. Raises UsageError.
    """
    events = list(record.events)
    if task is not None:
        ended = [event for event in events if event.get("event") == "task_ended"]
        events = [one for one in ended if task == str(one["number"]) or task.lower() in one["task"].lower()]
        if not events:
            names = dict.fromkeys(one["task"] for one in ended)
            raise UsageError(f"no task of run {record.run} is called {task!r}", hint=did_you_mean(task, names))
    return (printable(line) for event in events for line in _lines(event))


def _lines(event: dict[str, Any]) -> Iterator[str]:
    match event.get("event"):
        case "run_started":
            yield f"run {event['run']}: {event['playbook']} on {few(event['hosts'])}, {moment(event['started'])}"
            for name, value in event["variables"].items():
                yield f"    -e {name}={value}"
        case "play_started":
            yield f"play: {event['play']}"
        case "task_ended":
            summary = f" - {one_line(event['summary'])}" if event["summary"] else ""
            yield f"{event['host']}: {event['status']}: {event['task']}{summary} ({duration(event['seconds'])})"
            yield from (f"    {name} = {value:g}" for name, value in event["measures"].items())
            yield from (f"    {line}" for line in (*event["lines"], *event.get("details", ())))
            yield from (f"    | {line}" for line in event.get("output", ()))
            for diff in event["diffs"]:
                yield from (f"    {line}" for line in recorded_diff(diff))
            if event.get("problem"):
                yield f"    at {event['problem'].get('where', '?')}"
        case "gate_checked":
            yield f"{event['host']}: gate {event['gate']}: {event['message']}"
        case "note":
            yield f"{event['host'] or ''}: {event['level']}: {event['message']}"
        case "undo_step":
            yield f"{event['host']}: {event['outcome']}: {event['task']} {event['message']}".rstrip()
        case "host_ended":
            counts = ", ".join(f"{n} {k}" for k, n in event["counts"].items())
            yield f"{event['host']}: {event['status']} ({counts}) {event['message']}".rstrip()
        case "run_ended":
            yield f"{event['outcome']} ({duration(event['seconds'])}, exit code {event['exit_code']})"


def findings(record: Record) -> list[Finding]:
    """One for each task on each host and for each gate; one for a host that is lost without either."""
    found = [_of_task(event) for event in record.of("task_ended")]
    found += [
        Finding(f"gate {event['gate']}", _GATES[event["holds"]], event["message"], where=event["host"])
        for event in record.of("gate_checked")
    ]
    told = {one.where for one in found if one.level == "error"}
    return found + [
        Finding("host", "error", event["message"], remedy=event.get("hint") or "", where=event["host"])
        for event in record.of("host_ended")
        if event["status"] in ("unreachable", "locked", "rollback-failed")
        or (event["status"] not in ("ok", "skipped") and event["host"] not in told)
    ]


def _of_task(event: dict[str, Any]) -> Finding:
    status, place = event["status"], event["place"].get("where")
    failed = _LEVELS.get(status) == "error"
    return Finding(
        event["task"],
        _LEVELS.get(status, "passed"),
        event["summary"] or ("changed" if status == "changed" else ""),
        Place(place) if place else None,
        (event.get("problem") or {}).get("hint") or "",
        where=event["host"],
        evidence="\n".join((*event.get("lines", ()), *event.get("output", ())[-_MOST_OUTPUT:])) if failed else "",
        seconds=event["seconds"],
    )


def markdown(record: Record) -> str:
    """Markdown for the summary page of a CI system: a table of hosts, then gates, and what failed or changed."""
    started, ended = record.started, record.ended or {}
    mode = " (check mode)" if started.get("check") else ""
    lines = [
        f"## opsctl: {cell(started.get('playbook', '?'))}{mode}: {cell(ended.get('outcome', 'did not finish'))}", "",
        f"Run `{record.run}`, {duration(ended.get('seconds', 0))}, exit code {ended.get('exit_code', '?')}.", "",
        "| host | result | tasks | |", "|---|---|---|---|",
    ]  # fmt: skip
    for host in record.of("host_ended"):
        counts = ", ".join(f"{n} {k}" for k, n in host["counts"].items())
        mark = _MARKS.get(host["status"], "")
        lines.append(f"| {cell(host['host'])} | {mark} {host['status']} | {counts} | {cell(host['message'])} |")
    gates = list(record.of("gate_checked"))
    if gates:
        lines += ["", "| gate | host | |", "|---|---|---|"]
        for gate in gates:
            mark = {True: "✅", False: "❌", None: "?"}[gate["holds"]]
            lines.append(f"| {cell(gate['gate'])} | {cell(gate['host'])} | {mark} {cell(gate['message'])} |")
    tasks = [t for t in record.of("task_ended") if t["status"] not in ("ok", "skipped")]
    if tasks:
        lines += ["", "| host | task | | |", "|---|---|---|---|"]
        lines += [
            f"| {cell(t['host'])} | {cell(t['task'])} | {t['status']} | {cell(t['summary'])} |" for t in tasks[:200]
        ]
        if len(tasks) > 200:
            lines.append(f"| … | {len(tasks) - 200} more | | |")
    return "\n".join(lines) + "\n\n"


def html(record: Record) -> str:
    """An HTML page: hosts, timeline, what changed as diffs, what was measured, what went wrong."""
    started, ended = record.started, record.ended or {}
    page = Page(f"{started.get('playbook', 'run')} {record.run}")
    exit_code = ended.get("exit_code")
    page.facts({
        "result": Cell(str(ended.get("outcome", "did not finish")), "good" if exit_code in (0, 3) else "bad"),
        "exit code": exit_code if exit_code is not None else "none",
        "started": moment(started.get("started", "?")),
        "took": duration(ended.get("seconds", 0)),
        "mode": "check: nothing was changed" if started.get("check") else "run",
        **{f"-e {name}": value for name, value in (started.get("variables") or {}).items()},
    })  # fmt: skip
    _hosts(page, record)
    _findings(page, record)
    page.section("Timeline")
    page.timeline("tasks by host", _spans(record))
    _measures(page, record)
    _said(page, record)
    _changes(page, record)
    _undone(page, record)
    return page.html()


def _hosts(page: Page, record: Record) -> None:
    page.section("Hosts")
    rows = [
        [h["host"], Cell(h["status"], _TONES.get(h["status"], "plain")),
         ", ".join(f"{n} {k}" for k, n in h["counts"].items()), h["message"]]
        for h in record.of("host_ended")
    ]  # fmt: skip
    page.table(["host", "result", "tasks", ""], rows)


def _findings(page: Page, record: Record) -> None:
    lines = [f"{t['host']}: {t['task']}: {t['summary']} ({t['place'].get('where', '')})"
             for t in record.of("task_ended") if t["status"] in ("failed", "unreachable")]  # fmt: skip
    lines += [
        f"{g['host']}: gate {g['gate']}: {g['message']}" for g in record.of("gate_checked") if g["holds"] is False
    ]
    lines += [f"{n['host'] or ''}: {n['message']}" for n in record.of("note") if n["level"] != "info"]
    if lines:
        page.section("Findings")
        page.items(Cell(line, "bad") for line in lines)


def _spans(record: Record) -> dict[str, list[tuple[float, float, str, Tone]]]:
    spans: dict[str, list[tuple[float, float, str, Tone]]] = defaultdict(list)
    for task in record.of("task_ended"):
        start = max(0.0, task["at"] - task["seconds"])
        tone = _TONES.get(task["status"], "plain")
        spans[task["host"]].append((start, task["at"], f"{task['task']} ({task['status']})", tone))
    return dict(spans)


def _measures(page: Page, record: Record) -> None:
    by_name: dict[str, dict[str, float]] = defaultdict(dict)
    for task in record.of("task_ended"):
        for name, value in task["measures"].items():
            by_name[name][f"{task['host']} {task['task']}"] = value
    tones: dict[bool | None, Tone] = {True: "good", False: "bad", None: "plain"}
    gates = [[g["host"], g["gate"], Cell(g["message"], tones[g["holds"]])] for g in record.of("gate_checked")]
    if by_name or gates:
        page.section("Measurements")
    for name, values in by_name.items():
        page.bar_chart(name, values)
    if gates:
        page.table(["host", "gate", ""], gates)


def _said(page: Page, record: Record) -> None:
    """What tasks told people: a measurement with what it was before, what a check found."""
    tasks = [(task, [*task["lines"], *task.get("details", ())]) for task in record.of("task_ended")]
    said = [(task, lines) for task, lines in tasks if lines]
    if said:
        page.section("Task output")
    for task, lines in said:
        page.paragraph(f"{task['host']}: {task['task']}")
        page.items(Cell(line, "bad" if line.startswith("error: ") else "plain") for line in lines)


def _changes(page: Page, record: Record) -> None:
    tasks = [t for t in record.of("task_ended") if t["status"] in ("changed", "ran", "unknown")]
    page.section("Changes")
    if not tasks:
        page.paragraph("None.")
    page.table(
        ["host", "task", "", "at"], [[t["host"], t["task"], t["summary"], t["place"].get("where", "")] for t in tasks]
    )
    for task in tasks:
        for diff in task["diffs"]:
            page.diff(recorded_diff(diff), f"{task['host']}: {diff['path']}")


def recorded_diff(diff: dict[str, Any]) -> list[str]:
    """A recorded diff as lines. Long and binary files were recorded in part only."""
    if diff.get("secret"):
        return ["(content is secret)"]
    sides = [diff.get("before"), diff.get("after")]
    if any(side is not None and "text" not in side for side in sides):
        return [f"(binary: {' -> '.join('absent' if s is None else str(s['bytes']) + ' B' for s in sides)})"]
    before, after = (None if side is None else side["text"].encode() for side in sides)
    return unified(FileDiff(diff["path"], before, after))


def _undone(page: Page, record: Record) -> None:
    steps = list(record.of("undo_step"))
    if steps:
        page.section("Rollback")
        page.table(["host", "task", "", ""], [[s["host"], s["task"], s["outcome"], s["message"]] for s in steps])
