"""Gather the parts of a log bundle on the host, side by side, redacted before they travel.

A part is one of
    {"name": "unit.txt", "argv": ["systemctl", "cat", "sglang"]}          the output of a command, stdout and stderr
    {"name": "proc/limits.txt", "path": "/proc/77/limits"}                a file
    {"name": "server.log", "logs": ["server.log.1.gz", "server.log"]}     a log, oldest file first, packed or not
with "nul" where NULs separate its items; "seconds" (time limit), "head", "window" and "tail" (bytes kept of the
beginning, from the first trouble on, and of the end) where the defaults do not fit.

Each part travels as zlib-compressed pieces in progress messages
`{"part": name, "last": bool}`; the result is the manifest. One failed part never fails the others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, Iterator, List, Optional

from opsctl.agent.clip import Clip
from opsctl.agent.logsource import blocks
from opsctl.agent.protocol import AgentError, Context
from opsctl.agent.redact import Redactor

SIDE_BY_SIDE = 6
SECONDS = 30.0
LOG_SECONDS = 600.0
HEAD, WINDOW, TAIL = 1 << 20, 4 << 20, 4 << 20
LOG_TAIL = 24 << 20
PIECE = 1 << 20
_NICE = 15  # the server on this host comes first
_GRACE = 2.0  # seconds for a killed command to go; one in state D stays, and is left behind


class _Out:
    """Where parts go: one message at a time, whichever thread it comes from."""

    def __init__(self, call: Context) -> None:
        self._call = call
        self._lock = threading.Lock()

    def send(self, name: str, data: bytes, last: bool) -> int:
        packed = zlib.compress(data, 6)
        with self._lock:
            self._call.progress({"part": name, "last": last}, packed)
        return len(packed)


def bundle(
    call: Context,
    parts: List[Dict[str, Any]],
    more: bool = False,
    hosts: Iterable[str] = (),
    keep_prompts: bool = False,
    root: str = "/",
) -> Dict[str, Any]:
    """Agent call `collect.bundle`: the manifest {"parts": [{name, source, exit, seconds, bytes, kept, sent, masked,
    truncated, error}]}, in the order of `parts`.

    The body of the call is a JSON list of secrets known by value: there and not in the arguments, which are logged.
    """
    secrets = json.loads(call.body.decode()) if call.body else []
    out = _Out(call)

    def one(part: Dict[str, Any]) -> Dict[str, Any]:
        _be_nice()
        redactor = Redactor(secrets, more=more, hosts=hosts, keep_prompts=keep_prompts)
        return _part(call, part, redactor, out, root)

    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
        return {"parts": list(pool.map(one, parts))}


def _part(call: Context, part: Dict[str, Any], redactor: Redactor, out: _Out, root: str) -> Dict[str, Any]:
    begun = time.monotonic()
    is_log = "logs" in part
    clip = Clip(
        part.get("head", HEAD),
        part.get("window", WINDOW if is_log else 0),
        part.get("tail", LOG_TAIL if is_log else TAIL),
    )
    entry: Dict[str, Any] = {"name": part["name"], "source": _source(part), "exit": None, "error": None}
    deadline = begun + part.get("seconds", LOG_SECONDS if is_log else SECONDS)
    try:
        for data in _read(part, entry, deadline, root):
            clip.feed(data)
            if call.cancelled():
                entry["error"] = "cancelled"
                break
    except AgentError as error:
        entry["error"] = error.message
    except OSError as error:
        entry["error"] = error.strerror or str(error)
    pieces = clip.pieces()
    kept = sum(len(piece) for piece in pieces)
    entry["sent"] = _send(out, part, pieces, redactor)
    entry.update(
        bytes=clip.total,
        kept=kept,
        masked=redactor.masked,
        truncated=kept < clip.total or entry["error"] is not None,
        seconds=round(time.monotonic() - begun, 3),
    )
    entry["source"] = Redactor(keep_prompts=True).text(entry["source"])
    entry["error"] = entry["error"] and Redactor().text(entry["error"])
    return entry


def _send(out: _Out, part: Dict[str, Any], pieces: List[bytes], redactor: Redactor) -> int:
    """Redact, then send. What is separated by NULs becomes lines only afterwards: a flag and its value are one line."""
    between = b"\n" if part.get("nul") else b"\0"
    sent = 0
    for piece in pieces:
        for start in range(0, len(piece), PIECE):
            clean = redactor.feed(piece[start : start + PIECE])
            if clean:
                sent += out.send(part["name"], clean.replace(b"\0", between), last=False)
    return sent + out.send(part["name"], redactor.close().replace(b"\0", between), last=True)


def _read(part: Dict[str, Any], entry: Dict[str, Any], deadline: float, root: str) -> Iterator[bytes]:
    if "argv" in part:
        yield from _command(part["argv"], entry, deadline)
        return
    for path in part.get("logs") or [part["path"]]:
        for data in blocks(os.path.join(root, path.lstrip("/")), block=PIECE):
            yield data
            if time.monotonic() > deadline:
                entry["error"] = "time limit"
                return


def _command(argv: List[str], entry: Dict[str, Any], deadline: float) -> Iterator[bytes]:
    """The output of a command as it comes. The command has a session of its own, so all of it can be ended."""
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "PAGER": "cat"}
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    except FileNotFoundError:
        raise AgentError("missing-tool", "no such command: %s" % argv[0]) from None
    assert child.stdout is not None
    handle = child.stdout.fileno()
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                entry["error"] = "time limit"
                return
            data = os.read(handle, PIECE)
            if not data:
                break
            yield data
        entry["exit"] = _wait(child, max(_GRACE, deadline - time.monotonic()))
    finally:
        child.stdout.close()
        if child.poll() is None:
            _kill(child)
            entry["exit"] = _wait(child, _GRACE)


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> Optional[int]:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()


def _source(part: Dict[str, Any]) -> str:
    return " ".join(part["argv"]) if "argv" in part else ", ".join(part.get("logs") or [part["path"]])


def _be_nice() -> None:
    """Give way to the server: niceness is per thread on Linux."""
    try:
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < _NICE:
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)
    except OSError:
        return


CALLS = {"bundle": bundle}
