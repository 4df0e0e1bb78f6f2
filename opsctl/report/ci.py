"""What CI systems read: GitHub's workflow commands, GitLab's Code Quality report, and their logs of a run.

GitHub: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
GitLab: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from opsctl.engine.events import Event, GateChecked, HostEnded, PlayStarted, Problem, RunEnded, TaskEnded
from opsctl.errors import Place
from opsctl.findings import REMARKS, Finding
from opsctl.report.plain import PlainView
from opsctl.secret import mask, revealed
from opsctl.text import printable

GITLAB_REPORT = Path("gl-code-quality-report.json")
_COMMAND = re.compile(r"^\s*::|##\[", re.M)  # what a runner looks for in each line
_SEVERITY = {"error": "major", "warning": "minor", "notice": "info"}


def from_here(finding: Finding) -> Finding:
    """The finding, with the path of its file from the working folder where it lies in there."""
    return replace(finding, place=_here(finding.place) or finding.place)


def _here(place: Place | None) -> Place | None:
    """With a path from the working folder, as CI systems know files; None for a file outside of it."""
    file = os.path.relpath(place.file) if place else ".."
    return replace(place, file=file) if place and not file.startswith("..") else None


def _located(finding: Finding) -> tuple[Place | None, str]:
    """The place as the CI system knows it, and the text; a file outside of the working folder is named in the text."""
    place = _here(finding.place)
    return place, finding.advice + (f"\nat {finding.place}" if finding.place and not place else "")


def remarks(findings: Iterable[Finding]) -> list[Finding]:
    """Those that somebody should look at."""
    return [one for one in findings if one.level in REMARKS]


def github(finding: Finding) -> str:
    """The finding as a workflow command."""
    place, text = _located(finding)
    fields = {"file": place.file} | _present(line=place.line, col=place.column) if place else {}
    fields["title"] = finding.headline
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in fields.items())
    return f"::{finding.level} {properties}::{_escaped(text)}"


def github_mask(secret: str) -> str:
    """The command that has GitHub hide a value in all that follows."""
    return f"::add-mask::{_percent(secret)}"


def github_fence(text: str) -> str:
    """The text, in which a line of a host's that looks like a workflow command is none."""
    if not _COMMAND.search(text):
        return text
    token = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()  # not to be foreseen inside of the text
    return f"::stop-commands::{token}\n{text.rstrip(chr(10))}\n::{token}::"


def github_group(title: str) -> str:
    """The command that begins a fold of the log; `::endgroup::` ends it."""
    return f"::group::{_escaped(title)}"


def gitlab(findings: Iterable[Finding]) -> str:
    """A Code Quality report."""
    entries = []
    for one in findings:
        place, told = _located(one)
        place = place or Place("inventory.yaml")
        text = printable(mask(f"{one.headline}: {told}"))
        digest = hashlib.sha256(f"{one.id}\0{place.file}\0{place.line}\0{text}".encode()).hexdigest()
        entries.append({
            "description": text, "check_name": one.id, "fingerprint": digest, "severity": _SEVERITY[one.level],
            "location": {"path": place.file, "lines": {"begin": place.line or 1}},
        })  # fmt: skip
    return json.dumps(entries, indent=2) + "\n"


def _present(**values: int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _escaped(text: str, more: str = "") -> str:
    result = _percent(printable(mask(text)))
    for c in more:
        result = result.replace(c, f"%{ord(c):02X}")
    return result


def _percent(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


@dataclass(slots=True)
class _Remarks:
    """What events have to say at places in files; how a host ended only where that was not said of a task or a gate."""

    _said: set[tuple[str, Place | None]] = field(default_factory=set)

    def __call__(self, event: Event) -> list[Finding]:
        found = _findings(event)
        if isinstance(event, HostEnded):
            return [one for one in found if (event.host, one.place) not in self._said]
        if isinstance(event, TaskEnded | GateChecked):
            self._said |= {(event.host, one.place) for one in found}
        return found


def _findings(event: Event) -> list[Finding]:
    match event:
        case TaskEnded() if event.status in ("failed", "unreachable"):
            problem = event.problem
            place = _place(problem if problem and problem.file else event.place)
            title = f"{event.task} failed on {event.host}"
            hint = problem.hint or "" if problem else ""
            return [Finding("task-failed", "error", event.summary, place, hint, where=event.host, title=title)]
        case GateChecked(holds=False):
            title = f"gate {event.gate} on {event.host}"
            return [Finding("gate", "error", event.message, _place(event.place), where=event.host, title=title)]
        case HostEnded() if event.place or event.status in ("locked", "unreachable", "rollback-failed"):
            at = _place(event.place) if event.place else None
            message, title = event.message.removeprefix(f"{at}: "), f"{event.host}: {event.status}"
            return [Finding(event.status, "error", message, at, event.hint or "", where=event.host, title=title)]
    return []


def _place(problem: Problem) -> Place | None:
    return Place(problem.file, problem.line, problem.column) if problem.file else None


@dataclass(slots=True)
class GithubView:
    """For GitHub Actions."""

    write: Callable[[str], None]
    diff: bool = False
    verbose: bool = False
    _plain: PlainView = field(init=False)
    _masked: set[str] = field(default_factory=set)
    _remarks: _Remarks = field(default_factory=_Remarks)
    _open: bool = False
    _told: list[str] = field(default_factory=list)  # of this event, not yet written

    def __post_init__(self) -> None:
        self._plain = PlainView(self._told.append, diff=self.diff, verbose=self.verbose)

    def __call__(self, event: Event) -> None:
        for secret in sorted(revealed() - self._masked):
            self.write(github_mask(secret))
            self._masked.add(secret)
        if isinstance(event, PlayStarted | RunEnded) and self._open:
            self.write("::endgroup::")
            self._open = False
        if isinstance(event, PlayStarted):
            self.write(github_group(event.play))
            self._open = True
        self._plain(event)
        if self._told:
            self.write(github_fence("\n".join(self._told)))
            self._told.clear()
        for one in self._remarks(event):
            self.write(github(one))


@dataclass(slots=True)
class GitlabView:
    """For GitLab CI: sections in the log, and a Code Quality report in the working folder."""

    write: Callable[[str], None]
    diff: bool = False
    verbose: bool = False
    _plain: PlainView = field(init=False)
    _found: list[Finding] = field(default_factory=list)
    _remarks: _Remarks = field(default_factory=_Remarks)
    _section: int = 0

    def __post_init__(self) -> None:
        self._plain = PlainView(self.write, diff=self.diff, verbose=self.verbose)

    def __call__(self, event: Event) -> None:
        if isinstance(event, PlayStarted | RunEnded) and self._section:
            self.write(f"\x1b[0Ksection_end:{int(time.time())}:opsctl_{self._section}\r\x1b[0K")
        if isinstance(event, PlayStarted):
            self._section += 1
            self.write(f"\x1b[0Ksection_start:{int(time.time())}:opsctl_{self._section}\r\x1b[0K")
        self._plain(event)
        self._found += self._remarks(event)

    def write_report(self) -> None:
        """Write the Code Quality report."""
        GITLAB_REPORT.write_text(gitlab(self._found), encoding="utf-8")
