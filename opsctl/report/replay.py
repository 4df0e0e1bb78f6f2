"""A recorded run as the lines it was shown with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opsctl.report.record import Record
from opsctl.report.run_page import recorded_diff
from opsctl.text import duration, few, moment, one_line, printable


def lines(record: Record) -> Iterator[str]:
    """What to print for the run, safe for a terminal."""
    return (printable(line) for event in record.events for line in _lines(event))


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
            yield f"{event['outcome']} in {duration(event['seconds'])} (exit code {event['exit_code']})"
