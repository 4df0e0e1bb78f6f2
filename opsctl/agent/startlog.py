"""What a starting server says: new bytes of its log file, or of the system's journal where its unit writes there."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from typing import Any, Dict, Optional

from opsctl.agent import service
from opsctl.agent.logtail import Tail
from opsctl.agent.protocol import Context
from opsctl.agent.wait import Alive, log_of

CHUNK = 1 << 20


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
    """A unit's messages, from a moment on, as journalctl gives them."""

    def __init__(self, call: Context, unit: str, user: bool, since: float) -> None:
        self.name = "the journal of %s" % unit
        whose = ["--user", "--user-unit"] if user else ["--unit"]
        argv = ["journalctl", "--quiet", "--follow", "--no-tail", "--all", "--output=cat", "--since=@%d" % since]
        self._child = subprocess.Popen(
            argv + whose + [unit],
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


def source(call: Context, log: Optional[str], offset: Optional[int], alive: Optional[Alive]) -> Said:
    """Where a server says how far it is: the log that is named or known, else its unit's journal."""
    if log is not None or (alive and "process" in alive):
        return File(*log_of(log, offset, alive))
    if alive and "unit" in alive and shutil.which("journalctl"):
        user = alive.get("user", False)
        return Journal(call, alive["unit"], user, _started(service.show(call, alive["unit"], user)))
    return Said()


def _started(shown: Dict[str, Any]) -> float:
    """When the unit's main process was started, in seconds since 1970."""
    text = shown.get("ExecMainStartTimestampMonotonic", "")
    ago = time.monotonic() - int(text) / 1e6 if text.isdigit() and int(text) else 0.0
    return time.time() - max(0.0, ago)
