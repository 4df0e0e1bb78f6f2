"""A log's timeline as text for a terminal: plain lines, the same when piped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from opsctl.sglang.logs.lives import Start
from opsctl.sglang.logs.timeline import Summary
from opsctl.text import duration, one_line, size

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 60
_SHOWN_FLAGS = (
    "model_path",
    "tp_size",
    "dp_size",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "mem_fraction_static",
    "context_length",
    "attention_backend",
    "quantization",
)
_SHOWN_EVENTS = 20


def lines(summary: Summary) -> Iterator[str]:
    """The timeline, line by line."""
    log = summary.log
    version = summary.version or "of a version that cannot be told"
    amount = f"{log['lines']} lines ({size(log['bytes'])})"
    yield f"SGLang {version}, {amount}, {log['first_at'] or '?'} to {log['last_at'] or '?'}"
    if not summary.of_sglang:
        yield "nothing in this log is SGLang's: it is another program's, and was not judged"
        return
    for number, start in enumerate(summary.starts, 1):
        yield ""
        yield from _start(number, start)
    if not summary.starts:
        yield "no start of a server in this log"
    yield from _decode(summary.decode)
    yield from _ranks(summary.ranks)
    yield from _events(summary)
    yield from _error(summary)


def sparkline(values: Sequence[float], width: int = _WIDTH) -> str:
    """Values as one line of bars from 0 to their greatest; many are averaged into `width` columns."""
    if not values:
        return ""
    columns = [
        values[len(values) * i // width : len(values) * (i + 1) // width] for i in range(min(width, len(values)))
    ]
    if len(values) < width:
        columns = [[value] for value in values]
    means = [sum(column) / len(column) for column in columns if column]
    top = max(means) or 1.0
    return "".join(_BARS[min(len(_BARS) - 1, int(mean / top * len(_BARS)))] for mean in means)


def _start(number: int, start: Start) -> Iterator[str]:
    yield f"start {number}: {start.at or 'before this log begins'}"
    flags = [f"{name}={start.flags[name]}" for name in _SHOWN_FLAGS if start.flags.get(name) not in (None, "")]
    for i in range(0, len(flags), 4):
        yield f"  {one_line('  '.join(flags[i : i + 4]), 160)}"
    for phase in start.phases:
        took = "did not end" if phase.seconds is None else duration(phase.seconds)
        yield f"  {_clock(phase.begin):>8}  {phase.name:<32} {took}"
    if start.ready_at:
        yield f"  {_clock(start.ready_at):>8}  ready{_after(start.at, start.ready_at)}"
    else:
        yield "            never ready"
    if start.ended:
        yield f"  {_clock(start.ended):>8}  {start.end_reason}"


def _decode(decode: Mapping[str, Any]) -> Iterator[str]:
    yield ""
    if not decode["lines"]:
        yield "no Decode lines"
        return
    throughput, accept = decode["throughput"], decode["accept_length"]
    yield f"decode: {decode['lines']} lines"
    yield f"  throughput    mean {throughput['mean']:.2f}, max {throughput['max']:.2f} token/s"
    yield f"                {sparkline([p['throughput'] for p in decode['series']])}"
    if accept:
        figures = ", ".join(f"{key} {accept[key]:.2f}" for key in ("mean", "min", "max", "last"))
        yield f"  accept length {figures}"
        yield f"                {sparkline([p['accept'] for p in decode['series'] if p['accept'] is not None])}"
    else:
        yield "  no accept length: the server does not speculate"


def _ranks(ranks: Mapping[str, Any]) -> Iterator[str]:
    if not ranks:
        return
    yield ""
    yield "last word of each rank:"
    for rank, seen in sorted(ranks.items(), key=lambda item: _by_number(item[0])):
        yield f"  {rank:<8} {_clock(seen['last_at'])}  {one_line(seen['last'], 100)}"


def _events(summary: Summary) -> Iterator[str]:
    told = [e for e in summary.events if e.kind not in ("start", "ready", "stop", "loaded", "limits")]
    if not told:
        return
    yield ""
    yield "events:"
    for event in told[:_SHOWN_EVENTS]:
        rank = f" {event.rank}" if event.rank else ""
        yield f"  {event.at or '?'}{rank}  {event.kind}: {one_line(event.message, 140)}"
    if len(told) > _SHOWN_EVENTS:
        yield f"  and {len(told) - _SHOWN_EVENTS} more (--json has them)"


def _error(summary: Summary) -> Iterator[str]:
    yield ""
    error = summary.first_error
    if error is None:
        yield "no error that cost the server its life"
        return
    rank = f" on {error.rank}" if error.rank else ""
    yield f"first error: {error.at or '?'}{rank}: {one_line(error.message, 300)}"
    if error.where:
        yield f"  at {one_line(error.where)}"
    for step in error.chain[:-1]:
        yield f"  before it: {one_line(step)}"
    if error.cause:
        yield f"  → {one_line(error.cause, 400)}"


def _clock(at: str | None) -> str:
    return at[11:19] if at else "?"


def _after(begin: str | None, end: str) -> str:
    if begin is None:
        return ""
    seconds = (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    return f" after {duration(seconds)}" if seconds >= 0 else ""


def _by_number(rank: str) -> tuple[tuple[str, int], ...]:
    return tuple((word.rstrip("0123456789"), int(word[len(word.rstrip("0123456789")) :] or 0)) for word in rank.split())
