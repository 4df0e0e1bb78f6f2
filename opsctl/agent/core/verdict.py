"""Who decides over a supervised change, once and for all: the controller that confirms or reverts, or the deadline.

The first to write into the file wins; it is locked meanwhile. It is there before the change is made, so that a disk
that has become full keeps nobody from deciding.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Any, Dict, Optional

from opsctl.agent.core import durable, runs

CONFIRM, REVERT, EXPIRED, FAILED = "confirm", "revert", "expired", "failed"
_ROOM = 512  # bytes


def prepare(run: str) -> None:
    """Make room for a verdict. Raises AgentError no-space."""
    with durable.explained():
        fd = durable.opened(_path(run), os.O_RDWR | os.O_CREAT)
        try:
            durable.take_room(fd, 0, _ROOM)
            durable.sync_folder(runs.folder(run))
        finally:
            os.close(fd)


def decide(run: str, word: str, outcome: Optional[str] = None) -> Dict[str, Any]:
    """Put in a verdict. Gives the one that counts: this one, or the one that was there first.

    Where no verdict is expected, or it was withdrawn, there is nothing that could be confirmed: then it gives {}.
    """
    with durable.explained():
        try:
            fd = durable.opened(_path(run), os.O_RDWR | (0 if word == CONFIRM else os.O_CREAT))
        except FileNotFoundError:
            return {}
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            earlier = _decided(os.pread(fd, _ROOM, 0))
            if earlier:
                return earlier
            os.pwrite(fd, durable.pack({"verdict": word, "outcome": outcome}), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
    return {"verdict": word, "outcome": outcome}


def withdraw(run: str) -> None:
    """Have nobody confirm any more, where a verdict cannot be written."""
    with suppress(OSError):
        os.unlink(_path(run))


def current(run: str) -> Optional[Dict[str, Any]]:
    """The verdict, None while there is none."""
    try:
        return _decided(durable.read(_path(run)))
    except FileNotFoundError:
        return None


def _decided(text: bytes) -> Optional[Dict[str, Any]]:
    return durable.unpack(text.rstrip(b"\0"))


def _path(run: str) -> str:
    return os.path.join(runs.folder(run), "verdict")
