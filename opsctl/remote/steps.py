"""Journaled steps: calls that carry the calls of a change and of its undo, and how their replies come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opsctl.wire.calls import core
from opsctl.wire.calls.core import Applied, NamedCall, StepCall, StepReplies, Supervised
from opsctl.wire.protocol import Call, Reply


def apply(
    run: str,
    seq: int,
    task: str | None,
    calls: Sequence[Call[Any]],
    undo: Sequence[Call[Any]] | None = (),
    settle: Sequence[Call[Any]] = (),
    shows: Sequence[str] = (),
) -> Call[StepReplies]:
    """One journaled step as one call. Undo and settle calls are kept on the host and cannot have bodies.

    shows: paths of files whose content is no secret: what an undo would make of them may be shown.
    """
    parts, body = _parts(calls)
    return core.journal_apply(
        run=run, seq=seq, task=task, calls=parts, undo=None if undo is None else _bare(undo), settle=_bare(settle),
        shows=list(shows), body=body,
    )  # fmt: skip


def supervise(
    run: str,
    seq: int,
    task: str | None,
    calls: Sequence[Call[Any]],
    undo: Sequence[Call[Any]] | None,
    settle: Sequence[Call[Any]],
    confirm_within: float,
    shows: Sequence[str] = (),
) -> Call[Supervised]:
    """A step that the host takes back, with the whole run, unless it is confirmed in time."""
    parts, body = _parts(calls)
    return core.supervise_start(
        run=run, seq=seq, task=task, calls=parts, undo=None if undo is None else _bare(undo), settle=_bare(settle),
        shows=list(shows), confirm_within=confirm_within, body=body,
    )  # fmt: skip


def replies(reply: Reply[StepReplies] | Reply[Applied]) -> list[Reply[Any]]:
    """The replies of a step's own calls, from the reply to `apply` or an applied `supervise`."""
    found, start = [], 0
    for result, length in reply.result["replies"]:
        found.append(Reply(result, reply.body[start : start + length]))
        start += length
    return found


def _parts(calls: Sequence[Call[Any]]) -> tuple[list[StepCall], bytes]:
    return [[call.name, call.args, len(call.body)] for call in calls], b"".join(call.body for call in calls)


def _bare(calls: Sequence[Call[Any]]) -> list[NamedCall]:
    if any(call.body for call in calls):
        raise ValueError("undo and settle calls cannot have bodies: keep bytes among the step's blobs")
    return [[call.name, call.args] for call in calls]
