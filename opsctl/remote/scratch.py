"""Private folders for files that other programs are given by name.

Whoever is killed leaves its folder; the next one who makes any removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "opsctl-scratch-"
_YOUNG = 60.0  # seconds in which one may have been made and not be locked yet


class Scratch:
    """A folder for us alone, until it is closed. Its lock, which ends with our process, says that it is used."""

    def __init__(self) -> None:
        _sweep()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with contextlib.suppress(OSError):  # where folders cannot be locked, nobody removes one
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _sweep() -> None:
    """Remove those that nobody uses. Others' cannot be opened."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                info = os.fstat(lock)
                if info.st_uid == os.getuid() and info.st_mtime < time.time() - _YOUNG:
                    shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
