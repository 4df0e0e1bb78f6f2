"""Events as lines: of text for a pipe, a file, a CI log, and what stays on a terminal; or of JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from opsctl.engine.events import (
    Event,
    GateChecked,
    HostEnded,
    Note,
    PlayStarted,
    RunEnded,
    RunStarted,
    TaskEnded,
    TaskProgress,
    UndoStep,
    to_json,
)
from opsctl.report.diff import unified
from opsctl.secret import mask
from opsctl.text import duration, one_line, printable

_MANY_HOSTS = 5  # with more, tasks that changed nothing are not shown one by one
_LONGEST = 500  # characters of why something failed, and of a line of output
_MOST_OUTPUT = 40  # lines that a failed command printed
_PROGRESS_EVERY = 5.0  # seconds between two lines of progress of one task

STATUS_WORDS = {
    "ok": "ok", "changed": "changed", "ran": "ran", "unknown": "unknown", "skipped": "skipped",
    "failed": "FAILED", "unreachable": "UNREACHABLE",
}  # fmt: skip
UNDO_WORDS = {"undone": "undone", "kept": "cannot be undone", "failed": "NOT UNDONE"}


@dataclass(slots=True)
class PlainView:
    """Writes lines. `diff`: show what changes in files; `verbose`: also what did not change, and all output."""

    write: Callable[[str], None]
    diff: bool = False
    verbose: bool = False
    live: bool = False  # progress is shown elsewhere
    _hosts: tuple[str, ...] = ()
    _check: bool = False
    _told: dict[tuple[str, int], float] = field(default_factory=dict)
    _kept: bool = False  # there are details that were not shown
    _recap: list[HostEnded] = field(default_factory=list)
    _failed: list[TaskEnded] = field(default_factory=list)
    _hints: set[str] = field(default_factory=set)  # said once, however many hosts and the recap say it

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._hosts, self._check = event.hosts, event.check
                mode = " (check mode: nothing is changed)" if event.check else ""
                self._line(f"run {event.run}: {event.playbook} on {_several(event.hosts)}{mode}")
            case PlayStarted():
                tasks = "1 task" if event.tasks == 1 else f"{event.tasks} tasks"
                self._line(f"play: {event.play} ({_several(event.hosts)}, {tasks})")
            case Note():
                self._line(f"{event.host + ': ' if event.host else ''}{event.level}: {event.message}")
                self._hint(event.hint)
            case TaskProgress():
                self._progress(event)
            case TaskEnded():
                self._task(event)
            case GateChecked():
                word = {True: "holds", False: "FAILED", None: "unknown"}[event.holds]
                self._line(f"{event.host}: gate {event.gate} {word}: {event.message}")
            case UndoStep():
                why = f": {event.message}" if event.message else ""
                self._line(f"{event.host}: {UNDO_WORDS.get(event.outcome, event.outcome)}: {event.task}{why}")
            case HostEnded():
                self._recap.append(event)
            case RunEnded():
                self._end(event)

    def _task(self, event: TaskEnded) -> None:
        quiet = event.status in ("ok", "skipped") and not event.lines and len(self._hosts) > _MANY_HOSTS
        if quiet and not self.verbose:
            return
        word = STATUS_WORDS[event.status]
        if self._check and event.status == "changed":
            word = "would change"
        failed = event.status in ("failed", "unreachable")
        if failed:
            self._failed.append(event)
        shown = event.summary and (self.verbose or event.status != "skipped")
        summary = f" - {one_line(event.summary, _LONGEST if failed else 200)}" if shown else ""
        took = f" ({duration(event.seconds)})" if event.seconds >= 1 or self.verbose else ""
        self._line(f"{event.host}: {word}: {event.task}{summary}{took}")
        if self.verbose or not event.lines:  # otherwise the lines say it in words
            for name, value in event.measures.items():
                self._line(f"    {name} = {value:g}")
        for line in (*event.lines, *event.details) if self.verbose else event.lines:
            self._line(f"    {line}")
        if failed or self.verbose:
            self._output(event.output, len(event.output) if self.verbose else _MOST_OUTPUT)
        self._kept = self._kept or bool(event.details and not self.verbose)
        if self.diff:
            for diff in event.diffs:
                for line in unified(diff):
                    self._line(f"    {line}")
        if event.problem:
            where = event.problem.where
            if where and where != event.host:
                self._line(f"    at {where}")
            self._hint(event.problem.hint)

    def _output(self, output: tuple[str, ...], most: int) -> None:
        """The last lines of what a command printed."""
        if len(output) > most:
            self._line(f"    ... {len(output) - most} lines before these")
            self._kept = True
        for line in output[-most:]:
            self._line(f"    | {one_line(line, _LONGEST)}")

    def _progress(self, event: TaskProgress) -> None:
        if self.live:
            return
        key = (event.host, event.number)
        if event.at - self._told.get(key, -_PROGRESS_EVERY) >= _PROGRESS_EVERY:
            self._told[key] = event.at
            share = f" {event.fraction:.0%}" if event.fraction is not None else ""
            self._line(f"{event.host}: {event.task}:{share} {one_line(event.text)}")

    def _end(self, event: RunEnded) -> None:
        for ended in sorted(self._recap, key=lambda ended: ended.status != "ok"):  # what failed stands last
            words = {"changed": "would change"} if self._check else {}
            counts = ", ".join(f"{n} {words.get(k, k)}" for k, n in ended.counts.items() if n) or "nothing done"
            status = "ok" if ended.status == "ok" else ended.status.upper().replace("-", " ")
            self._line(f"{ended.host}: {status} ({counts})")
            if ended.message:
                self._line(f"    {self._why(ended)}")
            self._hint(ended.hint)
        if self._kept:
            # Check mode leaves no record.
            self._line(f"details: {'add --verbose' if self._check else f'opsctl show {event.run}'}")
        self._line(f"{event.outcome} ({duration(event.seconds)}, run {event.run}, exit code {event.exit_code})")

    def _why(self, ended: HostEnded) -> str:
        """What ended a host: the task where one has failed, its place, and why."""
        for task in self._failed:
            if task.host == ended.host and task.summary and task.summary in ended.message:
                return one_line(f"{task.task} ({task.place.where}): {task.summary}")
        return one_line(ended.message, _LONGEST)

    def _hint(self, hint: str | None) -> None:
        if hint and hint not in self._hints:
            self._hints.add(hint)
            self._line(f"    → {hint}")

    def _line(self, text: str) -> None:
        self.write(printable(mask(text)))


def _several(hosts: tuple[str, ...]) -> str:
    return hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"


def jsonl_view(write: Callable[[str], None]) -> Callable[[Event], None]:
    """Writes every event as one line of JSON, with keys in a fixed order."""
    return lambda event: write(json.dumps(to_json(event), ensure_ascii=True, default=str))
