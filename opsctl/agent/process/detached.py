"""Run a command that may hang for ever, also beyond the reach of signals, without hanging ourselves.

Its output goes to an unnamed file and not to a pipe: a stuck process then holds nothing that we wait for. A mark in its
environment tells, when it is given up, which processes it has moved out of its session.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import IO, Dict, List, NamedTuple, Optional

from opsctl.wire.protocol import Context

TICK = 0.05
GRACE = 1.0  # seconds between SIGTERM and SIGKILL, and for the kernel to act on SIGKILL
_MARK = "OPSCTL_RUN"  # in the environment


class Ran(NamedTuple):
    """How it went. `code` is None when it was given up; `out` then holds what it had written."""

    code: Optional[int]
    out: str
    seconds: float
    missing: bool = False
    pid: int = 0


def run(
    call: Context, argv: List[str], seconds: float, env: Optional[Dict[str, str]] = None, keep: int = 32 << 20
) -> Ran:
    """Run `argv` for at most `seconds` (and the grace after it); both outputs together, at most `keep` bytes."""
    with _unnamed() as output:
        began = time.monotonic()
        mark = "%d.%d" % (os.getpid(), time.monotonic_ns())
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                close_fds=True,
                env=dict(env or os.environ, LC_ALL="C", **{_MARK: mark}),
                cwd="/",
            )
        except OSError:
            return Ran(None, "", 0.0, missing=True)
        code = _wait(call, child, began + seconds)
        took = time.monotonic() - began
        if code is None:
            _end(child)
            _end_marked(mark)
        else:
            _signal(child, signal.SIGKILL)  # what it may have left in its session
        return Ran(code, _read(output, keep), took, pid=child.pid)


def program(name: str, path: str) -> Optional[str]:
    """Where a program lies, looked for in the folders of `path`."""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, name)
        if folder and os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    return None


def _unnamed() -> "IO[bytes]":
    """A file without a name, in the folder for temporary ones."""
    try:
        handle = os.open(os.environ.get("TMPDIR") or "/tmp", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):  # a system or file system that has no such files, or no such folder
        import tempfile  # it takes long to load

        return tempfile.TemporaryFile()
    return os.fdopen(handle, "w+b")


def _wait(call: Context, child: "subprocess.Popen[bytes]", deadline: float) -> Optional[int]:
    while True:
        code = child.poll()
        if code is not None:
            return code
        if time.monotonic() >= deadline or call.cancelled():
            return None
        time.sleep(TICK)


def _end(child: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, then SIGKILL, to the whole session; a process that survives both is left to the kernel."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(child, number)
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            if child.poll() is not None:
                break
            time.sleep(TICK)
    child.poll()
    child.returncode = child.returncode if child.returncode is not None else -signal.SIGKILL


def _end_marked(mark: str) -> None:
    """SIGKILL to what was started in it and is elsewhere by now."""
    wanted = ("\0%s=%s\0" % (_MARK, mark)).encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open("/proc/%s/environ" % pid, "rb") as stream:
            if wanted in b"\0" + stream.read():
                os.kill(int(pid), signal.SIGKILL)


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(child.pid, number)


def _read(output: "IO[bytes]", keep: int) -> str:
    output.seek(0)
    return output.read(keep).decode("utf-8", "replace")
