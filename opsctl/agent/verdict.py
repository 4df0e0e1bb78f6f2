"""Who decides over a supervised change, once and for all: the controller that confirms or reverts, or the deadline.

The first to put the file in place wins; putting it there is one atomic step, so there is no moment in between.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from opsctl.agent import durable, runlog

CONFIRM, REVERT, EXPIRED, FAILED = "confirm", "revert", "expired", "failed"


def decide(run: str, word: str, outcome: Optional[str] = None) -> Dict[str, Any]:
    """Put in a verdict. Gives the one that counts: this one, or the one that was there first."""
    path = _path(run)
    with durable.explained():
        mine = "%s.%d" % (path, os.getpid())
        durable.write(mine, durable.json_bytes({"verdict": word, "outcome": outcome}))
        try:
            os.link(mine, path)
        except FileExistsError:
            pass
        finally:
            os.unlink(mine)
        durable.sync_folder(os.path.dirname(path))
    return current(run) or {}


def current(run: str) -> Optional[Dict[str, Any]]:
    """The verdict, None while there is none."""
    return durable.read_json(_path(run))


def _path(run: str) -> str:
    return os.path.join(runlog.folder(run), "verdict")
