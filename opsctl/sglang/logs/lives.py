"""The lives of a server in its log: when each began, what it did on its way to readiness, and how it ended.

Pure: `follow` takes the marks of a log scan one by one, in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from opsctl.sglang.logs import log_formats
from opsctl.wire.calls.logs import Mark

_DRAFT = "_draft"


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of the way to readiness. seconds: of the slowest rank; None while it did not end."""

    name: str
    begin: str | None
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Start:
    """One life of the server. ended and end_reason are None while it runs (as far as the log tells).

    end_reason: stopped (told to), crashed (of itself), killed (from outside), vanished (the next start came without a
    word of the end of this one).
    """

    at: str | None
    flags: Mapping[str, Any]
    phases: tuple[Phase, ...]
    ready_at: str | None
    ended: str | None
    end_reason: str | None


@dataclass(slots=True)
class Span:
    """A phase of all ranks: from the first to begin it to the last to end it. elapsed: seconds, as the slowest says."""

    begin: str | None = None
    end: str | None = None
    elapsed: float | None = None
    open: int = 0  # ranks that are in it


@dataclass(slots=True)
class Life:
    """A start while its marks come in."""

    at: str | None
    flags: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    counts: dict[tuple[str | None, str], int] = field(default_factory=dict)
    last: dict[str | None, str | None] = field(default_factory=dict)  # rank -> when its last phase ended
    http_at: str | None = None
    stop_index: int | None = None  # of the mark that told it to stop
    ready_at: str | None = None
    ended: str | None = None
    end_reason: str | None = None

    def begin(self, name: str, at: str | None, rank: str | None) -> str:
        """The nth time that a rank begins a phase: the first is the target's, later ones the draft model's."""
        nth = self.counts[rank, name] = self.counts.get((rank, name), 0) + 1
        full = name + (_DRAFT if nth > 1 and not name.startswith("capture") else "")
        span = self.spans.setdefault(full, Span(begin=at))
        span.open += 1
        return full

    def end(self, name: str, at: str | None, rank: str | None, elapsed: float | None) -> None:
        """A rank ends the phase that it began last; one that the log does not show to begin began as it ended."""
        nth = self.counts.get((rank, name), 0)
        if not nth:
            name = self.begin(name, at, rank)
        else:
            name += _DRAFT if nth > 1 and not name.startswith("capture") else ""
        span = self.spans[name]
        span.open -= 1
        span.end = at if span.end is None or (at or "") > span.end else span.end
        if elapsed is not None:
            span.elapsed = max(elapsed, span.elapsed or 0.0)
        self.last[rank] = at

    def done(self) -> Start:
        """The life as it stands."""
        phases = tuple(Phase(name, span.begin, _length(span)) for name, span in self.spans.items())
        return Start(self.at, self.flags, phases, self.ready_at, self.ended, self.end_reason)


def follow(mark: Mark, lives: list[Life]) -> Life | None:
    """Add what a mark tells to the life it belongs to, which is the last; to a new one where it begins one."""
    life = _place(mark, lives)
    if life:
        _progress(mark, life)
    return life


def _place(mark: Mark, lives: list[Life]) -> Life | None:
    """The life that a mark belongs to; a new one where it begins one."""
    name, life = mark["name"], lives[-1] if lives else None
    if name == "start":
        flags = log_formats.flags(mark.get("args", ""))
        if life and not life.spans and not life.ended and life.flags in ({}, flags):
            life.flags = flags  # printed twice by one process
            return life
        if life and life.ended is None:
            life.ended, life.end_reason = mark.get("before"), "vanished"
        lives.append(Life(mark["at"], flags))
    elif name in ("distributed_begin", "load_begin") and (life is None or life.ended or life.ready_at):
        if life and life.ended is None:
            life.ended, life.end_reason = mark["at"], "vanished"
        lives.append(Life(mark["at"]))
    elif name == "ready" and life is None:
        lives.append(Life(None))
    return lives[-1] if lives else None


def _progress(mark: Mark, life: Life) -> None:
    name, at, rank = mark["name"], mark["at"], mark["rank"]
    elapsed = float(mark["elapsed"]) if "elapsed" in mark else None
    if name == "distributed_begin":
        if "launch" not in life.spans and life.flags:
            life.spans["launch"] = Span(life.at, at)
        life.begin("init_distributed", at, rank)
    elif name == "distributed_end":
        life.end("init_distributed", at, rank, elapsed)
    elif name == "load_begin":
        life.begin("load_weights", at, rank)
    elif name == "load_end":
        life.end("load_weights", at, rank, elapsed)
    elif name == "pool_end":
        life.begin("memory_pool", life.last.get(rank, at), rank)
        life.end("memory_pool", at, rank, None)
    elif name == "graph_begin":
        life.begin(_graph(mark), at, rank)
    elif name == "graph_end":
        life.end(_graph(mark), at, rank, elapsed)
    elif name == "http_started":
        life.http_at = life.http_at or at
    elif name == "ready" and life.ready_at is None:
        life.ready_at = at
        life.spans["warmup"] = Span(life.http_at or at, at)
    elif name in ("sigterm", "interrupt", "drained", "http_finished") or _interrupted(mark):
        if life.end_reason in (None, "stopped"):
            life.ended, life.end_reason = at, "stopped"
    elif name == "child_failed" and life.end_reason is None:
        life.ended, life.end_reason = at, "crashed"


def _interrupted(mark: Mark) -> bool:
    return mark["name"] == "exception" and any(e.startswith("KeyboardInterrupt") for e in mark["errors"])


def _graph(mark: Mark) -> str:
    return "_".join(["capture_graphs", *mark.get("what", "").lower().split()])


def _length(span: Span) -> float | None:
    if span.open > 0:
        return None
    if span.elapsed is not None:
        return span.elapsed
    return between(span.begin, span.end)


def between(begin: str | None, end: str | None) -> float | None:
    """Seconds from one time to another; None where the clock was set back in between."""
    if not begin or not end:
        return None
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    return round(seconds, 3) if seconds >= 0 else None
