"""Which of the errors in a log came first, and why it happened.

One process dies, the others report that it is gone, the parent reports that a child failed, and systemd that the
service did. All of them write to one log within seconds and not always in that order. What counts is the earliest error
that is not the echo of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from opsctl.sglang.logs.log_errors import DEADLY_HEAD, HARMLESS_HEADS, TROUBLES
from opsctl.wire.calls.logs import Mark

_ECHO_SECONDS = 30.0  # how long before its cause an echo can be written


@dataclass(frozen=True, slots=True)
class Candidate:
    """An error as one mark of the scan tells it.

    Args:
        index: of the mark.
        life: index of the start it happened in, -1 before any.
        message: the last exception of the chain, or the line.
        chain: exceptions of the chain, the root first.
        deadly: it ends a process whatever follows.
        harmless: it cost one request, or nothing.
        after_ready: it happened while the server served.
    """

    index: int
    life: int
    at: str | None
    rank: str | None
    kind: str
    message: str
    chain: tuple[str, ...]
    where: str | None
    deadly: bool
    harmless: bool
    after_ready: bool


@dataclass(frozen=True, slots=True)
class Blamed:
    """The first error. cause: what is behind it, in a sentence, or None where nothing is known of it."""

    at: str | None
    rank: str | None
    kind: str
    message: str
    cause: str | None
    chain: tuple[str, ...]
    where: str | None

    def document(self) -> dict[str, Any]:
        return {
            "at": self.at,
            "rank": self.rank,
            "kind": self.kind,
            "message": self.message,
            "cause": self.cause,
            "chain": list(self.chain),
            "where": self.where,
        }


def candidate(mark: Mark, index: int, life: int, ready_at: str | None) -> Candidate | None:
    """The error that a mark tells of, if it does."""
    name, head = mark["name"], mark.get("head", "")
    chain: tuple[str, ...] = ()
    deadly = harmless = False
    if name == "exception":
        chain = tuple(mark["errors"])
        if not chain:
            chain = (head,) if head else ()
        if not chain:
            return None
        kind, message = mark["kind"] or "exception", chain[-1]
        harmless = any(text in head for text in HARMLESS_HEADS)
        deadly = head.endswith(DEADLY_HEAD)
    elif name == "problem":
        kind, message = mark["kind"], mark["text"]
        deadly = TROUBLES[kind].deadly
    elif name == "watchdog":
        kind, message = "watchdog", mark["text"]
        deadly = "soft=True" not in message
    elif name == "child_exit" and mark["code"] in ("-9", "-11", "-6", "137"):
        kind = "killed" if mark["code"] in ("-9", "137") else "segfault"
        message, deadly = f"{mark['what']} (pid {mark['pid']}) ended with exit code {mark['code']}", True
    elif name in _TEXT_MARKS:
        kind, message = _TEXT_MARKS[name], mark["text"]
        deadly = name == "warmup_failed"
        if name == "graph_failed" and "out of memory" in message:
            kind = "cuda_out_of_memory"
    else:
        return None
    return Candidate(
        index,
        life,
        mark["at"],
        mark["rank"],
        kind,
        message,
        chain,
        mark.get("where"),
        deadly,
        harmless,
        ready_at is not None,
    )


_TEXT_MARKS = {
    "warmup_failed": "warmup",
    "graph_failed": "exception",
    "batch_oom": "kv_cache_full",
    "leak": "memory_leak",
    "health_failed": "unresponsive",
    "port_wait": "port_in_use",
}


def blame(confirmed: Sequence[Candidate]) -> Blamed | None:
    """The earliest of the errors that cost a life, unless it only echoes one written just after it."""
    if not confirmed:
        return None
    first = confirmed[0]
    if _is_echo(first):
        near = [c for c in confirmed if c.life == first.life and not _is_echo(c) and _near(first.at, c.at)]
        first = near[0] if near else first
    return Blamed(first.at, first.rank, first.kind, first.message, _cause(first), first.chain, first.where)


def _is_echo(one: Candidate) -> bool:
    return TROUBLES[one.kind].echo or one.kind in ("killed", "warmup") or _tells_of_a_peer(one.message)


def _tells_of_a_peer(message: str) -> bool:
    return any(
        word in message
        for word in ("Broken pipe", "Connection reset", "Connection refused", "EOFError", "BrokenPipeError")
    )


def _near(first: str | None, other: str | None) -> bool:
    if not first or not other:
        return True
    return abs((datetime.fromisoformat(other) - datetime.fromisoformat(first)).total_seconds()) <= _ECHO_SECONDS


def _cause(one: Candidate) -> str | None:
    root = one.chain[0] if len(one.chain) > 1 and one.chain[0] != one.message else ""
    meaning = TROUBLES[one.kind].meaning
    return ": ".join(part for part in (root, meaning) if part) or None
