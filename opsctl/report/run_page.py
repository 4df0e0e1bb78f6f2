"""A recorded run as a page: hosts, timeline, what changed as diffs, what was measured, what went wrong."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from opsctl.modules.contract import FileDiff
from opsctl.report.diff import unified
from opsctl.report.html import Cell, Page, Tone
from opsctl.report.record import Record
from opsctl.text import duration, moment

_TONES: dict[str, Tone] = {
    "ok": "good", "changed": "warn", "ran": "warn", "unknown": "plain", "skipped": "plain", "failed": "bad",
    "unreachable": "bad", "rolled-back": "warn", "rollback-failed": "bad", "locked": "bad", "interrupted": "bad",
}  # fmt: skip


def run_page(record: Record) -> str:
    """The page as HTML."""
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
        page.section("In the words of the tasks")
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
