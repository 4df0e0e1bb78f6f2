"""Waiting on the host for something to become true, with a deadline, and giving up early when it cannot any more.

Every wait ends: with the state it waited for, at its deadline, when the process it watches has died, or when a log
stands still. While it waits it reports {"text": what is seen, "waited": seconds}.
"""

from __future__ import annotations

import os
import re
import socket
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Literal, Optional, Tuple

from opsctl.agent.core.http_request import request
from opsctl.agent.files.states import absolute
from opsctl.agent.logs.logtail import Tail, begin_of, last_lines
from opsctl.agent.process import container, pids, process, service
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Alive, Container, HttpWaited, LogWaited, Status, Unit, Waited

TICK = 0.2
REPORT = 1.0
LOOK_ELSEWHERE = 5.0  # seconds between questions to systemd or docker
TAIL_LINES = 20

Probe = Callable[[], Tuple[Optional[Dict[str, Any]], str]]  # what was waited for, or None, and what is seen


def port(
    call: Context,
    port: int,
    host: str = "127.0.0.1",
    state: Literal["open", "closed"] = "open",
    timeout: float = 300.0,
    alive: Optional[Alive] = None,
) -> Waited:
    """Wait until something accepts connections there, or (`closed`) until nothing does."""

    def probe() -> Tuple[Optional[Dict[str, Any]], str]:
        try:
            socket.create_connection((host, port), 2.0).close()
            seen = "open"
        except OSError as error:
            seen = error.strerror or str(error)
        return ({} if (seen == "open") == (state == "open") else None), seen

    waited: Waited = _until(call, "port %d of %s to be %s" % (port, host, state), probe, timeout, alive)
    return waited


def path(
    call: Context,
    path: str,
    state: Literal["present", "absent"] = "present",
    timeout: float = 300.0,
    alive: Optional[Alive] = None,
) -> Waited:
    """Wait until a path is there, or (`absent`) gone."""
    full = absolute(path)

    def probe() -> Tuple[Optional[Dict[str, Any]], str]:
        there = os.path.lexists(full)
        return ({} if there == (state == "present") else None), "present" if there else "absent"

    waited: Waited = _until(call, "%s to be %s" % (path, state), probe, timeout, alive)
    return waited


def http(
    call: Context,
    url: str,
    status: Optional[List[int]] = None,
    contains: Optional[str] = None,
    headers: Optional[Dict[str, str]] = None,
    timeout: float = 300.0,
    alive: Optional[Alive] = None,
    sealed: int = 0,
) -> HttpWaited:
    """Wait until an address answers with one of the statuses (200), and a body in which a pattern is found."""
    wanted = status or [200]

    def probe() -> Tuple[Optional[Dict[str, Any]], str]:
        try:
            answer = request(call, url, headers=headers, timeout=25.0, sealed=sealed)
        except AgentError as error:
            return None, error.message
        code = answer.result["status"]
        text = answer.body.decode("utf-8", "replace")
        if code not in wanted:
            return None, "status %d" % code
        if contains is not None and not re.search(contains, text):
            return None, "status %d, but %r is not in the answer" % (code, contains)
        return {"status": code}, "status %d" % code

    waited: HttpWaited = _until(call, "%s to answer %s" % (url, " or ".join(map(str, wanted))), probe, timeout, alive)
    return waited


def log(
    call: Context,
    pattern: str,
    path: Optional[str] = None,
    fail: Optional[str] = None,
    offset: Optional[int] = None,
    timeout: float = 300.0,
    stall: Optional[float] = None,
    alive: Optional[Alive] = None,
) -> LogWaited:
    """Wait for a log line in which `pattern` is found; one with `fail` in it, or nothing new for `stall`, ends it.

    Without `path` it is the log of the process in `alive`, from where it was started; otherwise without `offset` only
    lines from now on count.
    """
    path, offset = log_of(path, offset, alive)
    tail = Tail(path, offset)
    still = Stall(stall)

    def probe() -> Tuple[Optional[Dict[str, Any]], str]:
        for line in tail.lines():
            if fail is not None and re.search(fail, line):
                raise AgentError("failed", "the log says: %s" % line[:500], line=line, path=path)
            if re.search(pattern, line):
                return {"line": line}, line
        still.look(tail.path, tail.bytes, tail.last)
        return None, tail.last

    try:
        waited: LogWaited = _until(call, "a line like %r in %s" % (pattern, path), probe, timeout, alive)
        return waited
    finally:
        tail.close()


