"""A recorded run as Markdown, for a CI system's summary page."""

from __future__ import annotations

from opsctl.report.record import Record
from opsctl.secret import mask
from opsctl.text import duration, one_line, printable

_MARKS = {"ok": "✅", "failed": "❌", "rolled-back": "↩️", "rollback-failed": "❌", "unreachable": "❌", "locked": "🔒"}


def summary(record: Record) -> str:
    """One table of hosts, then what failed, was measured and has changed."""
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


def cell(text: object) -> str:
    """Text inside a table: one line, nothing that Markdown or HTML would act on."""
    safe = one_line(printable(mask(str(text))), 300)
    for c in "\\|`*_[]<>":
        safe = safe.replace(c, f"\\{c}" if c not in "<>" else {"<": "&lt;", ">": "&gt;"}[c])
    return safe
