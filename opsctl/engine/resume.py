"""The command that goes on with a run which stopped."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from opsctl.engine import find
from opsctl.engine.journal import PastRun
from opsctl.engine.loader import load_playbook
from opsctl.errors import UsageError


def command(playbook: str, run: str) -> str:
    return f"opsctl run {shlex.quote(playbook)} --resume {run}"


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
