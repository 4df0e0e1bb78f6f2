"""Waiting for an SGLang server to answer: its log says how far it has come, its health check when it is there.

A server is ready when `/health_generate` gives 200, which takes one token from the model; an open port, or a line in
the log, is not enough. What to do about a start that fails is told with its error.

Sources of that: SGLang's own advice in its messages (0.4.6 to 0.5.23), public reports of drivers, NCCL and PCIe.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, cast

from opsctl.agent.core.http_request import request
from opsctl.agent.core.undo_record import load
from opsctl.agent.gpu import vram
from opsctl.agent.process.wait import Watch
from opsctl.agent.server import startlog
from opsctl.agent.server.readiness import NO_WORD, OWN_QUESTION, STALL_SECONDS, Readiness, words
from opsctl.wire.protocol import AgentError, Context
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Alive
    from opsctl.wire.calls.server import Begun, Ready

TICK = 0.2
REPORT = 0.5
ASK = 1.0  # seconds between health checks
HEALTH_LIMIT = 25.0  # seconds: the server gives up its own check after 20 (SGLANG_HEALTH_CHECK_TIMEOUT)
LOOK_AT_MEMORY = 15.0  # seconds between looks at GPU memory
MOST_STARTS = 3  # in one wait: it dies and is started again, without a word
# What says nothing of how far it is: our own health checks, warnings of Python and the source line that each quotes.
_NOISE = re.compile(re.escape(OWN_QUESTION) + rb"|^[ \t]|^\S+:\d+: \w*Warning: ")
_FRACTION = re.compile(rb"mem_fraction_static=(0?\.\d+)")
_MOST_SHOWN = 160


class Start:
    """One start as its log tells it, in words for people."""

    def __init__(self, stall: Optional[float], now: float) -> None:
        self._readiness = Readiness(now, stall if stall is not None else float("inf"))
        self._redactor = Redactor()
        self._step: Dict[str, Any] = self._readiness.state  # the last one that was no failure
        self._fraction: Optional[float] = None
        self.last = ""

    @property
    def phase(self) -> str:
        return words(self._step)

    @property
    def share(self) -> Optional[float]:
        done, total = self._step["done"], self._step["total"]
        return float(done) / total if total else None

    def read(self, data: bytes, now: float) -> List[str]:
        """Take new bytes of the log in: the phases that began. Raises AgentError when it says that the start failed."""
        events = self._readiness.feed(data, now)
        said = _FRACTION.search(data)
        if said:
            self._fraction = float(said.group(1))
        lines = [line for line in data.replace(b"\r", b"\n").split(b"\n") if line.strip() and not _NOISE.search(line)]
        if lines:
            self.last = self._redactor.feed(lines[-1] + b"\n").decode("utf-8", "replace").strip()[:400]
        return self._follow(events)

    def look(self, now: float, memory: Optional[int], log: str) -> None:
        """Raises AgentError when neither the log nor GPU memory has grown for too long."""
        for event in self._readiness.tick(now, memory):
            also = ", no growth of GPU memory" if memory is not None else ""
            what = "the server stands still while %s: nothing new in %s%s for %g s" % (
                self.phase, log or "its log", also, event["stalled"] // 1,
            )  # fmt: skip
            last = "its last line: %s" % self.last if self.last else ""
            raise self.failure(what, last, stalled(self._step["phase"]), stalled=True)

    def ended(self) -> Optional[str]:
        """The process is gone: what it died of, as far as it said; with what to do about it."""
        self._follow([event for event in self._readiness.close() if event["phase"] != "failed"])
        error = self._readiness.error
        return None if error is None or error["message"] == NO_WORD else self._cause(error)

    def failure(self, what: str, *more: str, **fields: Any) -> AgentError:
        return AgentError("failed", "; ".join(text for text in (what, *more) if text), phase=self.phase, **fields)

    def told(self, waited: float, seen: str) -> str:
        """One line for people: where it is, for how long, and the last thing that was said."""
        step = self._step
        count = " %d/%d" % (step["done"], step["total"]) if step["total"] else ""
        return "%s%s (%.0f s): %s" % (self.phase, count, waited, (self.last or seen)[:_MOST_SHOWN])

    def _follow(self, events: List[Dict[str, Any]]) -> List[str]:
        begun = []
        for event in events:
            if event["phase"] == "failed":
                what = "the server gave up while %s" % self.phase
                raise self.failure("%s: %s" % (what, self._cause(event["error"])), died=True)
            if event["starts"] >= MOST_STARTS:
                raise self.failure("the server was started %d times in this wait: a crash loop" % event["starts"])
            if words(event) != self.phase:
                begun.append(words(event))
            self._step = event
        return begun

    def _cause(self, error: Dict[str, Any]) -> str:
        step = self._step
        todo = advice(error["kind"], error["message"], step["phase"], step["draft"], self._fraction)
        rank = " (%s)" % error["rank"] if error["rank"] else ""
        return "%s%s%s" % (error["message"], rank, "; " + todo if todo else "")


def wait(
    call: Context,
    port: int,
    host: str = "127.0.0.1",
    log: Optional[str] = None,
    offset: Optional[int] = None,
    timeout: float = 1200.0,
    stall: Optional[float] = STALL_SECONDS,
    alive: Optional[Alive] = None,
    begun: Optional[str] = None,
) -> Ready:
    """Wait until the server answers; give up when it dies, says that it failed, or stands still for `stall` seconds.

    begun: name under which `startlog.mark` kept where this start begins in the log; what is before it is not read.

    Reports {"text", "phase", "fraction", "waited"}; gives the time that it took.
    """
    began = reported = time.monotonic()
    said = startlog.source(call, log, offset, alive, cast("Optional[Begun]", load(call, begun)) if begun else None)
    start, watch = Start(stall, began), Watch(alive)
    asked, seen, memory, looked = 0.0, "", None, began
    phases: Dict[str, float] = {}
    try:
        while True:
            now = time.monotonic()
            waited = now - began
            if now - asked >= ASK:
                seen, asked = _health(call, host, port), time.monotonic()
            if seen == "ready":
                return {"seconds": round(time.monotonic() - began, 1), "phases": phases}
            for phase in start.read(said.read(), now):
                phases.setdefault(phase, round(waited, 1))
            _look(call, watch, start, said)
            if now - looked >= LOOK_AT_MEMORY:
                memory, looked = vram.in_use(call), now
            if said.name:
                start.look(time.monotonic(), memory, said.name)
            if call.cancelled():
                raise AgentError("failed", "cancelled after waiting %.0f s for the server" % waited)
            if waited >= timeout:
                text = "the server did not answer in %g s; it was %s; last seen: %s" % (timeout, start.phase, seen)
                raise AgentError("timeout", text, phase=start.phase)
            if now - reported >= REPORT:
                reported = now
                told = {"text": start.told(waited, seen), "phase": start.phase, "fraction": start.share}
                call.progress(dict(told, waited=round(waited, 1)))
            time.sleep(TICK)
    finally:
        said.close()


def _health(call: Context, host: str, port: int) -> str:
    try:
        answer = request(call, "http://%s:%d/health_generate" % (host, port), timeout=HEALTH_LIMIT, follow=False)
    except AgentError as error:
        return error.message
    return "ready" if answer.result["status"] == 200 else "status %d" % answer.result["status"]


def _look(call: Context, watch: Watch, start: Start, said: startlog.Said) -> None:
    try:
        watch.look(call)
    except AgentError as error:
        start.read(said.read(), time.monotonic())  # its last words may have come since
        cause = start.ended()
        what = "the server ended while %s: %s" % (start.phase, cause) if cause else error.message
        raise start.failure(what, **error.fields) from None


_OOM = re.compile(
    r"Tried to allocate (?P<tried>[\d.]+) (?P<tried_in>[KMG])iB.*?total capacity of (?P<all>[\d.]+) (?P<all_in>[MG])iB"
    r"(?: of which (?P<free>[\d.]+) (?P<free_in>[KMG])iB is free)?"
)
_UNITS = {"K": 1.0 / (1 << 20), "M": 1.0 / 1024, "G": 1.0}
_MARGIN = 0.02  # of a card: fragments, and what the next allocation wants
_USUAL_STEP = 0.05

_P2P = (
    "P2P between PCIe cards that IOMMU or ACS redirects makes NCCL hang: try NCCL_P2P_DISABLE=1 in the server's `env`, "
    "then iommu=pt, and `opsctl health`"
)
_TOO_BIG = (
    "the weights do not fit beside what is there: look for leftovers with `opsctl clean`; "
    "else more GPUs (--tp-size) or a smaller quantization"
)
BY_KIND: Dict[str, str] = {
    "not_enough_memory": "what is left for the KV cache is too little: raise --mem-fraction-static, or lower "
    "--context-length, --max-running-requests or --cuda-graph-max-bs",
    "port_in_use": "another process has the port: `opsctl server status` tells which servers run",
    "missing_method": "`opsctl patch sglang` adds what the target's class lacks",
    "index_out_of_range": "`opsctl drafter check` tells whether `d2t` leads out of the vocabulary",
    "nccl": _P2P,
    "nccl_timeout": _P2P,
    "watchdog": _P2P,
    "xid": "the driver reports a fault of a GPU: `opsctl health`",
    "host_out_of_memory": "the host ran out of memory: fewer loader threads, or more swap",
    "killed": "it was killed from outside: the kernel log tells whether for want of memory (`opsctl health`)",
    "shared_memory": "this SGLang was written for GPUs with more shared memory per block: upgrade it",
    "bad_arguments": "this SGLang does not know the flag: see `launch` of the host",
}


def advice(kind: str, message: str, phase: str, draft: bool, fraction: Optional[float]) -> str:
    """What to do about the first error; '' where nothing general can be said.

    phase, draft: as `readiness` has them, from before the failure. fraction: --mem-fraction-static in force.
    """
    if kind == "cuda_out_of_memory":
        return _out_of_memory(message, phase, draft, fraction)
    return BY_KIND.get(kind, "")


def stalled(phase: str) -> str:
    """What it means when a start stands still in a phase."""
    return _P2P if phase in ("init_distributed", "capture_graphs") else ""


def _out_of_memory(message: str, phase: str, draft: bool, fraction: Optional[float]) -> str:
    if phase in ("launch", "init_distributed", "load_weights") and not draft:
        return _TOO_BIG
    if fraction is None:
        return "lower --mem-fraction-static by 0.05"
    return "lower --mem-fraction-static from %.2f to %.2f" % (fraction, fraction - _step(message))


def _step(message: str) -> float:
    """By how much of a card the fraction must sink, in steps of 0.01."""
    found = _OOM.search(message)
    if not found:
        return _USUAL_STEP
    said = found.groupdict()
    tried = float(said["tried"]) * _UNITS[said["tried_in"]]
    free = float(said["free"] or 0) * _UNITS[said["free_in"] or "G"]
    total = float(said["all"]) * _UNITS[said["all_in"]]
    return math.ceil(100 * (max(0.0, tried - free) / total + _MARGIN)) / 100.0


CALLS = {"wait": wait}
