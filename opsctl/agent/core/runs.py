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
"""

from __future__ import annotations

import json
import os
import re
import stat as st
from contextlib import suppress
from typing import Any, Dict, List, Optional, Tuple

from opsctl.agent.core import durable, flocks, record, statedir
from opsctl.agent.core.record import FORMAT, Record
from opsctl.wire.protocol import AgentError

_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def folder(run: str) -> str:
    """The folder of a run. Raises AgentError not-found."""
    path = os.path.join(root(), checked(run))
    if not os.path.isdir(path):
        raise AgentError("not-found", "there is no run %s on this host" % run, run=run)
    return path


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
    why = statedir.foreign(info) if st.S_ISDIR(info.st_mode) else "it is no folder"
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
        lines, damage = record.numbered(text, end["n"] if end else 1)
        if end is None:
            damage.append("the file that says how many records its log has is damaged or missing")
    else:
        lines, damage = record.plain(text)
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
    record.fill(found, entries)
    for step in found.steps:
        there = kept.get(step.seq, set())
        for name in [] if step.undone else record.lost_files(step, there):
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
    why = statedir.foreign(info) if st.S_ISDIR(info.st_mode) else "it is no folder"
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
    return flocks.is_locked(os.path.join(folder(run), "supervisor.lock"))


def root() -> str:
    """The folder of all runs. Raises AgentError unsafe, and what writing there may."""
    return durable.folder("runs")


def checked(run: str) -> str:
    """The name of a run. Raises AgentError invalid."""
    if not _VALID.match(run):
        raise AgentError("invalid", "%r cannot be the name of a run" % run)
    return run
