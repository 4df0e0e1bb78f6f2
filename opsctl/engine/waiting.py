"""Waiting that the user can end."""

from __future__ import annotations

import time
from collections.abc import Callable

from opsctl.errors import Exit, OpsctlError

TICK = 0.2


class Interrupted(OpsctlError):
    """The user stopped the run."""

    exit_code = Exit.INTERRUPTED


def pause(seconds: float, cancelled: Callable[[], bool], host: str) -> None:
    """Wait. Raises Interrupted once the run is stopped."""
    end = time.monotonic() + seconds
    while True:
        if cancelled():
            raise Interrupted("stopped", where=host)
        left = end - time.monotonic()
        if left <= 0:
            return
        time.sleep(min(TICK, left))
