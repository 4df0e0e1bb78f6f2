"""File locks: held by the living, so there are none to break by hand."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from typing import Optional

from opsctl.agent.core import durable

_LONGEST = 64 << 10  # bytes of a lock


def take(path: str, seconds: float = 0.3) -> Optional[int]:
    """An exclusive flock on a file of our own, None if somebody else has it."""
    fd = durable.opened(path, os.O_RDWR | os.O_CREAT)
    if locked(fd, seconds):
        return fd
    os.close(fd)
    return None


def locked(fd: int, seconds: float) -> bool:
    """Lock an open file, unless somebody else has it. Tries for a moment: `is_locked` holds it briefly to look."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)


def is_locked(path: str) -> bool:
    """Whether anybody holds this flock, this process included."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


def say(fd: int, what: bytes) -> None:
    """Have a lock say who holds it, in the place that it has on the disk: a full one is no reason not to lock.

    The lock may be a file of somebody else, who can make it as long as they like.
    """
    with suppress(OSError):
        if os.fstat(fd).st_size > _LONGEST:
            os.ftruncate(fd, _LONGEST)
        os.pwrite(fd, what.ljust(min(os.fstat(fd).st_size, _LONGEST)), 0)