def log_of(path: Optional[str], offset: Optional[int], alive: Optional[Alive]) -> Tuple[str, Optional[int]]:
    """The log to read and where to begin."""
    if path is not None:
        return absolute(path), offset
    record = process.status(Context(), alive["process"]) if alive and "process" in alive else None
    if record is None or "log" not in record:
        raise AgentError("invalid", "no log is known: give its path, or a process that was started by opsctl")
    return record["log"], _begin(record) if offset is None else offset


def _begin(record: Status) -> int:
    """Where in its log a recorded process began to write."""
    if "log_file" not in record:  # written by an earlier version, or of an adopted process
        return int(record["log_offset"])
    return begin_of(record["log"], record["log_file"], record["log_offset"])


class Stall:
    """Notices a log that stands still."""

    def __init__(self, limit: Optional[float]) -> None:
        self._limit, self._seen, self._since = limit, -1, time.monotonic()

    def look(self, path: str, seen: int, last: str) -> None:
        """Raises AgentError when what has been `seen` (bytes, lines) has not grown for too long."""
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        elif self._limit is not None and time.monotonic() - self._since > self._limit:
            said = "; its last line: %s" % last[:300] if last else ""
            raise AgentError("timeout", "nothing new in %s for %g s%s" % (path, self._limit, said), stalled=True)


class Watch:
    """Notices the death of what a wait depends on."""

    def __init__(self, alive: Optional[Alive]) -> None:
        self._alive, self._next = alive, 0.0
        self._restarts: Optional[str] = None
        self._started: Optional[str] = None

    def look(self, call: Context) -> None:
        """Raises AgentError when it has died, with the end of its log."""
        alive = self._alive
        if alive is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + (LOOK_ELSEWHERE if "unit" in alive or "container" in alive else TICK)
        if "process" in alive and not process.is_alive(alive["process"]):
            record = process.status(call, alive["process"])
            begin = _begin(record) if "log" in record else 0
            raise died("process %s" % alive["process"], record.get("log"), begin)
        if "unit" in alive:
            self._look_at_unit(service.show(call, alive["unit"], alive.get("user", False)), alive["unit"])
        if "container" in alive:
            self._look_at_container(container.look(call, alive["container"]), alive["container"])
        if "pid" in alive:
            seen = pids.look(alive["pid"])
            if seen is None or not seen.alive or seen.start != alive["start"]:
                raise died("pid %d" % alive["pid"], None)

    def _look_at_unit(self, now: Unit, unit: str) -> None:
        """A unit that systemd starts again and again is never down for long: its restarts are counted."""
        restarts = now.get("NRestarts", "0")
        if self._restarts is None:
            self._restarts = restarts
        if not now["up"] or now.get("SubState") == "auto-restart":
            raise died("unit %s: %s (%s)" % (unit, now.get("ActiveState"), now.get("Result")), None)
        if restarts != self._restarts:
            text = "unit %s ended and was started again by systemd, %s times so far: a crash loop" % (unit, restarts)
            raise AgentError("failed", text, died=True, tail=[])

    def _look_at_container(self, now: Container, name: str) -> None:
        """As docker starts it again by itself, where it is told to, its starts are told apart by their times."""
        if self._started is None:
            self._started = now.get("started")
        if not now["running"] or now.get("restarting"):
            raise died("container %s" % name, None)
        if now.get("started") != self._started:
            text = "container %s ended and was started again by docker, %s times so far" % (name, now.get("restarts"))
            raise AgentError("failed", text, died=True, tail=[])


def died(what: str, log: Optional[str], offset: int = 0) -> AgentError:
    """The error for a process that ended while it was waited for; its log is read from where this start begins."""
    lines = last_lines(log, offset, TAIL_LINES) if log else []
    said = "; the last line of its log: %s" % lines[-1].strip()[:300] if lines else ""
    return AgentError("failed", "%s has ended%s" % (what, said), died=True, tail=lines)


def _until(call: Context, what: str, probe: Probe, timeout: float, alive: Optional[Alive]) -> Any:
    began = reported = time.monotonic()
    watch = Watch(alive)
    while True:
        found, seen = probe()
        waited = time.monotonic() - began
        if found is not None:
            return dict(found, seconds=round(waited, 1))
        watch.look(call)
        if call.cancelled():
            raise AgentError("failed", "cancelled after waiting %.0f s for %s" % (waited, what))
        if waited >= timeout:
            last = "; last seen: %s" % seen[:300] if seen else ""
            raise AgentError("timeout", "waited %g s for %s%s" % (timeout, what, last))
        if time.monotonic() - reported >= REPORT:
            reported = time.monotonic()
            note = ": " + seen[:200] if seen else ""
            call.progress({"text": "waited %.0f s%s" % (waited, note), "waited": round(waited, 1)})
        time.sleep(min(TICK, max(timeout - waited, 0.01)))


CALLS = {"port": port, "path": path, "http": http, "log": log}
