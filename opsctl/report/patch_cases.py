"""How a source tree stands to the patches, as findings: one for each patch."""

from __future__ import annotations

import os

from opsctl.errors import Place
from opsctl.findings import Finding, Level
from opsctl.sglang import patches
from opsctl.sglang.patches.patchset import Entry, Report

_LEVELS: dict[patches.Status, Level] = {
    patches.Status.UPSTREAM: "passed",
    patches.Status.APPLIED: "passed",
    patches.Status.NEEDED: "error",
    patches.Status.CONFLICT: "error",
    patches.Status.NOT_APPLICABLE: "skipped",
}


def findings(group: str, report: Report, here: str | None = None) -> list[Finding]:
    """here: the tree's folder, where it lies on this machine and its files can be pointed at."""
    return [_finding(group, entry, here) for entry in report.entries]


def _finding(group: str, entry: Entry, here: str | None) -> Finding:
    level = _LEVELS[entry.status]
    at = f" ({entry.file}{f':{entry.line}' if entry.line else ''})" if entry.file else ""
    message = "" if level == "passed" else f"{entry.status.value}: {entry.reason}{at}"
    place = Place(os.path.join(here, entry.file), entry.line) if here and entry.file else None
    remedy = "opsctl patch sglang" if entry.status is patches.Status.NEEDED else ""
    return Finding(entry.name, level, message, place, remedy, where=group)
