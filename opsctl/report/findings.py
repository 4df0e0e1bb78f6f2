"""Findings in the formats that tools read: JSON lines, Markdown, JUnit XML and SARIF. CI logs are in `report.ci`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from opsctl import __version__
from opsctl.errors import Place
from opsctl.findings import LEVELS, REMARKS, Finding, Level
from opsctl.secret import mask, masked
from opsctl.text import one_line, printable

# How a check went, in the words of JSON lines and summaries.
_STATUS: dict[Level, str] = {"error": "failed", "warning": "warned", "notice": "noted"}
_MARKS: dict[Level, str] = {"passed": "✅", "notice": "💡", "warning": "⚠️", "error": "❌", "skipped": "➖"}
_SARIF = {"error": "error", "warning": "warning", "notice": "note"}
_MOST_ROWS = 200


def json_lines(command: str, findings: Sequence[Finding], exit_code: int) -> Iterator[str]:
    """A line for each finding, then one that says how the command ends."""
    for f in findings:
        place = {"file": f.place.file, "line": f.place.line, "column": f.place.column} if f.place else None
        yield _json({
            "event": "finding", "group": f.where, "name": f.id, "subject": f.subject, "status": _status(f.level),
            "message": f.message, "remedy": f.remedy, "place": place,
        })  # fmt: skip
    yield _json({"event": "ended", "command": command, "counts": _counts(findings), "exit_code": int(exit_code)})


def markdown(title: str, findings: Sequence[Finding], exit_code: int) -> str:
    """A table of what there is to say; what passed or was left out without a word is only counted."""
    counts = ", ".join(f"{n} {status}" for status, n in _counts(findings).items()) or "nothing was checked"
    lines = [f"## {cell(title)}: {counts}", "", f"Exit code {int(exit_code)}.", ""]
    told = [f for f in findings if f.level in REMARKS or (f.level == "passed" and f.message)]
    if told:
        lines += ["| | where | check | | what to do |", "|---|---|---|---|---|"]
        lines += [
            f"| {_MARKS[f.level]} | {' | '.join(map(cell, (f.place or f.where, f.name, f.message, f.remedy)))} |"
            for f in told[:_MOST_ROWS]
        ]
        if len(told) > _MOST_ROWS:
            lines.append(f"| … | {len(told) - _MOST_ROWS} more | | | |")
    return "\n".join(lines) + "\n\n"


def cell(text: object) -> str:
    """Text inside a Markdown table: one line, nothing that Markdown or HTML would act on."""
    safe = one_line(printable(mask(str(text))), 300)
    for c in "\\|`*_[]<>":
        safe = safe.replace(c, f"\\{c}" if c not in "<>" else {"<": "&lt;", ">": "&gt;"}[c])
    return safe


def junit(suite: str, findings: Sequence[Finding]) -> str:
    """JUnit XML: a case for each finding. JUnit knows no warnings: those pass, with their text."""
    levels = Counter(f.level for f in findings)
    counts = {"tests": len(findings), "failures": levels["error"], "skipped": levels["skipped"]}
    attributes = {name: str(n) for name, n in counts.items()}
    root = Element("testsuites", attributes)
    body = SubElement(root, "testsuite", {"name": _safe(suite), **attributes})
    for f in findings:
        named = {"classname": _safe(f.where), "name": _safe(f.name), "time": f"{f.seconds:.3f}"}
        _case(SubElement(body, "testcase", named), f)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _case(element: Element, f: Finding) -> None:
    told, advice = f.evidence or f.message, f.remedy and f"→ {f.remedy}"
    if f.level == "error":
        at = f"at {f.place}" if f.place else ""
        lines = "\n".join(filter(None, (at, told, advice)))
        SubElement(element, "failure", {"message": _safe(f.message)}).text = _safe(lines)
    elif f.level == "skipped":
        SubElement(element, "skipped", {"message": _safe(f.message)}).text = _safe(f.evidence)
    elif told:
        SubElement(element, "system-out").text = _safe("\n".join(filter(None, (told, advice))))


def sarif(findings: Sequence[Finding], rules: Mapping[str, str]) -> str:
    """One SARIF 2.1.0 log. rules: what each kind of finding is about, by id.

    https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
    """
    results = []
    for f in findings:
        place = f.place or Place("")
        text = printable(f.message + (f" ({f.remedy})" if f.remedy else ""))
        region = {"startLine": place.line or 1, "startColumn": place.column or 1}
        location = {"artifactLocation": {"uri": _uri(place.file)}, "region": region}
        results.append({
            "ruleId": f.id, "level": _SARIF[f.level], "message": {"text": text},
            "locations": [{"physicalLocation": location}],
        })  # fmt: skip
    described = [{"id": name, "shortDescription": {"text": about}} for name, about in rules.items()]
    driver = {"name": "opsctl lint", "version": __version__, "rules": described}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }  # fmt: skip
    return json.dumps(log, indent=2)


def _uri(file: str) -> str:
    """Relative where the file lies in this folder, as code hosts want it."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def _status(level: Level) -> str:
    return _STATUS.get(level, level)


def _counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Worst first, and only what occurred."""
    found = Counter(f.level for f in findings)
    return {_status(level): found[level] for level in LEVELS if found[level]}


def _json(value: dict[str, object]) -> str:
    return json.dumps(masked(value), ensure_ascii=True)


def _safe(text: str) -> str:
    return printable(mask(text))
