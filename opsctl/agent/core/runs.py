"""The runs whose journals lie on this host, read.

    runs/<run>/log          records: begin, step (ahead of the change), kept, done | failed, undoing, undone, ...
    runs/<run>/end          how many records the log has, and the run's number: what the log lacks at its end is noticed
    runs/<run>/undo         how each step is taken back, apart from the log, as it may hold what nobody else is to read
    runs/<run>/steps/<n>/   before-images of step n, made when its first call keeps something
    runs/<run>/server-log   where the words of the server that it started last begin, in that server's log
    runs/<run>/reserve      room on the disk, given back when the run is taken back
    runs/<run>/lock         flock, held by whoever works on the run
    runs/<run>/attended     flock, held by the agent of the operator whose run it is, never by a supervisor
    runs/<run>/turn         flock, held while a step is made or the run is taken back; says who does that

A run's folder appears whole, with the first record in its log. A run without outcome whose lock is free is unfinished.
`undo`, `steps` and the checkpoint go when nothing is left to take back. The log is longer than its records: what comes
after them are zeros, room for those that an undo will add on a disk that has become full.

The log of format 3 has a JSON object on each line,

    {"n": 2, "step": 1, "task": "write a", "calls": ["files.write"], "undo": "5f3a90c1", "at": 1796077849.2, "sum": ...}

`n` counts the records from 1, `sum` is the CRC-32 of the rest of the line. How a step is undone are operations of
wire/undo.py; in format 2 these had no versions. Format 1 had no numbers and sums either, and the operations in the log
itself. All are read.
"""

from __future__ import annotations

import json
import os
import re
import stat as st
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Set, Tuple

from opsctl.agent.core import durable, file_locks
from opsctl.wire.protocol import AgentError

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Fault, LoggedStep, RunMeta, Settled

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
FORMAT = 3
Event = Literal["kept", "done", "failed", "undoing", "undone", "undo_failed"]  # of a step
EVENTS: Tuple[Event, ...] = ("kept", "done", "failed", "undoing", "undone", "undo_failed")
CLOSED = ("done", "rolled-back")  # any other outcome, failed or stopped, leaves a run that can be resumed


class Step:
    """One change of a run: what it was to do, how far it came, and how it is taken back."""

    def __init__(self, line: Dict[str, Any]) -> None:
        self.seq: int = line["step"]
        self.task: Any = line.get("task")
        self.calls: List[str] = line.get("calls", [])
        self.can_undo: bool = line.get("can_undo", line.get("undo") is not None)
        undo = line.get("undo")
        self.apart: Optional[str] = undo if isinstance(undo, str) else None  # the sum of the entry with its undo calls
        self.undo: List[Any] = undo if isinstance(undo, list) else []  # operations; format 1 has them here
        self.settle: List[Any] = line.get("settle", [])
        self.shows: List[str] = line.get("shows", [])  # files whose content is no secret, as their run knew
        self.lost: Optional[str] = None  # why it can no longer be taken back
        self.missing: List[str] = []  # what is said of this in the damage, unless taking it back shows otherwise
        self.kept: Dict[str, List[str]] = {}  # names of what its calls have kept -> files in its folder
        self.begun: float = line.get("at", 0.0)
        self.state: Literal["begun", "done", "failed"] = "begun"
        self.error: Optional[Fault] = None
        self.undoing = False  # taking it back has begun
        self.undone = False
        self.undo_error: Optional[Fault] = None

    def told(self) -> LoggedStep:
        """The step as history.show gives it."""
        return {
            "seq": self.seq,
            "task": self.task,
            "calls": self.calls,
            "begun": self.begun,
            "state": self.state,
            "error": self.error,
            "can_undo": self.can_undo,
            "undone": self.undone,
            "undo_error": self.undo_error,
        }


