"""A recorded run as JUnit cases: one for each task on each host, one for each gate."""

from __future__ import annotations

from typing import Any, Literal

from opsctl.report.junit import Case, document
from opsctl.report.record import Record

_STATUS: dict[str, Literal["passed", "failed", "skipped"]] = {
    "failed": "failed", "unreachable": "failed", "skipped": "skipped", "unknown": "skipped",
}  # fmt: skip


def junit(record: Record) -> str:
    """The run as JUnit XML."""
    cases = [_task(event) for event in record.of("task_ended")]
    cases += [_gate(event) for event in record.of("gate_checked")]
    told = {case.group for case in cases if case.status == "failed"}
    cases += [
        Case(event["host"], "host", "failed", event["message"], event.get("hint") or "")
        for event in record.of("host_ended")
        if event["status"] in ("unreachable", "locked", "rollback-failed")
        or (event["status"] not in ("ok", "skipped") and event["host"] not in told)
    ]
    return document(f"opsctl {record.started.get('playbook', '')}".strip(), cases)


def _task(event: dict[str, Any]) -> Case:
    problem = event.get("problem") or {}
    detail = "\n".join([f"at {event['place'].get('where', '')}", problem.get("hint") or "", *event.get("lines", ())])
    status = _STATUS.get(event["status"], "passed")
    message = event["summary"] or ("changed" if event["status"] == "changed" else "")
    return Case(event["host"], event["task"], status, message, detail, event["seconds"])


def _gate(event: dict[str, Any]) -> Case:
    status: dict[bool | None, Literal["passed", "failed", "skipped"]] = {
        True: "passed",
        False: "failed",
        None: "skipped",
    }
    return Case(event["host"], f"gate {event['gate']}", status[event["holds"]], event["message"])
