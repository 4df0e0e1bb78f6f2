"""What happened, when: the marks of a log scan put in order. Pure: plain data in, plain data out.

`build(scan)` takes what `opsctl.agent.serverlog` gives; `document(summary)` is the JSON of `opsctl logs summary`.
Times are the log's own text: the host's local time, as SGLang writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from opsctl.sglang import log_formats
from opsctl.sglang.log_blame import Blamed, Candidate, blame, candidate

MOST_EVENTS = 400
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


@dataclass(frozen=True, slots=True)
class Event:
    at: str | None
    kind: str
    message: str
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    version: str | None
    starts: tuple[Start, ...]
    decode: Mapping[str, Any]
    first_error: Blamed | None
    events: tuple[Event, ...]
    ranks: Mapping[str, Any]
    log: Mapping[str, Any]


@dataclass(slots=True)
class _Span:
    begin: str | None = None
    end: str | None = None
    elapsed: float | None = None
    open: int = 0


@dataclass(slots=True)
class _Life:
    """A start while its marks come in."""

    at: str | None
    flags: dict[str, Any] = field(default_factory=dict)
    spans: dict[str, _Span] = field(default_factory=dict)
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
        span = self.spans.setdefault(full, _Span(begin=at))
        span.open += 1
        return full

    def end(self, name: str, at: str | None, rank: str | None, elapsed: float | None) -> None:
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
        phases = tuple(Phase(name, span.begin, _length(span)) for name, span in self.spans.items())
        return Start(self.at, self.flags, phases, self.ready_at, self.ended, self.end_reason)


def build(scan: Mapping[str, Any]) -> Summary:
    """The timeline of one log."""
    lives: list[_Life] = []
    candidates: list[Candidate] = []
    events: list[Event] = []
    for index, mark in enumerate(_dated(scan["marks"])):
        life = _place(mark, lives)
        _progress(mark, life)
        if life and life.stop_index is None and life.end_reason == "stopped":
            life.stop_index = index
        found = candidate(mark, index, len(lives) - 1, life.ready_at if life else None)
        if found:
            candidates.append(found)
        stopping = life is not None and life.end_reason == "stopped"
        event = None if stopping and mark["name"] == "child_failed" else _event(mark, found)
        if event:
            _add(events, event)
    confirmed = _confirm(candidates, lives, scan["marks"])
    for one in confirmed:
        _end_by(one, lives)
    flags: Mapping[str, Any] = next((life.flags for life in reversed(lives) if life.flags), {})
    events.extend(_crash_loop(lives))
    return Summary(
        version=log_formats.version(flags, scan["samples"]),
        starts=tuple(life.done() for life in lives),
        decode=scan["decode"],
        first_error=blame(confirmed),
        events=tuple(events[:MOST_EVENTS]),
        ranks=scan["ranks"],
        log={key: scan.get(key) for key in ("first_at", "last_at", "lines", "bytes", "dropped_marks")},
    )


def document(summary: Summary) -> dict[str, Any]:
    """The summary as the machine interface has it."""
    decode = summary.decode
    accept, throughput = decode["accept_length"] or {}, decode["throughput"] or {}
    error = summary.first_error
    return {
        "version": summary.version,
        "starts": [
            {
                "at": start.at,
                "flags": dict(start.flags),
                "phases": [{"name": p.name, "begin": p.begin, "seconds": p.seconds} for p in start.phases],
                "ready_at": start.ready_at,
                "ended": start.ended,
                "end_reason": start.end_reason,
            }
            for start in summary.starts
        ],
        "decode": {
            "lines": decode["lines"],
            "accept_length": {key: accept.get(key) for key in ("mean", "last", "min", "max")},
            "last_accept_rate": decode["last_accept_rate"],
            "throughput": {key: throughput.get(key) for key in ("mean", "max")},
            "bucket_seconds": decode["bucket_seconds"],
            "series": series(decode),
        },
        "first_error": error.document() if error else None,
        "events": [{"at": e.at, "kind": e.kind, "message": e.message, "rank": e.rank} for e in summary.events],
        "ranks": dict(summary.ranks),
        "log": dict(summary.log),
    }


def series(decode: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Acceptance and throughput over time, to plot: {at, lines, accept, throughput} per bucket of `bucket_seconds`."""
    epoch = datetime(1970, 1, 1)
    return [{**point, "at": str(epoch + timedelta(seconds=point["at"]))} for point in decode["series"]]


_END = {"exception", "child_failed", "child_exit", "watchdog"}


