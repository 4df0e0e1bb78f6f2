"""What earlier runs have left on a host, and the command that goes on with a run which stopped."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opsctl.engine import find
from opsctl.engine.journal import PastRun
from opsctl.engine.loader import load_playbook
from opsctl.errors import UsageError


def command(playbook: str, run: str) -> str:
    return f"opsctl run {shlex.quote(playbook)} --resume {run}"


def left_behind(past: Sequence[PastRun], ours: Mapping[str, Any] | None = None) -> Iterator[tuple[str, str]]:
    """What somebody has to see to, or has not seen, and what to type. `past`: newest first; `ours`: as of `advice`.

    A run whose operator, agent and supervisor were killed together left the host as it was at that moment.
    """
    for one in past:
        name = f"run {one.run} ({one.playbook})"
        if one.unfinished:
            again = advice(one, ours) if ours else command(one.found_by, one.run)
            yield f"{name} never finished on this host", f"opsctl rollback {one.run}, or {again}"
        elif one.state == "supervised" and not one.attended:
            yield (
                f"{name} waits to be confirmed, and its operator is gone",
                f"opsctl rollback {one.run} takes it back now",
            )
        elif one.state in ("damaged", "unreadable"):
            yield f"{name}: {one.ended_as}", f"opsctl rollback {one.run} undoes what it still has"
    if past and past[0].expired:
        name = f"the last run here, {past[0].run} ({past[0].playbook})"
        by_itself = "was not confirmed in time: the host has taken it back by itself"
        yield f"{name}, {by_itself}", f"opsctl show {past[0].run}"


def advice(past: PastRun, ours: Mapping[str, Any]) -> str:
    """What to type here to go on with an earlier run, or where to type it. ours: what our run tells of itself.

    The host knows how its playbook was found where the run was made: another operator may have it elsewhere, or not.
    """
    if past.meta.get("digest") == ours["digest"]:
        return command(str(ours["found_by"]), past.run)
    there = command(past.found_by, past.run)
    if _is_here(past):
        return there
    return f"{there} where {past.meta.get('who', 'somebody')} began it, as its playbook is not here"


def _is_here(past: PastRun) -> bool:
    try:
        return load_playbook(find.playbook(past.found_by)).digest == past.meta.get("digest")
    except (UsageError, OSError):  # there is none, or another one that is not right
        return False
