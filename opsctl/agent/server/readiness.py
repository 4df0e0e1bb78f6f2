"""How far a starting server has come, from its log as it grows. Pure: bytes and times in, events out.

    readiness = Readiness(now=time.monotonic())
    for event in readiness.feed(new_bytes, now):    # {"phase": "load_weights", "done": 3, "total": 64, "draft": False}
        ...
    readiness.tick(now, memory=used_bytes)          # [] or [{"phase": ..., "stalled": seconds}]
    readiness.state                                 # the same as data, at any time

Phases in the order they come: launch, init_distributed, load_weights, memory_pool, capture_graphs, warmup, ready; and
failed, from which only a new start (`server_args=`) leads out. The log says ready before a token was generated: that
is for the caller to check.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from opsctl.wire import log_patterns as patterns
from opsctl.wire.log_lines import Learnt, Traces, unwrap
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Mark

STALL_SECONDS = 180.0  # no line and no growth of GPU memory for so long: a hang (NCCL, a stuck loader)
NO_WORD = "a process of the server failed"  # the error where the log has none
MOST_LINE = 1 << 20
MOST_TEXT = 400
PHASES = ("launch", "init_distributed", "load_weights", "memory_pool", "capture_graphs", "warmup", "ready", "failed")

# For people; of the draft model's own steps too.
_WORDS = {
    "launch": "starting",
    "init_distributed": "starting workers",
    "load_weights": "loading weights",
    "memory_pool": "allocating the KV cache",
    "capture_graphs": "capturing CUDA graphs",
    "warmup": "warming up",
    "ready": "ready",
    "failed": "failed",
}
# The server's note of somebody asking whether it is well: no sign that it comes on.
OWN_QUESTION = b'"GET /health'
_ASKED = re.compile(rb'(?:[^\n]*"GET /health[^\n]*\n)+\Z')

# tqdm: "Loading safetensors checkpoint shards:  50% Completed | 32/64 [01:10<01:10,  2.19s/it]" and
# "Capturing batches (bs=4 avail_mem=34.91 GB):  33%|###3      | 1/3 [00:10<00:20, 10.41s/it]"
_BAR = re.compile(rb"\d%[^|\r\n]{0,400}\|(?:[^|\r\n]{0,400}\|)?[ ]*(?P<done>\d{1,9})/(?P<total>\d{1,9}) \[")
_BAR_REACH = 4096  # bytes at the end of a line where its last bar is looked for
_ENDS_WITHOUT_WORD = {
    "xid",
    "host_out_of_memory",
    "killed",
    "segfault",
    "bad_arguments",
    "port_in_use",
    "nccl_timeout",
}
_PHASE_OF = {
    "start": "launch",
    "distributed_begin": "init_distributed",
    "load_begin": "load_weights",
    "load_end": "memory_pool",
    "graph_begin": "capture_graphs",
    "limits": "warmup",
    "ready": "ready",
}


def words(state: Dict[str, Any]) -> str:
    """A state's phase as people say it: "loading weights of the draft model"."""
    its = " of the draft model" if state["draft"] and state["phase"] in ("load_weights", "capture_graphs") else ""
    return _WORDS[state["phase"]] + its


