"""The calls that carry calls: how a step goes over the wire, and how its replies come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.wire.protocol import Call, Reply


def apply(
    run: str,
    seq: int,
    task: Any,
    calls: Sequence[Call[Any]],
    undo: Sequence[Call[Any]] | None = (),
    settle: Sequence[Call[Any]] = (),
    shows: Sequence[str] = (),
) -> Call[Any]:
    """One journaled step as one call. Undo and settle calls are kept on the host and cannot have bodies.

    shows: paths of files whose content is no secret: what an undo would make of them may be shown.
    """
    return Call("journal.apply", *_step(run, seq, task, calls, undo, settle, shows))


def supervise(
    run: str,
    seq: int,
    task: Any,
    calls: Sequence[Call[Any]],
    undo: Sequence[Call[Any]] | None,
    settle: Sequence[Call[Any]],
    confirm_within: float,
    shows: Sequence[str] = (),
) -> Call[Any]:
    """A step that the host takes back, with the whole run, unless it is confirmed in time."""
    args, body = _step(run, seq, task, calls, undo, settle, shows)
    return Call("supervise.start", {**args, "confirm_within": confirm_within}, body)


def replies(reply: Reply[Any]) -> list[Reply[Any]]:
    """The replies of a step's own calls, from the reply to `apply` or an applied `supervise`."""
    found, start = [], 0
    for result, length in reply.result["replies"]:
        found.append(Reply(result, reply.body[start : start + length]))
        start += length
    return found


def _step(
    run: str,
    seq: int,
    task: Any,
    calls: Sequence[Call[Any]],
    undo: Sequence[Call[Any]] | None,
    settle: Sequence[Call[Any]],
    shows: Sequence[str],
) -> tuple[dict[str, Any], bytes]:
    args = {
        "run": run,
        "seq": seq,
        "task": task,
        "calls": [[call.name, call.args, len(call.body)] for call in calls],
        "undo": None if undo is None else _bare(undo),
        "settle": _bare(settle),
        "shows": list(shows),
    }
    return args, b"".join(call.body for call in calls)


def _bare(calls: Sequence[Call[Any]]) -> list[list[Any]]:
    if any(call.body for call in calls):
        raise ValueError("undo and settle calls cannot have bodies: keep bytes among the step's blobs")
    return [[call.name, call.args] for call in calls]
