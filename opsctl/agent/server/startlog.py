"""What a starting server says: new bytes of its log file, or of the system's journal where its unit writes there.

Only what belongs to this start counts: a file is read from where it ended when the start began (`mark`, known by device
and inode, so that a rotation in between is noticed), the journal by the invocation of the unit.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Optional, cast

from opsctl.agent.core import durable, runs
from opsctl.agent.core.undo_record import save
from opsctl.agent.files.states import absolute
from opsctl.agent.logs.logtail import Tail, begin_of, file_of
from opsctl.agent.process import service
from opsctl.agent.process.wait import log_of
from opsctl.wire.protocol import Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Alive, Unit
    from opsctl.wire.calls.server import Begun

CHUNK = 1 << 20
KEEP = "server-log"  # where a run keeps the mark of the start that it makes


def mark(call: Context, log: Optional[str] = None, keep: str = KEEP) -> Begun:
    """Note in the step of a run where a server's words on the start that follows will begin."""
    place: Begun = {"at": time.time(), "log": None, "file": None, "offset": 0}
    if log is not None:
        path = absolute(log)
        place["log"], place["file"] = path, file_of(path)
        place["offset"] = os.path.getsize(path) if place["file"] else 0
    save(call, keep, dict(place))
    run = os.path.dirname(os.path.dirname(call.blobs)) if call.blobs else ""
    if os.path.dirname(run) == runs.root():  # a step's folder goes when the run is taken back
        durable.write(os.path.join(run, KEEP), json.dumps(place).encode())
    return place


def of_run(call: Context, run: str) -> Optional[Begun]:
    """The mark of the last start of a server that a run has made; None if it made none."""
    return cast("Optional[Begun]", durable.read_json(os.path.join(runs.root(), runs.checked(run), KEEP)))


def offset_in(place: Optional[Begun], path: str) -> Optional[int]:
    """Where in the file that is at `path` now a start begins: 0 in one that came since; None without a mark of it."""
    if place is None or place.get("log") != path:
        return None
    return begin_of(path, place["file"], place["offset"])


class Said:
    """Nothing: a server whose output goes nowhere that we know. Only its health is watched."""

    name = ""

    def read(self) -> bytes:
        return b""

    def close(self) -> None:
        pass


class File(Said):
    def __init__(self, path: str, offset: Optional[int]) -> None:
        self.name = path
        self._tail = Tail(path, offset)

    def read(self) -> bytes:
        return self._tail.read()

    def close(self) -> None:
        self._tail.close()


class Journal(Said):
    """What this start of a unit says, as journalctl gives it."""

    def __init__(self, call: Context, unit: str, user: bool, shown: Unit) -> None:
        self.name = "the journal of %s" % unit
        argv = ["journalctl", "--quiet", "--follow", "--no-tail", "--all", "--output=cat"] + (
            ["--user"] if user else []
        )
        self._child = subprocess.Popen(
            argv + service.this_start(unit, user, shown),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._call = call
        call.started(self._child.pid)
        assert self._child.stdout is not None
        self._pipe = self._child.stdout.fileno()
        os.set_blocking(self._pipe, False)

    def read(self) -> bytes:
        try:
            return os.read(self._pipe, CHUNK)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self._child.kill()
        assert self._child.stdout is not None
        self._child.stdout.close()
        self._child.wait()
        self._call.ended(self._child.pid)


def source(
    call: Context,
    log: Optional[str],
    offset: Optional[int],
    alive: Optional[Alive],
    begun: Optional[Begun] = None,
) -> Said:
    """Where a server says how far it is: the log that is named or known, else its unit's journal. begun: of `mark`."""
    if log is not None or (alive and "process" in alive):
        path, begin = log_of(log, offset, alive)
        return File(path, offset_in(begun, path) if begin is None else begin)
    if alive and "unit" in alive and shutil.which("journalctl"):
        user = alive.get("user", False)
        return Journal(call, alive["unit"], user, service.show(call, alive["unit"], user))
    return Said()


CALLS = {"mark": mark, "of_run": of_run}