class Readiness:
    """The state of one start; a restart in the same log begins it anew.

    Args:
        now: the caller's clock in seconds, any origin.
        stall_after: seconds without a sign of life that count as a stall.
    """

    def __init__(self, now: float = 0.0, stall_after: float = STALL_SECONDS) -> None:
        self._redactor, self._learnt = Redactor(), Learnt()
        self._stall_after = stall_after
        self._rest = b""
        self._alive = now  # when there was a sign of life
        self._memory: Optional[float] = None
        self._told_stall = False
        self.starts = 0
        self._begin()

    def _begin(self) -> None:
        self.phase, self.done, self.total, self.draft = "launch", 0, 0, False
        self.at: Optional[str] = None  # the log's own time of the last step
        self.error: Optional[Dict[str, Any]] = None
        self._loads: Dict[bytes, int] = {}  # rank -> how often it began to load: first the target, then the draft model
        self._exceptions: List[Mark] = []
        self._traces = Traces(self._exceptions.append, self._safe)
        self._suspect: Optional[Dict[str, Any]] = None

    @property
    def ready(self) -> bool:
        return self.phase == "ready"

    @property
    def failed(self) -> bool:
        return self.phase == "failed"

    @property
    def state(self) -> Dict[str, Any]:
        """phase, draft (it is about the draft model), done and total (0 where unknown), at, starts, error."""
        return {
            "phase": self.phase,
            "draft": self.draft,
            "done": self.done,
            "total": self.total,
            "at": self.at,
            "starts": self.starts,
            "error": self.error,
        }

    def feed(self, data: bytes, now: float = 0.0) -> List[Dict[str, Any]]:
        """Take new bytes of the log: a list of what changed, as states."""
        if data and not _ASKED.match(data):
            self._alive, self._told_stall = now, False
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()[-MOST_LINE:]
        events: List[Dict[str, Any]] = []
        for line in lines:
            self._line(line, events)
        self._bar(self._rest, events)  # a progress bar has no line end until it is full
        return events

    def tick(self, now: float, memory: Optional[float] = None) -> List[Dict[str, Any]]:
        """Time passes: the state with `stalled` seconds, once, if neither the log nor `memory` grew for too long."""
        if memory is not None and (self._memory is None or memory > self._memory):
            self._alive, self._told_stall = now, False
        self._memory = memory if memory is not None else self._memory
        quiet = now - self._alive
        if self.ready or self.failed or self._told_stall or quiet < self._stall_after:
            return []
        self._told_stall = True
        return [{**self.state, "stalled": quiet}]

    def _line(self, line: bytes, events: List[Dict[str, Any]]) -> None:
        self._bar(line, events)
        for entry in unwrap(line, self._learnt):
            found = patterns.PREFIX.match(entry.text)
            if not found:
                if not self._traces.line(entry.text, self.at, b""):
                    self._message(entry.text, b"", events)
                continue
            self._traces.interrupted()
            self.at, rank = found.group(1).decode(), found.group(2).strip()
            message = entry.text[found.end() :].rstrip()
            if message.endswith(patterns.TRACEBACK):
                head = message[: -len(patterns.TRACEBACK)].strip(b" :")
                self._traces.begin(self.at, rank.decode(), head)
            else:
                self._message(message, rank, events)

    def _message(self, message: bytes, rank: bytes, events: List[Dict[str, Any]]) -> None:
        if message.startswith((b"Receive:", b"Receive OpenAI:", b"Finish: ")):
            return  # what a user wrote
        for mark in patterns.BY_HEAD.get(message[:4], ()):
            found = mark.pattern.match(message)
            if found:
                self._step(mark.name, rank, message, events)
                return
        if patterns.GATE.search(message):
            kind = "watchdog" if patterns.MARKS["watchdog"].pattern.match(message) else patterns.problem(message)
            if kind:
                self._trouble(kind, rank, message, events)

    def _step(self, name: str, rank: bytes, message: bytes, events: List[Dict[str, Any]]) -> None:
        if name == "start":
            at = self.at
            self._begin()
            self.at, self.starts = at, self.starts + 1
        if name == "load_begin":
            self._loads[rank] = self._loads.get(rank, 0) + 1
            self.draft = max(self._loads.values()) > 1
        if name in ("child_failed", "warmup_failed"):
            self._fail(events)
        elif name == "watchdog":
            self._trouble("watchdog", rank, message, events)
        elif name in _PHASE_OF and not self.failed:
            self._move(_PHASE_OF[name], events)
            self._suspect = None  # it went on

    def _move(self, phase: str, events: List[Dict[str, Any]]) -> None:
        """A phase begins. Ranks run apart, so only the draft model leads back to an earlier one."""
        behind = PHASES.index(phase) < PHASES.index(self.phase)
        if (phase == self.phase and phase != "launch") or (behind and not (self.draft or self.phase == "memory_pool")):
            return
        self.phase, self.done, self.total = phase, 0, 0
        events.append(self.state)

    def _bar(self, text: bytes, events: List[Dict[str, Any]]) -> None:
        if b"%" not in text or self.phase not in ("load_weights", "capture_graphs"):
            return
        bars = _BAR.findall(text[-_BAR_REACH:])
        if not bars:
            return
        done, total = int(bars[-1][0]), int(bars[-1][1])
        if total and (total != self.total or done > self.done):
            self.done, self.total = done, total
            events.append(self.state)

    def _trouble(self, kind: str, rank: bytes, message: bytes, events: List[Dict[str, Any]]) -> None:
        if kind == "watchdog" and b"soft=True" in message:
            return  # it only tells, and ends nothing
        error = {"kind": kind, "message": self._safe(message), "rank": rank.decode() or None, "at": self.at}
        self._suspect = self._suspect or error
        if (kind in _ENDS_WITHOUT_WORD or kind == "watchdog") and not self.ready:
            self._fail(events)

    def _fail(self, events: List[Dict[str, Any]]) -> None:
        """A process of the server died; what it said first is the error."""
        if self.failed:
            return
        deadly = [e for e in self._exceptions if e["errors"] and e["head"].endswith("hit an exception")]
        others = [e for e in self._exceptions if e["errors"] and "ASGI" not in e["head"]]
        chosen = deadly[0] if deadly else others[-1] if others else None
        error = self._suspect
        if chosen is not None and (error is None or error["kind"] not in _ENDS_WITHOUT_WORD):
            error = {
                "kind": chosen["kind"] or "exception",
                "message": chosen["errors"][-1],
                "rank": chosen["rank"],
                "at": chosen["at"],
            }
        self.error = error or {
            "kind": "exception",
            "message": NO_WORD,
            "rank": None,
            "at": self.at,
        }
        self.phase, self.done, self.total = "failed", 0, 0
        events.append(self.state)

    def close(self) -> List[Dict[str, Any]]:
        """The process is gone: if it was not ready and said nothing deadly, what it said last is the error."""
        events: List[Dict[str, Any]] = []
        if self._rest:
            self._line(self._rest, events)
            self._rest = b""
        self._fail(events)
        return events

    def _safe(self, text: bytes) -> str:
        return self._redactor.feed(text.replace(b"\n", b" ") + b"\n").decode("utf-8", "replace").rstrip()[:MOST_TEXT]
