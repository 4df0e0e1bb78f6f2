"""A run as its journal tells it, and what the journal lacks.

The log of format 3 has a JSON object on each line,

    {"n": 2, "step": 1, "task": "write a", "calls": ["files.write"], "undo": "5f3a90c1", "at": 1796077849.2, "sum": ...}

`n` counts the records from 1, `sum` is the CRC-32 of the rest of the line. How a step is undone stands apart from the
log, as operations of wire/undo.py. In format 2 these had no versions; format 1 had no numbers and sums either, and the
operations in the log itself. Both are still read.
"""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Set, Tuple

from opsctl.agent.core import durable

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Fault, LoggedStep, RunMeta, Settled

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


def numbered(text: bytes, last: int) -> Tuple[List[Dict[str, Any]], List[str]]:
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


def plain(text: bytes) -> Tuple[List[Dict[str, Any]], List[str]]:
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


def fill(record: Record, entries: Dict[str, Dict[str, Any]]) -> None:
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


def lost_files(step: Step, there: Set[str]) -> List[str]:
    """What a step is known to have kept and is not in its folder any more.

    Undoing a step moves what it kept to where it belongs, all but the records.
    """
    kept = (name for files in step.kept.values() for name in files if not step.undoing or name.endswith(".json"))
    return sorted(name for name in kept if name not in there)
