"""The journal of a run, written: each record is on disk before it counts. Also who may write; see `runs`."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from opsctl.agent.core import durable, file_locks, runs
from opsctl.agent.core.runs import FORMAT
from opsctl.wire import masking
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.core import RunMeta, StepCall

LEAVING = 5.0  # seconds that an agent gets to end once its connection is gone
TURN = 300.0  # seconds to wait for a step under way: stopping a server may take most of that
ROOM = 32 << 10  # bytes that the log has ahead of its records when a step begins
PER_STEP = 512  # more of them for each record there is: taking a step back adds one or two
RESERVE = 64 << 10  # bytes for everything else that an undo writes
_SAYS = 512  # bytes of `turn`: who has it is written in their place
_END = 96  # bytes of `end`: always as many, so that it is written in one step and needs no more room
_owned: Dict[str, int] = {}  # runs whose lock this process holds -> descriptor
_attended: Dict[str, int] = {}  # runs whose operator's agent this process is -> descriptor
_guard = threading.RLock()


def create(run: str, meta: RunMeta) -> None:
    """Begin a run: make its folder, whole, and own and attend it. Raises AgentError exists."""
    path = os.path.join(runs.root(), runs.checked(run))
    new = os.path.join(runs.root(), ".%s.%d" % (run, os.getpid()))
    with durable.explained():
        os.mkdir(new, 0o700)
        held: Dict[str, int] = {}
        try:
            os.mkdir(os.path.join(new, "steps"), 0o700)
            for name in ("lock", "attended", "turn"):
                held[name] = os.open(os.path.join(new, name), os.O_RDWR | os.O_CREAT, 0o600)
            os.pwrite(held["turn"], b" " * _SAYS, 0)
            for name in ("lock", "attended"):
                fcntl.flock(held[name], fcntl.LOCK_EX)
            number = _number()
            _write_new(new, "reserve", b"", RESERVE)
            first = {
                "n": 1,
                "begin": masking.data(meta),
                "format": FORMAT,
                "order": number,
                "at": round(time.time(), 3),
            }
            _write_new(new, "log", durable.pack(first), ROOM)
            _write_new(new, "end", _end_line({"format": FORMAT, "n": 1, "order": number}), 0)
            durable.sync_folder(new)
            _rename_new(new, path, run)
            durable.sync_folder(runs.root())
        except BaseException:
            for fd in held.values():
                os.close(fd)
            remove(new)
            raise
        os.close(held["turn"])
        with _guard:
            _owned[run], _attended[run] = held["lock"], held["attended"]


def _rename_new(new: str, path: str, run: str) -> None:
    try:
        os.rename(new, path)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise AgentError("exists", "there is a run %s on this host already" % run, run=run) from None


def _write_new(place: str, name: str, data: bytes, room: int) -> None:
    fd = os.open(os.path.join(place, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        durable.write_all(fd, data)
        durable.take_room(fd, len(data), room)
        if data:
            os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: str) -> None:
    """Remove a folder of a run, or of one that was never begun."""
    import shutil  # brings compression libraries with it, which nothing else of a run needs

    shutil.rmtree(path, ignore_errors=True)


def remove_unbegun() -> None:
    """Remove folders of runs whose beginning a crash has cut short."""
    for name in os.listdir(runs.root()):
        path = os.path.join(runs.root(), name)
        if name.startswith(".") and not file_locks.is_locked(os.path.join(path, "lock")):
            remove(path)


def forget(run: str) -> None:
    """Remove what only an undo needs: there is nothing left to take back."""
    path = runs.folder(run)
    remove(os.path.join(path, "steps"))
    for name in ("undo", "reserve", "checkpoint.json"):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(path, name))


def release(run: str) -> None:
    """Give back the room that was reserved for an undo: it begins."""
    with suppress(OSError):
        os.unlink(os.path.join(runs.folder(run), "reserve"))


def _number() -> int:
    """The next number of a run on this host. Raises OSError."""
    path = os.path.join(durable.folder(), "order")
    fd = durable.opened(path, os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        text = os.pread(fd, 32, 0).strip()
        earlier = runs.names()
        number = max(int(text) if text.isdigit() else 0, runs.age(earlier[0])[0] if earlier else 0) + 1
        os.pwrite(fd, b"%-20d\n" % number, 0)
        return number
    finally:
        os.close(fd)


def _end_line(end: Dict[str, Any]) -> bytes:
    return durable.pack(end)[:-1].ljust(_END - 1) + b"\n"


def append(run: str, line: Dict[str, Any], sync: bool = True) -> None:
    """Add a record and wait until it is on disk (`sync`), or leave it to the next one that waits.

    Everything that is written into a log passes here, and is masked.
    """
    line = dict(masking.data(line), at=round(time.time(), 3))
    path = runs.folder(run)
    with _guard, durable.explained():
        end = runs.read_end(path)
        fd = durable.opened(os.path.join(path, "log"), os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            text = os.pread(fd, os.fstat(fd).st_size, 0)
            start = text.rstrip(b"\0").rfind(b"\n") + 1
            if not runs.counts(path, text):
                _write_at(fd, durable.json_bytes(line) + b"\n", start, len(text))
                os.fsync(fd)
                return
            last = durable.unpack(text[text.rfind(b"\n", 0, max(start - 1, 0)) + 1 : start]) if start else None
            number = max((last or {}).get("n", 0), (end or {}).get("n", 0)) + 1
            data = durable.pack(dict({"n": number}, **line))
            wanted = start + len(data) + PER_STEP * number
            if "step" in line and wanted > len(text):
                durable.take_room(fd, len(text), wanted + ROOM - len(text))
            _write_at(fd, data, start, len(text))
            if sync:
                os.fsync(fd)
            if end:  # else it stays what it is: that it was damaged must not be forgotten
                _write_end(path, dict(end, n=number))
        finally:
            os.close(fd)


def _write_at(fd: int, data: bytes, start: int, size: int) -> None:
    """Write at a place of a file, over what a crash has cut short there, of which nothing stays."""
    over = max(0, size - start)
    torn = len(os.pread(fd, over, start).rstrip(b"\0"))
    data = data.ljust(torn, b"\0")
    os.lseek(fd, start, os.SEEK_SET)
    durable.write_all(fd, data)


def _write_end(path: str, end: Dict[str, Any]) -> None:
    end.pop("sum", None)
    fd = durable.opened(os.path.join(path, "end"), os.O_WRONLY)
    try:
        os.pwrite(fd, _end_line(end), 0)
    finally:
        os.close(fd)


def set_apart(run: str, entry: Dict[str, Any]) -> str:
    """Keep how a step is taken back, apart from the log, and wait until it is on disk. Gives what to find it by."""
    data = durable.pack(entry)
    with _guard, durable.explained():
        fd = durable.opened(os.path.join(runs.folder(run), "undo"), os.O_RDWR | os.O_CREAT)
        try:
            size = os.fstat(fd).st_size
            start = os.pread(fd, size, 0).rfind(b"\n") + 1
            _write_at(fd, data, start, size)
            os.fsync(fd)
            if start == 0:
                durable.sync_folder(runs.folder(run))
        finally:
            os.close(fd)
    return str((durable.unpack(data) or {})["sum"])


def own(run: str) -> None:
    """Hold the lock of a run until this process ends or lets go. Raises AgentError locked."""
    with _guard:
        if run in _owned:
            return
        fd = file_locks.take(os.path.join(runs.folder(run), "lock"))
        if fd is None:
            raise AgentError(
                "locked",
                "run %s is being worked on by another process" % run,
                holder=dict(runs.read(run).meta, run=run),
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
    """Be the operator's agent of a run, the only one; one whose operator is gone may need a moment to leave.

    Raises AgentError locked.
    """
    with _guard:
        if run not in _attended:
            fd = file_locks.take(os.path.join(runs.folder(run), "attended"), LEAVING)
            if fd is None:
                holder = dict(runs.read(run).meta, run=run)
                raise AgentError("locked", "run %s is attended by another operator" % run, holder=holder)
            _attended[run] = fd


def join(run: str) -> None:
    """Own a run, unless its supervisor does: whoever attends it may add to it as well. Raises AgentError locked."""
    if not (run in _attended and runs.supervised(run)):
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


@contextmanager
def turn(run: str, call: Context, doing: str, seconds: Optional[float] = TURN) -> Iterator[None]:
    """Alone in making or taking back steps, among all processes that work on a run; `doing` tells the others.

    Raises AgentError busy if whoever is at it has not ended after `seconds` (None: waits for as long as it takes).
    """
    path = os.path.join(runs.folder(run), "turn")
    fd = durable.opened(path, os.O_RDWR | os.O_CREAT)
    try:
        _wait_for_turn(run, fd, path, call, seconds)
        file_locks.say(fd, masking.json_bytes({"doing": doing, "pid": os.getpid(), "since": time.time()}))
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


def split_body(calls: List[StepCall], body: bytes) -> List[Tuple[str, Dict[str, Any], bytes]]:
    """Calls whose bodies lie one after the other in `body`, each with its own."""
    if sum(call[2] for call in calls) != len(body):
        raise AgentError("invalid", "the lengths of the calls' bodies do not add up to the body")
    found, start = [], 0
    for name, args, length in calls:
        found.append((name, args, body[start : start + length]))
        start += length
    return found