def _dated(marks: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A line without a time of its own, just before the end of a process, has the time of that end."""
    dated: list[Mapping[str, Any]] = []
    later: Mapping[str, Any] | None = None
    for mark in reversed(marks):
        if mark.get("loose") and later is not None and (later["name"] in _END or later.get("dated")):
            mark = {**mark, "at": later["at"], "dated": True}
        dated.append(mark)
        later = mark
    return dated[::-1]


def _place(mark: Mapping[str, Any], lives: list[_Life]) -> _Life | None:
    """The life that a mark belongs to; a new one where it begins one."""
    name, life = mark["name"], lives[-1] if lives else None
    if name == "start":
        flags = log_formats.flags(mark.get("args", ""))
        if life and not life.spans and not life.ended and life.flags in ({}, flags):
            life.flags = flags  # printed twice by one process
            return life
        if life and life.ended is None:
            life.ended, life.end_reason = mark.get("before"), "vanished"
        lives.append(_Life(mark["at"], flags))
    elif name in ("distributed_begin", "load_begin") and (life is None or life.ended or life.ready_at):
        if life and life.ended is None:
            life.ended, life.end_reason = mark["at"], "vanished"
        lives.append(_Life(mark["at"]))
    elif name == "ready" and life is None:
        lives.append(_Life(None))
    return lives[-1] if lives else None


def _progress(mark: Mapping[str, Any], life: _Life | None) -> None:
    if life is None:
        return
    name, at, rank = mark["name"], mark["at"], mark["rank"]
    elapsed = float(mark["elapsed"]) if "elapsed" in mark else None
    if name == "distributed_begin":
        if "launch" not in life.spans and life.flags:
            life.spans["launch"] = _Span(life.at, at)
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
        life.spans["warmup"] = _Span(life.http_at or at, at)
    elif name in ("sigterm", "interrupt", "drained", "http_finished") or _interrupted(mark):
        if life.end_reason in (None, "stopped"):
            life.ended, life.end_reason = at, "stopped"
    elif name == "child_failed" and life.end_reason is None:
        life.ended, life.end_reason = at, "crashed"


def _interrupted(mark: Mapping[str, Any]) -> bool:
    return mark["name"] == "exception" and any(e.startswith("KeyboardInterrupt") for e in mark["errors"])


def _graph(mark: Mapping[str, Any]) -> str:
    return "_".join(["capture_graphs", *mark.get("what", "").lower().split()])


def _length(span: _Span) -> float | None:
    if span.open > 0:
        return None
    if span.elapsed is not None:
        return span.elapsed
    return _between(span.begin, span.end)


def _between(begin: str | None, end: str | None) -> float | None:
    """Seconds from one time to another; None where the clock was set back in between."""
    if not begin or not end:
        return None
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    return round(seconds, 3) if seconds >= 0 else None


_STEPS = {"distributed_begin", "load_begin", "load_end", "pool_end", "graph_begin", "graph_end", "limits", "ready"}
_SOON = 60.0  # seconds from an error to the end that it explains


def _confirm(
    candidates: Sequence[Candidate], lives: Sequence[_Life], marks: Sequence[Mapping[str, Any]]
) -> list[Candidate]:
    """The candidates that cost the server its life: deadly by themselves, or followed by nothing but the end."""
    steps = [index for index, mark in enumerate(marks) if mark["name"] in _STEPS]
    next_start = [index for index, mark in enumerate(marks) if mark["name"] == "start"]
    kept = []
    for one in candidates:
        life = lives[one.life] if one.life >= 0 else None
        told_to_stop = life is not None and life.stop_index is not None and one.index >= life.stop_index
        if one.harmless or told_to_stop:
            continue
        horizon = next((i for i in next_start if i > one.index), len(marks))
        went_on = any(one.index < i < horizon for i in steps)
        if one.deadly or (not one.after_ready and not went_on) or (life is not None and _ended_soon(one, life)):
            kept.append(one)
    return kept


def _ended_soon(one: Candidate, life: _Life) -> bool:
    gap = _between(one.at, life.ended)
    return life.end_reason in ("crashed", "killed") and gap is not None and gap <= _SOON


def _end_by(one: Candidate, lives: Sequence[_Life]) -> None:
    """An error that ends a process ends the life it happened in, where the log does not say so itself."""
    if one.life < 0:
        return
    life = lives[one.life]
    violent = one.kind in ("killed", "host_out_of_memory")
    if life.end_reason in (None, "vanished") and (violent or one.kind not in ("xid",)):
        life.ended, life.end_reason = life.ended if life.end_reason else one.at, "killed" if violent else "crashed"


def _event(mark: Mapping[str, Any], found: Candidate | None) -> Event | None:
    name, at, rank = mark["name"], mark["at"], mark["rank"]
    if found:
        kind = "request_error" if found.harmless else found.kind
        return Event(at, kind, found.message, rank)
    texts = {
        "start": ("start", "server started"),
        "ready": ("ready", "ready to serve"),
        "sigterm": ("stop", "SIGTERM received"),
        "interrupt": ("stop", "interrupted"),
        "drained": ("stop", f"exiting with {mark.get('left')} requests left"),
        "child_failed": ("stop", "a process of the server failed; the rest is ended"),
        "retract": ("retract", "KV cache full: requests sent back to the queue"),
        "clock_jump": ("clock_jump", f"the clock went back by {-mark.get('seconds', 0)} s"),
        "limits": ("limits", f"room for {mark.get('tokens')} tokens, context length {mark.get('context')}"),
    }
    if name in ("load_end",):
        return Event(at, "loaded", f"{mark.get('type')} loaded", rank)
    return Event(at, *texts[name], rank) if name in texts else None


def _add(events: list[Event], event: Event) -> None:
    """Several ranks, or one again and again, saying the same are one event."""
    for earlier in reversed(events[-64:]):
        if (earlier.kind, earlier.message) == (event.kind, event.message):
            if event.kind in ("start", "ready", "stop"):
                break
            return
    events.append(event)


def _crash_loop(lives: Sequence[_Life]) -> list[Event]:
    """Three starts in a row that ended before they were ready."""
    failed = 0
    for life in reversed(lives):
        if life.ready_at or life.ended is None or life.end_reason == "stopped":
            break
        failed += 1
    return (
        [Event(lives[-1].ended, "crash_loop", f"the last {failed} starts ended before they were ready")]
        if failed >= 3
        else []
    )
