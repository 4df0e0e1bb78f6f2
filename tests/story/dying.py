"""opsctl that dies, or loses its connection, at a moment that is named. Run in a process of its own:

    python -m tests.story.dying kill "after supervise.start" run play.yaml ...

Moments: `before CALL` and `after CALL` are around the write that carries a call to the agent, `answer CALL` is when its
answer has come, `hears TEXT` when progress that contains TEXT has. What is done then: `kill` (SIGKILL), `cut` (the
connection breaks, once) or `stop` (Ctrl-C), `stop twice` (a second one, shortly after).
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from typing import Any

import paramiko

from opsctl.cli.start import main
from opsctl.remote import agent_client

_send, _deliver = agent_client.AgentClient.send, agent_client.AgentClient._deliver


class Moment:
    """Does it, once, when the time has come."""

    def __init__(self, action: str, when: str) -> None:
        self.action, self.when, self.done = action, when, False

    def reached(self, name: str) -> None:
        if name != self.when or self.done:
            return
        self.done = True
        print(f"({self.action}: {name})", file=sys.stderr, flush=True)
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action == "cut":
            for transport in [found for found in gc.get_objects() if isinstance(found, paramiko.Transport)]:
                with contextlib.suppress(OSError):  # an earlier one
                    transport.sock.shutdown(socket.SHUT_RDWR)
        else:
            os.kill(os.getpid(), signal.SIGINT)
            if self.action == "stop twice":
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()


def watch(moment: Moment) -> None:
    """Have `moment` told of everything that passes."""

    def send(self: agent_client.AgentClient, calls: Any, **given: Any) -> Any:
        for call in calls:
            moment.reached(f"before {call.name}")
        sent = _send(self, calls, **given)
        for call in calls:
            moment.reached(f"after {call.name}")
        return sent

    def deliver(self: agent_client.AgentClient, header: dict[str, Any], body: bytes, *more: Any) -> None:
        pending = self._pending.get(header.get("id", -1))
        _deliver(self, header, body, *more)
        if pending is None:
            return
        if "progress" not in header:
            moment.reached(f"answer {pending.call.name}")
        elif moment.when.startswith("hears ") and moment.when[6:] in str(header["progress"]):
            moment.reached(moment.when)

    agent_client.AgentClient.send = send  # type: ignore[method-assign]
    agent_client.AgentClient._deliver = deliver  # type: ignore[method-assign]


if __name__ == "__main__":
    watch(Moment(sys.argv[1], sys.argv[2]))
    sys.argv[1:] = sys.argv[3:]
    main()
