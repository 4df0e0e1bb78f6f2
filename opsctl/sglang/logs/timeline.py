"""What happened, when: the marks of a log scan put in order. Pure: plain data in, plain data out.

`build(scan)` takes the scan of a log; `document(summary)` is the JSON of `opsctl logs summary`.
Times are the log's own text: the host's local time, as SGLang writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from opsctl import this_machine
from opsctl.sglang.logs import log_formats
from opsctl.sglang.logs.blame import Blamed, Candidate, blame, candidate
from opsctl.sglang.logs.lives import Life, Start, between, follow
from opsctl.wire.calls.logs import Decode, Mark, Rank, Scan, serverlog_scan

MOST_EVENTS = 400


@dataclass(frozen=True, slots=True)
class Event:
    at: str | None
    kind: str
    message: str
    rank: str | None = None


@dataclass(frozen=True, slots=True)
class Summary:
    """of_sglang: whether anything in the log is SGLang's."""

    version: str | None
    of_sglang: bool
    starts: tuple[Start, ...]
    decode: Decode
    sequences: int
    first_error: Blamed | None
    events: tuple[Event, ...]
    ranks: Mapping[str, Rank]
    log: Mapping[str, Any]


def scan_files(paths: Sequence[Path], offset: int = 0) -> Scan:
    """Scan files of this machine in their order, oldest first, as one log; the last from `offset` on.

    Raises AgentError: not-found, permission, invalid, missing-tool.
    """
    *older, newest = map(str, paths)
    return this_machine.call(serverlog_scan(newest, offset, older=older)).result


def build(scan: Scan, *, current: bool = False) -> Summary:
    """The timeline of one log. current: blame nothing but an error of the last start; an earlier one's is an event."""
    lives: list[Life] = []
    candidates: list[Candidate] = []
    events: list[Event] = []
    retracts: list[Mark] = []
    for index, mark in enumerate(_dated(scan["marks"])):
        life = follow(mark, lives)
        if life and life.stop_index is None and life.end_reason == "stopped":
            life.stop_index = index
        found = candidate(mark, index, len(lives) - 1, life.ready_at if life else None)
        if found:
            candidates.append(found)
        stopping = life is not None and life.end_reason == "stopped"
        event = None if stopping and mark["name"] == "child_failed" else _event(mark, found)
        if mark["name"] == "retract":
            retracts.append(mark)
            event = event if len(retracts) == 1 else None
        if event:
            _add(events, event)
    confirmed = _confirm(candidates, lives, scan["marks"])
    for one in confirmed:
        _end_by(one, lives)
    flags: Mapping[str, Any] = next((life.flags for life in reversed(lives) if life.flags), {})
    events = [replace(e, message=_retracted(retracts)) if e.kind == "retract" else e for e in events]
    events.extend(_crash_loop(lives))
    sglangs = scan["lines"] == 0 or _of_sglang(scan)
    return Summary(
        version=log_formats.version(flags, scan["samples"]),
        starts=tuple(life.done() for life in lives),
        decode=scan["decode"],
        sequences=scan["sequences"],
        of_sglang=sglangs,
        first_error=blame([one for one in confirmed if sglangs and (not current or one.life == len(lives) - 1)]),
        events=tuple(events[:MOST_EVENTS]),
        ranks=scan["ranks"],
        log={key: scan.get(key) for key in ("first_at", "last_at", "lines", "bytes", "dropped_marks")},
    )


def document(summary: Summary) -> dict[str, Any]:
    """The summary as the machine interface has it."""
    decode = summary.decode
    accept: Mapping[str, Any] = decode["accept_length"] or {}
    throughput: Mapping[str, Any] = decode["throughput"] or {}
    error = summary.first_error
    return {
        "version": summary.version,
        "of_sglang": summary.of_sglang,
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


def series(decode: Decode) -> list[dict[str, Any]]:
    """Acceptance and throughput over time, to plot: {at, lines, accept, throughput} per bucket of `bucket_seconds`."""
    epoch = datetime(1970, 1, 1)
    return [{**point, "at": str(epoch + timedelta(seconds=point["at"]))} for point in decode["series"]]


def _of_sglang(scan: Scan) -> bool:
    """Whether a log has a line with SGLang's time stamp, one of its messages, or a frame of its code."""
    common = ("exception", "problem", "clock_jump")
    return scan["first_at"] is not None or any(
        mark["name"] not in common
        or mark.get("kind") == "bad_arguments"
        or (mark.get("where") or "").startswith("sglang/")
        for mark in scan["marks"]
    )


def _retracted(marks: Sequence[Mark]) -> str:
    """What the lines of retraction say together."""
    requests = sum(int(mark.get("requests", 0)) for mark in marks)
    many = f": {requests} requests sent back to the queue" if requests else ": requests sent back to the queue"
    return f"KV cache full {len(marks)} time{'s' * (len(marks) > 1)}, from {marks[0]['at']} to {marks[-1]['at']}{many}"


_END = {"exception", "child_failed", "child_exit", "watchdog"}


def _dated(marks: Sequence[Mark]) -> list[Mark]:
    """A line without a time of its own, just before the end of a process, has the time of that end."""
    dated: list[Mark] = []
    end: Mark | None = None  # what follows is an end, or such a line before one
    for mark in reversed(marks):
        if mark.get("loose") and end is not None:
            mark = {**mark, "at": end["at"]}
        else:
            end = mark if mark["name"] in _END else None
        dated.append(mark)
    return dated[::-1]


_STEPS = {"distributed_begin", "load_begin", "load_end", "pool_end", "graph_begin", "graph_end", "limits", "ready"}
_SOON = 60.0  # seconds from an error to the end that it explains


def _confirm(candidates: Sequence[Candidate], lives: Sequence[Life], marks: Sequence[Mark]) -> list[Candidate]:
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


def _ended_soon(one: Candidate, life: Life) -> bool:
    gap = between(one.at, life.ended)
    return life.end_reason in ("crashed", "killed") and gap is not None and gap <= _SOON


def _end_by(one: Candidate, lives: Sequence[Life]) -> None:
    """An error that ends a process ends the life it happened in, where the log does not say so itself."""
    if one.life < 0:
        return
    life = lives[one.life]
    violent = one.kind in ("killed", "host_out_of_memory")
    if life.end_reason in (None, "vanished") and (violent or one.kind not in ("xid",)):
        life.ended, life.end_reason = life.ended if life.end_reason else one.at, "killed" if violent else "crashed"


def _event(mark: Mark, found: Candidate | None) -> Event | None:
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


def _crash_loop(lives: Sequence[Life]) -> list[Event]:
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
