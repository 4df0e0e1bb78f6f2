"""Tells agents that their controller is alive, so that one that hears nothing may give up its locks and go.

One thread for the whole process, whatever the number of hosts.
"""

from __future__ import annotations

import threading
import weakref
from typing import Protocol

EVERY = 20.0  # seconds
LEASE = 180.0  # seconds without a word after which an agent takes its controller for gone


class Beating(Protocol):
    @property
    def alive(self) -> bool: ...

    def beat(self) -> None:
        """Say something, without waiting for anything."""
        ...


_beating: weakref.WeakSet[Beating] = weakref.WeakSet()
_guard = threading.Lock()
_thread: threading.Thread | None = None


def keep(client: Beating) -> None:
    """Have `client` beat for as long as it is alive."""
    global _thread
    with _guard:
        _beating.add(client)
        if _thread is None:
            _thread = threading.Thread(target=_beat, name="opsctl-heartbeat", daemon=True)
            _thread.start()


def _beat() -> None:
    pause = threading.Event()
    while not pause.wait(EVERY):
        with _guard:
            clients = list(_beating)
        for client in clients:
            if client.alive:
                client.beat()