class Record:
    """A run as its log tells it. `damage` says, a sentence each, what is not as it was written."""

    def __init__(self, run: str, lines: List[Dict[str, Any]], damage: List[str]) -> None:
        self.run, self.damage = run, damage
        self.refused: Optional[str] = None  # why nothing of it was read
        self.format = FORMAT
        self.order = 0  # of the runs on this host; 0: made before they were counted
        self.meta: RunMeta = {}
        self.begun = self.ended = 0.0
        self.steps: List[Step] = []
        self.settled: Dict[str, Settled] = {}  # key of a settle call -> its name and its error, None: done
        self.confirmed = False
        self.outcome: Optional[str] = None
        self.why: Optional[str] = None
        for line in lines:
            self._take(line)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do: not to go on with, not to take back."""
        return self.outcome in CLOSED

    @property
    def undone(self) -> bool:
        """Whether all of it that can be was taken back, and what that took was removed."""
        return self.outcome == "rolled-back"

    def step(self, seq: int) -> Optional[Step]:
        return next((step for step in self.steps if step.seq == seq), None)

    def _take(self, line: Dict[str, Any]) -> None:
        at = line.get("at", 0.0)
        if "begin" in line:
            self.meta, self.begun, self.order = line["begin"], at, line.get("order", 0)
        elif "step" in line:
            self.steps.append(Step(line))
        elif "settled" in line:
            self.settled[settle_key(line["settled"])] = {"call": _settled(line), "error": line.get("error")}
        elif "confirmed" in line:
            self.confirmed = True
        elif "resumed" in line:
            self.outcome, self.why, self.ended = None, None, 0.0
        elif "outcome" in line:
            self.outcome, self.why, self.ended = line["outcome"], line.get("why"), at
        else:
            for event in EVENTS:
                if event in line:
                    self._mark(event, line)

    def _mark(self, event: Event, line: Dict[str, Any]) -> None:
        step = self.step(line[event])
        if step is None:
            lost = "it lacks step %s, of which it tells that it was begun" % line[event]
            if lost not in self.damage:
                self.damage.append(lost)
        elif event == "kept":
            step.kept[line["name"]] = line["files"]
        elif event == "undoing":
            step.undoing = True
        elif event == "done" or event == "failed":
            step.state, step.error = event, line.get("error")
        elif event == "undone":
            step.undone, step.undo_error = True, None
        else:
            step.undo_error = line.get("error")


def folder(run: str) -> str:
    """The folder of a run. Raises AgentError not-found."""
    path = os.path.join(root(), checked(run))
    if not os.path.isdir(path):
        raise AgentError("not-found", "there is no run %s on this host" % run, run=run)
    return path


def root() -> str:
    """The folder of all runs. Raises AgentError unsafe, and what writing there may."""
    return durable.folder("runs")


def checked(run: str) -> str:
    """The name of a run. Raises AgentError invalid."""
    if not _VALID.match(run):
        raise AgentError("invalid", "%r cannot be the name of a run" % run)
    return run


def step_folder(run: str, seq: int) -> str:
    """Where a step keeps its before-images."""
    return os.path.join(root(), checked(run), "steps", str(seq))


def names() -> List[str]:
    """All runs, the newest first, however the clock went meanwhile."""
    found = [name for name in os.listdir(root()) if _VALID.match(name)]
    return sorted(found, key=age, reverse=True)


def age(run: str) -> Tuple[int, float]:
    """The number of a run, and when it began: that tells those apart that were made before runs had numbers."""
    path = os.path.join(root(), run)
    line: Dict[str, Any] = {}
    with suppress(OSError, AgentError, ValueError), os.fdopen(durable.opened(os.path.join(path, "log")), "rb") as file:
        line = json.loads(file.readline())
    if not isinstance(line, dict) or "begin" not in line:
        with suppress(OSError, AgentError):
            line = read_end(path) or {}
    number, at = line.get("order", 0), line.get("at", 0.0)
    return (number if isinstance(number, int) else 0, at if isinstance(at, float) else 0.0)


def read(run: str) -> Record:
    """A run as far as it has come, and what its journal lacks. Raises AgentError not-found.

    A journal that is somebody else's work, or of a later format, is not read: `refused` says so.
    """
    path = folder(run)
    try:
        while True:
            end = read_end(path)  # before the log: it may grow meanwhile
            found = _read(run, path, end)
            if not found.damage or end == read_end(path):
                return found
    except AgentError as error:
        if error.kind != "unsafe":
            raise
        return _refused(run, error.message)


def _refused(run: str, why: str) -> Record:
    found = Record(run, [], [why])
    found.refused = why
    return found


def _read(run: str, path: str, end: Optional[Dict[str, Any]]) -> Record:
    info = os.lstat(path)
    why = durable.foreign(info) if st.S_ISDIR(info.st_mode) else "it is no folder"
    if why:
        raise AgentError("unsafe", "%s is not read: %s" % (path, why))
    text = _content(path, "log") or b""
    first = durable.unpack(text.split(b"\n", 1)[0]) or {}
    newest = max(first.get("format", 0), (end or {}).get("format", 0))
    if newest > FORMAT:
        made_by = first.get("begin", {}).get("version", "the one that made it")
        words = "its journal has format %d, and this opsctl reads up to %d: use opsctl %s or later"
        return _refused(run, words % (newest, FORMAT, made_by))
    counted = counts(path, text)
    if counted:
        lines, damage = _numbered(text, end["n"] if end else 1)
        if end is None:
            damage.append("the file that says how many records its log has is damaged or missing")
    else:
        lines, damage = _plain(text)
    found = Record(run, lines, damage)
    found.format = newest or 1
    found.order = found.order or (end or {}).get("order", 0)
    if not found.undone:  # else it was removed
        _look_for_steps(found, path, counted)
    return found


def _look_for_steps(found: Record, path: str, counted: bool) -> None:
    """Fill in what is kept apart from the log, and note what is missing there."""
    lines = map(durable.unpack, (_content(path, "undo") or b"").split(b"\n"))
    entries = {line["sum"]: line for line in lines if line}
    kept: Dict[int, Any] = {}
    for name in _listed(os.path.join(path, "steps"), found):
        if name.isdigit():
            kept[int(name)] = set(_listed(os.path.join(path, "steps", name), found))
            if not found.step(int(name)) and (kept[int(name)] or counted):
                found.damage.append("it lacks step %s, of which there are before-images" % name)
    _fill(found, entries)
    for step in found.steps:
        there = kept.get(step.seq, set())
        for name in [] if step.undone else _lost_files(step, there):
            step.missing.append("it lacks %s, which step %d kept to be taken back" % (name, step.seq))
        found.damage += step.missing
        if not counted and step.can_undo and step.undo and step.state == "done" and step.seq not in kept:
            step.lost = "it lacks what step %d kept to be taken back" % step.seq
            found.damage.append(step.lost)


def _listed(path: str, found: Record) -> List[str]:
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        found.damage.append("it lacks its folder %s" % os.path.basename(path))
        return []
    why = durable.foreign(info) if st.S_ISDIR(info.st_mode) else "it is no folder"
    if why:
        raise AgentError("unsafe", "%s is not read: %s" % (path, why))
    return os.listdir(path)


def _content(path: str, name: str) -> Optional[bytes]:
    try:
        return durable.read(os.path.join(path, name))
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise AgentError("unsafe", "%s cannot be read: %s" % (error.filename, error.strerror)) from None


def read_end(path: str) -> Optional[Dict[str, Any]]:
    """What `end` says; None where it is damaged or missing."""
    for _ in range(3):  # it may be written at this moment
        end = durable.unpack((_content(path, "end") or b"").rstrip())
        if end:
            return end
    return None


def counts(path: str, text: bytes) -> bool:
    """Whether the records of a log have numbers: format 1 had none."""
    return os.path.lexists(os.path.join(path, "end")) or durable.unpack(text.split(b"\n", 1)[0]) is not None


def supervised(run: str) -> bool:
    """Whether a supervisor of the run lives."""
    return file_locks.is_locked(os.path.join(folder(run), "supervisor.lock"))


def _numbered(text: bytes, last: int) -> Tuple[List[Dict[str, Any]], List[str]]:
    """The records of a log of format 2 in their order, and what is wrong with it; `last`: how many it is to have.

    A line without its end is no damage: a crash has cut it short, before anything was done for it.
    """
    found: Dict[int, Dict[str, Any]] = {}
    damage: List[str] = []
    broken, newest = 0, 0
    for raw in text.rstrip(b"\0").split(b"\n")[:-1]:
        line = durable.unpack(raw)
        if line is None:
            broken += 1
            continue
        if line["n"] in found:
            damage.append("its log has record %d twice" % line["n"])
        elif line["n"] < newest:
            damage.append("its log has record %d behind record %d" % (line["n"], newest))
        found.setdefault(line["n"], line)
        newest = max(newest, line["n"])
    if broken:
        damage.append("%d line%s of its log cannot be read" % (broken, "s" * (broken > 1)))
    lost = sorted(set(range(1, max(newest, last) + 1)) - set(found))
    if lost:
        which = "record %d" % lost[0] if len(lost) == 1 else "%d records from %d on" % (len(lost), lost[0])
        damage.append("its log lacks %s" % which)
    return [found[n] for n in sorted(found)], damage


def _plain(text: bytes) -> Tuple[List[Dict[str, Any]], List[str]]:
    """The same of a log of format 1, which tells of fewer kinds of damage."""
    found, broken = [], 0
    for raw in text.splitlines(keepends=True):
        try:
            line = json.loads(raw)
        except ValueError:
            broken += raw.endswith(b"\n") and raw != b"\n"
        else:
            found.append(line)
    damage = ["%d line%s of its log cannot be read" % (broken, "s" * (broken > 1))] if broken else []
    found = [line for line in found if isinstance(line, dict)]
    if not found or "begin" not in found[0]:
        damage.append("its log lacks its beginning")
    return found, damage


def _fill(record: Record, entries: Dict[str, Dict[str, Any]]) -> None:
    """Give the steps their undo calls, from the entries that are kept apart from the log, by their sums.

    What the log has lost of a step may stand there: it is taken up again, so that it can be taken back.
    """
    for step in record.steps:
        if step.apart is None:
            continue
        entry = entries.get(step.apart)
        if entry is None:
            step.lost = "how step %d is undone is lost" % step.seq
            record.damage.append(step.lost)
        else:
            step.undo, step.settle, step.shows = entry["undo"] or [], entry["settle"], entry.get("shows", [])
    if record.damage:
        known = {step.seq for step in record.steps}
        found = {entry["step"]: entry for entry in entries.values() if entry["step"] not in known}
        for entry in found.values():
            step = Step(dict(entry, can_undo=entry["undo"] is not None))
            record.steps.append(step)
        record.steps.sort(key=lambda step: step.seq)


def settle_key(call: Any) -> str:
    """What stands for a settle call in the log: its arguments may hold what is not for the log."""
    if isinstance(call, str) and len(call) == 8:
        return call
    text = call if isinstance(call, str) else json.dumps(call, sort_keys=True, separators=(",", ":"))
    return "%08x" % zlib.crc32(text.encode())


def _settled(line: Dict[str, Any]) -> str:
    if "call" in line:
        return str(line["call"])
    return str(json.loads(line["settled"])[0])  # format 1


def _lost_files(step: Step, there: Set[str]) -> List[str]:
    """What a step is known to have kept and is not in its folder any more.

    Undoing a step moves what it kept to where it belongs, all but the records.
    """
    kept = (name for files in step.kept.values() for name in files if not step.undoing or name.endswith(".json"))
    return sorted(name for name in kept if name not in there)
