"""Waiting for an SGLang server to answer: its log says how far it has come, its health check when it is there.

Log lines are those of SGLang 0.4.6 to 0.5.23. A server is ready when `/health_generate` gives 200, which takes one
token from the model; an open port, or a line in the log, is not enough.
"""

from __future__ import annotations

import re
import time
from typing import Any, Dict, Optional, Pattern, Tuple

from opsctl.agent.http import request
from opsctl.agent.logtail import Tail
from opsctl.agent.protocol import AgentError, Context
from opsctl.agent.wait import Alive, Stall, Watch, log_of

TICK = 0.2
REPORT = 0.5
ASK = 1.0  # seconds between health checks
HEALTH_LIMIT = 25.0  # seconds: the server gives up its own check after 20 (SGLANG_HEALTH_CHECK_TIMEOUT)

PHASES: Tuple[Tuple[Pattern[str], str], ...] = (
    (re.compile(r"Init torch distributed begin"), "starting workers"),
    (re.compile(r"Load weight begin|Loading safetensors checkpoint shards"), "loading weights"),
    (re.compile(r"KV Cache is allocated|Memory pool end"), "allocating the KV cache"),
    (re.compile(r"Capture .*begin|Capturing batches"), "capturing CUDA graphs"),
    (re.compile(r"Uvicorn running on|Application startup complete"), "warming up"),
    (re.compile(r"The server is fired up and ready to roll"), "ready"),
)
OURS = re.compile(r'"GET /health')  # the server's note of our own question: no sign of progress
FRACTION = re.compile(r"(?:Loading safetensors|Capturing batches|Multi-thread loading).*?(\d{1,3})%")
# The launcher says this when a worker has died, and ends soon after.
FATAL = re.compile(r"Received sigquit from a child process|Initialization failed\. warmup error|SIGQUIT received")
CAUSE = re.compile(r"^(?:\[[^\]]*\] )?((?:[A-Za-z_][\w.]*(?:Error|Exception)|Exception|Not enough memory)\b.*)")


class Progress:
    """What the log has said so far."""

    def __init__(self) -> None:
        self.phase = "starting"
        self.fraction: Optional[float] = None
        self.cause: Optional[str] = None
        self.lines, self.last = 0, ""

    def read(self, line: str) -> None:
        """Take one line in. Raises AgentError where it says that the start has failed."""
        if OURS.search(line):
            return
        self.lines, self.last = self.lines + 1, line
        for pattern, phase in PHASES:
            if pattern.search(line) and phase != self.phase:
                self.phase, self.fraction = phase, None
        found = FRACTION.search(line)
        if found:
            self.fraction = min(int(found.group(1)), 100) / 100.0
        said = CAUSE.match(line)
        if said:
            self.cause = said.group(1).strip()[:500]
        if FATAL.search(line):
            raise AgentError("failed", self.failure("the server gave up while %s" % self.phase), died=True)

    def told(self, waited: float, seen: str) -> str:
        """One line for people: where it is, for how long, and the last thing that was said."""
        share = " %.0f %%" % (self.fraction * 100) if self.fraction is not None else ""
        return "%s%s (%.0f s): %s" % (self.phase, share, waited, (self.last or seen)[:160])

    def failure(self, what: str) -> str:
        return "%s: %s" % (what, self.cause) if self.cause else what


def wait(
    call: Context,
    port: int,
    host: str = "127.0.0.1",
    log: Optional[str] = None,
    offset: Optional[int] = None,
    timeout: float = 1200.0,
    stall: Optional[float] = None,
    alive: Optional[Alive] = None,
) -> Dict[str, Any]:
    """Wait until the server answers; give up when it dies, says that it failed, or its log stands still for `stall`.

    Reports {"text", "phase", "fraction", "waited"}; gives {"seconds", "phases": {name: seconds}}.
    """
    tail = _tail(log, offset, alive)
    progress, watch, still = Progress(), Watch(alive), Stall(stall)
    began = reported = time.monotonic()
    asked, seen = 0.0, ""
    phases: Dict[str, float] = {}
    try:
        while True:
            waited = time.monotonic() - began
            for line in tail.lines() if tail else ():
                progress.read(line)
                phases.setdefault(progress.phase, round(waited, 1))
            if time.monotonic() - asked >= ASK:
                seen, asked = _health(call, host, port), time.monotonic()
            if seen == "ready":
                return {"seconds": round(time.monotonic() - began, 1), "phases": phases}
            _look(call, watch, progress)
            if tail:
                still.look(tail.path, progress.lines, progress.last)
            if call.cancelled():
                raise AgentError("failed", "cancelled after waiting %.0f s for the server" % waited)
            if waited >= timeout:
                text = "the server did not answer in %g s; it was %s; last seen: %s" % (timeout, progress.phase, seen)
                raise AgentError("timeout", progress.failure(text), phase=progress.phase)
            if time.monotonic() - reported >= REPORT:
                reported = time.monotonic()
                told = {"text": progress.told(waited, seen), "phase": progress.phase, "fraction": progress.fraction}
                call.progress(dict(told, waited=round(waited, 1)))
            time.sleep(TICK)
    finally:
        if tail:
            tail.close()


def _tail(log: Optional[str], offset: Optional[int], alive: Optional[Alive]) -> Optional[Tail]:
    if log is None and not (alive and "process" in alive):
        return None  # a unit that writes to the system's journal: only its health is watched
    path, start = log_of(log, offset, alive)
    return Tail(path, start)


def _health(call: Context, host: str, port: int) -> str:
    try:
        answer = request(call, "http://%s:%d/health_generate" % (host, port), timeout=HEALTH_LIMIT)
    except AgentError as error:
        return error.message
    return "ready" if answer.result["status"] == 200 else "status %d" % answer.result["status"]


def _look(call: Context, watch: Watch, progress: Progress) -> None:
    try:
        watch.look(call)
    except AgentError as error:
        what = "the server ended while %s" % progress.phase
        fields = dict(error.fields, phase=progress.phase)
        raise AgentError("failed", progress.failure(what) if progress.cause else error.message, **fields) from None


CALLS = {"wait": wait}
