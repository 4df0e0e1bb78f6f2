"""The lock of a host: who holds it, and holding it for something that is no run of a playbook.

Each user of the host has a lock in a state folder of its own, and whoever changes what is that user's takes it: all
that become root exclude each other, whoever they log in as. Root takes that of the user whose server it is, too, so
that the two exclude each other. Users that change different things do not wait for each other.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import cast

from opsctl.errors import Unreachable
from opsctl.inventory import InventoryHost
from opsctl.remote.host import RemoteHost
from opsctl.wire.calls import core
from opsctl.wire.calls.core import Holder, RunMeta, ServerOf, Taken
from opsctl.wire.protocol import Call

NAME = "host"


def holder(run: str, playbook: str) -> RunMeta:
    """Who we are, for locks and journals."""
    user, node = getpass.getuser(), socket.gethostname()
    since = datetime.now(UTC).isoformat(timespec="seconds")
    source = os.environ.get("SSH_CONNECTION", node).split()[0]
    return {"run": run, "who": f"{user}@{node}", "from": source, "playbook": playbook, "since": since}


def take(whose: Holder, token: str, wait: float, name: str = NAME, host: InventoryHost | None = None) -> Call[Taken]:
    """Take the lock of a user; for root also of those who have the server of `host`.

    Two agents with the same `token` hold it together: one user may have two names.
    """
    kept = ("who", "from", "run", "playbook", "since")
    holder = cast(Holder, {key: value for key, value in whose.items() if key in kept})
    server: ServerOf | None = None
    if host is not None:
        settings = host.sglang
        server = {"port": settings.port, "unit": settings.unit if settings.unit_scope == "system" else None}
    return core.lock_take(holder, name, wait, token, server)


def release(name: str = NAME) -> Call[bool]:
    """Let go of a lock. An agent that ends does so too, but maybe not before the next command comes."""
    return core.lock_release(name)


@contextlib.contextmanager
def held(host: InventoryHost, agents: Sequence[RemoteHost], run: str, doing: str) -> Iterator[None]:
    """Keep everybody else from what these users of a host have, and from its server.

    Raises Locked, RemoteError, Unreachable.
    """
    whose, token = holder(run, doing), secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        for agent in agents:
            agent.call(take(whose, token, 0.0, host=host), timeout=60)
            stack.callback(_let_go, agent)
        yield


def _let_go(agent: RemoteHost) -> None:
    with contextlib.suppress(Unreachable):  # then it lets go by itself, once it has noticed
        agent.call(release(), timeout=60)
