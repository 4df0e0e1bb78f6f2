"""Events as a CI log: plain lines in folding groups, with annotations where something is to blame."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from opsctl.engine.events import Event, GateChecked, HostEnded, PlayStarted, Problem, RunEnded, TaskEnded
from opsctl.errors import Place
from opsctl.report.annotations import Annotation, github, github_fence, github_group, github_mask, gitlab
from opsctl.report.plain import PlainView
from opsctl.secret import revealed

GITLAB_REPORT = Path("gl-code-quality-report.json")


@dataclass(slots=True)
class Annotator:
    """What events have to say at places in files; how a host ended only where that was not said of a task or a gate."""

    _said: set[tuple[str, Place | None]] = field(default_factory=set)

    def __call__(self, event: Event) -> list[Annotation]:
        found = _annotations(event)
        if isinstance(event, HostEnded):
            return [one for one in found if (event.host, one.place) not in self._said]
        if isinstance(event, TaskEnded | GateChecked):
            self._said |= {(event.host, one.place) for one in found}
        return found


def _annotations(event: Event) -> list[Annotation]:
    match event:
        case TaskEnded() if event.status in ("failed", "unreachable"):
            problem = event.problem
            place = problem if problem and problem.file else event.place
            hint = f"\n→ {problem.hint}" if problem and problem.hint else ""
            title = f"{event.task} failed on {event.host}"
            return [Annotation("error", title, event.summary + hint, _place(place), "task-failed")]
        case GateChecked(holds=False):
            return [
                Annotation("error", f"gate {event.gate} on {event.host}", event.message, _place(event.place), "gate")
            ]
        case HostEnded() if event.place or event.status in ("locked", "unreachable", "rollback-failed"):
            at = _place(event.place) if event.place else None
            message = event.message.removeprefix(f"{at}: ") + (f"\n→ {event.hint}" if event.hint else "")
            return [Annotation("error", f"{event.host}: {event.status}", message, at, event.status)]
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
    _annotate: Annotator = field(default_factory=Annotator)
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
        for annotation in self._annotate(event):
            self.write(github(annotation))


@dataclass(slots=True)
class GitlabView:
    """For GitLab CI: sections in the log, and a Code Quality report in the working folder."""

    write: Callable[[str], None]
    diff: bool = False
    verbose: bool = False
    _plain: PlainView = field(init=False)
    _found: list[Annotation] = field(default_factory=list)
    _annotate: Annotator = field(default_factory=Annotator)
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
        self._found += self._annotate(event)

    def write_report(self) -> None:
        """Write the Code Quality report."""
        GITLAB_REPORT.write_text(gitlab(self._found), encoding="utf-8")
