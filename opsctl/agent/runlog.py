"""The log of a run on the host: one line per event, written and synced before it counts.

    runs/<run>/log          JSON lines: begin, step (ahead of the change), done | failed, undone, settled, outcome, ...
    runs/<run>/steps/<n>/   before-images of step n
    runs/<run>/lock         flock, held by whoever works on the run
    runs/<run>/attended     flock, held by the agent of the operator whose run it is, never by a supervisor
    runs/<run>/turn         flock, held while a step is made or the run is taken back; says who does that

A run without outcome whose lock is free is unfinished. A line cut short by a crash is as if it had not been written.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import time
from contextlib import contextmanager, suppress
from typing import Any, Dict, Iterator, List, Optional, Tuple

from opsctl.agent import durable
from opsctl.agent.protocol import AgentError, Context

NamedCall = List[Any]  # [name, args]

CLOSED = ("done", "rolled-back")  # any other outcome, failed or stopped, leaves a run that can be resumed
TURN = 300.0  # seconds to wait for a step under way: stopping a server may take most of that
_VALID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")
_owned: Dict[str, int] = {}  # runs whose lock this process holds -> descriptor
_attended: Dict[str, int] = {}  # runs whose operator's agent this process is -> descriptor
_guard = threading.RLock()


class Step:
    """One change of a run: what it was to do, how far it came, and how it is taken back."""

    def __init__(self, line: Dict[str, Any]) -> None:
        self.seq: int = line["step"]
        self.task: Any = line.get("task")
        self.calls: List[str] = line.get("calls", [])
        self.undo: Optional[List[NamedCall]] = line.get("undo")
        self.settle: List[NamedCall] = line.get("settle", [])
        self.begun: float = line.get("at", 0.0)
        self.state = "begun"  # begun | done | failed
        self.error: Optional[Dict[str, Any]] = None
        self.undone = False
        self.undo_error: Optional[Dict[str, Any]] = None

    def told(self) -> Dict[str, Any]:
        """The step as journal.show gives it."""
        return {
            "seq": self.seq,
            "task": self.task,
            "calls": self.calls,
            "begun": self.begun,
            "state": self.state,
            "error": self.error,
            "can_undo": self.undo is not None,
            "undone": self.undone,
            "undo_error": self.undo_error,
        }


class Record:
    """A run as its log tells it."""

    def __init__(self, run: str, lines: List[Dict[str, Any]]) -> None:
        self.run = run
        self.meta: Dict[str, Any] = {}
        self.begun = self.ended = 0.0
        self.steps: List[Step] = []
        self.settled: Dict[str, Optional[Dict[str, Any]]] = {}  # key of a settle call -> its error, None: done
        self.confirmed = False
        self.outcome: Optional[str] = None
        self.why: Optional[str] = None
        for line in lines:
            self._take(line)

    @property
    def closed(self) -> bool:
        """Whether nothing is left to do: not to go on with, not to take back."""
        return self.outcome in CLOSED

    def step(self, seq: int) -> Optional[Step]:
        return next((step for step in self.steps if step.seq == seq), None)

    def _take(self, line: Dict[str, Any]) -> None:
        at = line.get("at", 0.0)
        if "begin" in line:
            self.meta, self.begun = line["begin"], at
        elif "step" in line:
            self.steps.append(Step(line))
        elif "settled" in line:
            self.settled[line["settled"]] = line.get("error")
        elif "confirmed" in line:
            self.confirmed = True
        elif "resumed" in line:
            self.outcome, self.why, self.ended = None, None, 0.0
        elif "outcome" in line:
            self.outcome, self.why, self.ended = line["outcome"], line.get("why"), at
        else:
            for event in ("done", "failed", "undone", "undo_failed"):
                step = self.step(line[event]) if event in line else None
                if step:
                    self._mark(step, event, line)

    @staticmethod
    def _mark(step: Step, event: str, line: Dict[str, Any]) -> None:
        if event in ("done", "failed"):
            step.state, step.error = event, line.get("error")
        elif event == "undone":
            step.undone, step.undo_error = True, None
        else:
            step.undo_error = line.get("error")


def folder(run: str) -> str:
    """The folder of a run. Raises AgentError not-found."""
    path = os.path.join(_runs(), _checked(run))
    if not os.path.isdir(path):
        raise AgentError("not-found", "there is no run %s on this host" % run, run=run)
    return path


def step_folder(run: str, seq: int) -> str:
    """Where a step keeps its before-images."""
    return os.path.join(_runs(), _checked(run), "steps", str(seq))


def create(run: str) -> None:
    """Make the folder of a run and own it. Raises AgentError exists."""
    path = os.path.join(_runs(), _checked(run))
    with durable.explained():
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            raise AgentError("exists", "there is a run %s on this host already" % run, run=run) from None
        os.mkdir(os.path.join(path, "steps"), 0o700)
        durable.sync_folder(path)
        durable.sync_folder(_runs())
    own(run)


def names() -> List[str]:
    """All runs, in the order of their names."""
    return sorted(name for name in os.listdir(_runs()) if _VALID.match(name))


def begun(run: str) -> float:
    """When a run began, from the first line of its log alone; 0 where that cannot be told."""
    try:
        with open(os.path.join(_runs(), run, "log"), "rb") as file:
            return float(json.loads(file.readline())["at"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0.0


def read(run: str) -> Record:
    """A run as far as it has come. Raises AgentError not-found."""
    lines = []
    try:
        with open(os.path.join(folder(run), "log"), "rb") as file:
            text = file.read()
    except FileNotFoundError:
        text = b""
    for raw in text.splitlines():
        try:
            lines.append(json.loads(raw))
        except ValueError:
            continue  # cut short by a crash
    return Record(run, [line for line in lines if isinstance(line, dict)])


def append(run: str, line: Dict[str, Any]) -> None:
    """Add a line and wait until it is on disk."""
    data = json.dumps(dict(line, at=round(time.time(), 3)), separators=(",", ":")).encode() + b"\n"
    with _guard, durable.explained():
        fd = os.open(os.path.join(folder(run), "log"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                data = b"\n" + data  # the last line was cut short
            durable.write_all(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)


def own(run: str) -> None:
    """Hold the lock of a run until this process ends or lets go. Raises AgentError locked."""
    with _guard:
        if run in _owned:
            return
        fd = take_lock(os.path.join(folder(run), "lock"))
        if fd is None:
            raise AgentError(
                "locked",
                "run %s is being worked on by another process" % run,
                holder=dict(read(run).meta, run=run),
            )
        _owned[run] = fd


@contextmanager
def owning(run: str) -> Iterator[None]:
    """Hold the lock of a run for as long as it takes. Raises AgentError locked."""
    before = run in _owned
    own(run)
    try:
        yield
    finally:
        if not before:
            with _guard:
                os.close(_owned.pop(run))


def attend(run: str) -> None:
    """Be the operator's agent of a run, the only one. Raises AgentError locked."""
    with _guard:
        if run not in _attended:
            fd = take_lock(os.path.join(folder(run), "attended"))
            if fd is None:
                holder = dict(read(run).meta, run=run)
                raise AgentError("locked", "run %s is attended by another operator" % run, holder=holder)
            _attended[run] = fd


