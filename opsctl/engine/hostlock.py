"""The lock of a host: who holds it, and holding it for something that is no run of a playbook."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from opsctl.agent.protocol import Call
from opsctl.errors import Unreachable
from opsctl.remote.host import RemoteHost

NAME = "host"


def holder(run: str, playbook: str) -> dict[str, Any]:
    """Who we are, for locks and journals."""
    user, node = getpass.getuser(), socket.gethostname()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    source = os.environ.get("SSH_CONNECTION", node).split()[0]
    return {"run": run, "who": f"{user}@{node}", "from": source, "playbook": playbook, "since": since}


def release(name: str = NAME) -> Call:
    """Let go of a lock. An agent that ends does so too, but maybe not before the next command comes."""
    return Call("lock.release", {"name": name})


@contextlib.contextmanager
def held(remote: RemoteHost, run: str, doing: str) -> Iterator[None]:
    """Keep everybody else from the host meanwhile. Raises Locked, RemoteError, Unreachable."""
    remote.call(Call("lock.take", {"name": NAME, "holder": holder(run, doing), "wait": 0.0}), timeout=60)
    try:
        yield
    finally:
        with contextlib.suppress(Unreachable):  # then its agent lets go of it, once it has noticed
            remote.call(release(), timeout=60)
