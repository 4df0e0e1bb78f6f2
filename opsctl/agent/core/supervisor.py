"""The process that carries a supervised change through: makes it, waits to be told that it is good, else takes the run
back. It outlives the connection and the agent, and holds the run's and the host's locks while it lives.

The verdict is decided once and for all, by the controller that confirms or reverts, or by the deadline: the first to
write into the file wins; it is locked meanwhile. It is there before the change is made, so that a disk that has become
full keeps nobody from deciding.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, List, Optional, Tuple

from opsctl.agent.core import dispatch, durable, journal, loader, runlog, runs
from opsctl.wire import masking
from opsctl.wire.protocol import AgentError, Context, Reply, frame, read_frame

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Fault

TICK = 0.1  # seconds between looks at the verdict
ROOM = 64 << 10  # bytes of the disk for what has to be said when it is full
CONFIRM, REVERT, EXPIRED, FAILED = "confirm", "revert", "expired", "failed"
_VERDICT_ROOM = 512  # bytes


class Events(Context):
    """What happens, as frames appended to a file that any controller can read from any place on.

    A disk that has become full does not end the supervisor: it has some room of its own for what has to be said, and
    says what finds none as soon as there is some again.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._fd = os.open(events_path(run), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._spare = os.open(events_path(run) + ".room", os.O_RDWR | os.O_CREAT, 0o600)
        os.unlink(events_path(run) + ".room")
        with contextlib.suppress(OSError):
            durable.take_room(self._spare, 0, ROOM)
        self._unsaid: List[bytes] = []
        self._writing = threading.Lock()

    def write(self, header: Dict[str, Any], body: bytes = b"") -> None:
        with self._writing:
            self._unsaid.append(_frame(header, body))
        self.flush()

    def flush(self) -> None:
        """Say what found no room before."""
        with self._writing:
            while self._unsaid and (self._said(self._unsaid[0]) or self._said_at_last(self._unsaid[0])):
                del self._unsaid[0]

    def _said_at_last(self, data: bytes) -> bool:
        os.ftruncate(self._spare, 0)
        return self._said(data)

    def _said(self, data: bytes) -> bool:
        size = os.fstat(self._fd).st_size
        try:
            durable.write_all(self._fd, data)
        except OSError:
            os.ftruncate(self._fd, size)  # readers wait for a whole frame
            return False
        return True

    def progress(self, data: Any, body: bytes = b"") -> None:
        with self._writing:
            if not self._unsaid:  # else there is no room for more
                self._said(_frame({"event": "progress", "data": data}, body))

    def cancelled(self) -> bool:
        """Reverting is the only way to give up: a controller that goes away does not stop the change."""
        decided = verdict(self._run)
        return decided is not None and decided.get("verdict") == REVERT


def main(source: BinaryIO, config: Dict[str, Any]) -> None:
    """Supervise one step. `config`: run, state, run_lock and held (inherited descriptors)."""
    if config["state"]:
        os.environ["OPSCTL_STATE_DIR"] = config["state"]
    for sig in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        signal.signal(sig, signal.SIG_IGN)
    for fd in (config["run_lock"], *config["held"]):
        os.set_inheritable(fd, False)  # what the change starts must not hold our locks
    received = read_frame(source)
    if received is None:
        os._exit(1)
    header, body = received
    run = config["run"]
    masking.learn(header["secrets"])
    runlog.adopt(run, config["run_lock"])
    loader.fetch = lambda name: _fetch(run, name)
    events = Events(run)
    try:
        supervise(run, header["seq"], runlog.split_body(header["calls"], body), header["confirm_within"], events)
    except BaseException as error:  # noqa: BLE001  the last net: whoever follows is told, the journal stays for the next run
        events.write({"event": "died", "error": dispatch.describe(error)})
        sys.stderr.write(masking.text(traceback.format_exc()))
        sys.stderr.flush()  # which os._exit does not do
        os._exit(1)
    os._exit(0)


def supervise(run: str, seq: int, todo: Any, confirm_within: float, events: Events) -> None:
    """Make the change, wait for the verdict, act on it."""
    error: Optional[Fault] = None
    try:
        with runlog.turn(run, events, "step %d, supervised" % seq):
            reply = journal.perform(run, seq, todo, events)
    except Exception as failure:  # noqa: BLE001  whatever it was, the run is taken back and its controller told
        error = dispatch.describe(failure)
        decided = _decide(run, FAILED)
    else:
        deadline = _now() + confirm_within
        result, body = _masked(reply)
        events.write({"event": "applied", "result": result, "confirm_within": confirm_within}, body)
        decided = _await(run, deadline, events)
    if error is None and decided.get("verdict") == CONFIRM:
        account = journal.Account(run)
        account.note({"confirmed": True})  # else whoever has confirmed does so, once we are gone
        if decided.get("outcome"):
            account.note({"outcome": decided["outcome"]})
        events.write({"event": "confirmed"})
        return
    # Whoever confirmed before the change was made has confirmed nothing.
    failed = decided.get("verdict") in (FAILED, CONFIRM)
    why = "failed" if failed else "not confirmed" if decided.get("verdict") == EXPIRED else "reverted"
    with runlog.turn(run, events, "taking it back", None):  # nobody else would do it
        report = journal.roll_back(run, events, why)
    events.write({"event": "reverted", "why": why, "error": error, "report": report})


def _frame(header: Dict[str, Any], body: bytes) -> bytes:
    """An event, masked, as it is written."""
    return frame(masking.data(header), masking.raw(body))


def _masked(reply: Reply[Any]) -> Tuple[Dict[str, Any], bytes]:
    """The replies of a step, as they may be kept: each body masked for itself, since its length stands beside it."""
    kept, bodies, start = [], [], 0
    for result, length in reply.result["replies"]:
        bodies.append(masking.raw(reply.body[start : start + length]))
        kept.append([result, len(bodies[-1])])
        start += length
    return {"replies": kept}, b"".join(bodies)


def _fetch(run: str, name: str) -> bool:
    """A module that a later step of the run needs to be taken back: its agent has left it in the run's folder."""
    found = durable.read_json(os.path.join(runs.folder(run), "modules.json")) or {}
    loader.add(name, found.get(name))
    return name in found


def prepare_verdict(run: str) -> None:
    """Make room for a verdict. Raises AgentError no-space."""
    with durable.explained():
        fd = durable.opened(_verdict_path(run), os.O_RDWR | os.O_CREAT)
        try:
            durable.take_room(fd, 0, _VERDICT_ROOM)
            durable.sync_folder(runs.folder(run))
        finally:
            os.close(fd)


def decide(run: str, word: str, outcome: Optional[str] = None) -> Dict[str, Any]:
    """Put in a verdict. Gives the one that counts: this one, or the one that was there first.

    Where no verdict is expected, or it was withdrawn, there is nothing that could be confirmed: then it gives {}.
    """
    with durable.explained():
        try:
            fd = durable.opened(_verdict_path(run), os.O_RDWR | (0 if word == CONFIRM else os.O_CREAT))
        except FileNotFoundError:
            return {}
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            earlier = _decided(os.pread(fd, _VERDICT_ROOM, 0))
            if earlier:
                return earlier
            os.pwrite(fd, durable.pack({"verdict": word, "outcome": outcome}), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
    return {"verdict": word, "outcome": outcome}


def withdraw_verdict(run: str) -> None:
    """Have nobody confirm any more, where a verdict cannot be written."""
    with contextlib.suppress(OSError):
        os.unlink(_verdict_path(run))


def verdict(run: str) -> Optional[Dict[str, Any]]:
    """The verdict, None while there is none."""
    try:
        return _decided(durable.read(_verdict_path(run)))
    except FileNotFoundError:
        return None


def _decided(text: bytes) -> Optional[Dict[str, Any]]:
    return durable.unpack(text.rstrip(b"\0"))


def _verdict_path(run: str) -> str:
    return os.path.join(runs.folder(run), "verdict")


def events_path(run: str) -> str:
    return os.path.join(runs.folder(run), "events")


def _await(run: str, deadline: float, events: Events) -> Dict[str, Any]:
    while True:
        with contextlib.suppress(AgentError, OSError):  # it cannot be read: nobody has confirmed
            decided = verdict(run)
            if decided is not None:
                return decided
        if _now() >= deadline:
            return _decide(run, EXPIRED)
        events.flush()
        time.sleep(TICK)


def _decide(run: str, word: str) -> Dict[str, Any]:
    """Decide that the run is taken back, also where that cannot be written: then nobody can confirm it any more."""
    try:
        return decide(run, word)
    except AgentError:
        withdraw_verdict(run)
        return {"verdict": word}


def _now() -> float:
    """Seconds that count while the machine sleeps, too, and do not jump with its clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
