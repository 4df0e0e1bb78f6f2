"""What a command that checks something found, in every shape a CI system reads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from opsctl.errors import OpsctlError, Place
from opsctl.report.annotations import Annotation, Level
from opsctl.report.junit import Case
from opsctl.report.summary import cell
from opsctl.secret import masked

Status = Literal["passed", "noted", "warned", "failed", "skipped"]

_LEVELS: dict[Status, Level] = {"noted": "notice", "warned": "warning", "failed": "error"}
_MARKS: dict[Status, str] = {"passed": "✅", "noted": "💡", "warned": "⚠️", "failed": "❌", "skipped": "➖"}
_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class Finding:
    """How one check went.

    Args:
        group: what was checked: a host, a folder, a server.
        name: name of the check or of the gate.
        subject: the part of it that is meant, where a check looks at several.
        place: the file that is to blame, where it lies on this machine.
        remedy: what to do.
        detail: more lines, for the page of a test.
    """

    group: str
    name: str
    status: Status
    message: str = ""
    subject: str = ""
    place: Place | None = None
    remedy: str = ""
    detail: str = ""

    @classmethod
    def of(cls, error: OpsctlError) -> Finding:
        """An error that ended the command."""
        place = error.where if isinstance(error.where, Place) else None
        return cls(str(error.where or "opsctl"), "error", "failed", error.message, "", place, error.hint or "")

    @property
    def title(self) -> str:
        return self.name if self.subject in ("", self.name) else f"{self.name} {self.subject}"


def remarks(findings: Sequence[Finding]) -> list[Annotation]:
    """One for each finding that somebody should look at."""
    return [
        Annotation(_LEVELS[f.status], f"{f.title} ({f.group})", _with_remedy(f.message, f.remedy), f.place, f.name)
        for f in findings
        if f.status in _LEVELS
    ]


def cases(findings: Sequence[Finding]) -> list[Case]:
    """JUnit knows no warnings: those pass, with their text."""
    return [_case(f) for f in findings]


def json_lines(command: str, findings: Sequence[Finding], exit_code: int) -> Iterator[str]:
    """A line for each finding, then one that says how the command ends."""
    for f in findings:
        place = {"file": f.place.file, "line": f.place.line, "column": f.place.column} if f.place else None
        yield _json({
            "event": "finding", "group": f.group, "name": f.name, "subject": f.subject, "status": f.status,
            "message": f.message, "remedy": f.remedy, "place": place,
        })  # fmt: skip
    yield _json({"event": "ended", "command": command, "counts": _counts(findings), "exit_code": int(exit_code)})


def markdown(title: str, findings: Sequence[Finding], exit_code: int) -> str:
    """A table of what there is to say; what passed or was left out without a word is only counted."""
    counts = ", ".join(f"{n} {status}" for status, n in _counts(findings).items()) or "nothing was checked"
    lines = [f"## {cell(title)}: {counts}", "", f"Exit code {int(exit_code)}.", ""]
    told = [f for f in findings if f.status in _LEVELS or (f.status == "passed" and f.message)]
    if told:
        lines += ["| | where | check | | what to do |", "|---|---|---|---|---|"]
        lines += [
            f"| {_MARKS[f.status]} | {' | '.join(map(cell, (f.place or f.group, f.title, f.message, f.remedy)))} |"
            for f in told[:_MOST_ROWS]
        ]
        if len(told) > _MOST_ROWS:
            lines.append(f"| … | {len(told) - _MOST_ROWS} more | | | |")
    return "\n".join(lines) + "\n\n"


def _case(f: Finding) -> Case:
    if f.status == "failed":
        at = f"at {f.place}" if f.place else ""
        detail = "\n".join(part for part in (at, f.detail or f.message, f.remedy and f"→ {f.remedy}") if part)
        return Case(f.group, f.title, "failed", f.message, detail)
    if f.status == "skipped":
        return Case(f.group, f.title, "skipped", f.message)
    return Case(f.group, f.title, "passed", _with_remedy(f.detail or f.message, f.remedy))


def _counts(findings: Sequence[Finding]) -> dict[Status, int]:
    """Worst first, and only what occurred."""
    found = Counter(f.status for f in findings)
    order: tuple[Status, ...] = ("failed", "warned", "noted", "passed", "skipped")
    return {status: found[status] for status in order if found[status]}


def _with_remedy(text: str, remedy: str) -> str:
    return f"{text}\n→ {remedy}" if remedy else text


def _json(value: dict[str, object]) -> str:
    return json.dumps(masked(value), ensure_ascii=True)