def join(run: str) -> None:
    """Own a run, unless its supervisor does: whoever attends it may add to it as well. Raises AgentError locked."""
    if not (run in _attended and supervised(run)):
        own(run)


def disown(run: str) -> None:
    """Let go of a run."""
    with _guard:
        for held in (_owned, _attended):
            fd = held.pop(run, None)
            if fd is not None:
                os.close(fd)


def adopt(run: str, fd: int) -> None:
    """Take over the lock of a run through a descriptor that was inherited."""
    with _guard:
        _owned[run] = fd


def owned(run: str) -> Optional[int]:
    """The descriptor of the lock of a run that this process holds."""
    return _owned.get(run)


def take_lock(path: str, seconds: float = 0.3) -> Optional[int]:
    """An exclusive flock, None if somebody else has it. Tries for a moment: `is_locked` holds it briefly to look."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except OSError:
            if time.monotonic() >= deadline:
                os.close(fd)
                return None
            time.sleep(0.02)


def is_locked(path: str) -> bool:
    """Whether anybody holds this flock, this process included."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def turn(run: str, call: Context, doing: str, seconds: Optional[float] = TURN) -> Iterator[None]:
    """Alone in making or taking back steps, among all processes that work on a run; `doing` tells the others.

    Raises AgentError busy if whoever is at it has not ended after `seconds` (None: waits for as long as it takes).
    """
    path = os.path.join(folder(run), "turn")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        _wait_for_turn(run, fd, path, call, seconds)
        with suppress(OSError):  # no reason not to take a run back
            os.ftruncate(fd, 0)
            os.pwrite(fd, durable.json_bytes({"doing": doing, "pid": os.getpid(), "since": time.time()}), 0)
        yield
    finally:
        os.close(fd)


def _wait_for_turn(run: str, fd: int, path: str, call: Context, seconds: Optional[float]) -> None:
    began = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass
        else:
            return
        waited = time.monotonic() - began
        if seconds is not None and waited >= seconds:
            raise AgentError("busy", "run %s is busy: %s does not end" % (run, _at_it(path)), run=run)
        if seconds is not None and call.cancelled():
            raise AgentError("failed", "cancelled while it waited for %s" % _at_it(path))
        if waited > 1.0 and not told:
            told = True
            call.progress({"text": "waiting for %s" % _at_it(path), "waits": True})
        time.sleep(0.02)


def _at_it(path: str) -> str:
    """Who has the turn, in words."""
    holder = durable.read_json(path)
    if holder is None:
        return "another process"
    minutes, seconds = divmod(int(time.time() - holder["since"]), 60)
    return "%s (pid %d, for %d:%02d min)" % (holder["doing"], holder["pid"], minutes, seconds)


def supervised(run: str) -> bool:
    """Whether a supervisor of the run lives."""
    return is_locked(os.path.join(folder(run), "supervisor.lock"))


def split_body(calls: List[Tuple[str, Dict[str, Any], int]], body: bytes) -> List[Tuple[str, Dict[str, Any], bytes]]:
    """Calls whose bodies lie one after the other in `body`, each with its own."""
    if sum(call[2] for call in calls) != len(body):
        raise AgentError("invalid", "the lengths of the calls' bodies do not add up to the body")
    found, start = [], 0
    for name, args, length in calls:
        found.append((name, args, body[start : start + length]))
        start += length
    return found


def _runs() -> str:
    return durable.folder("runs")


def _checked(run: str) -> str:
    if not _VALID.match(run):
        raise AgentError("invalid", "%r cannot be the name of a run" % run)
    return run
