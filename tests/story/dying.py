"""opsctl that dies, or loses its connection, at a moment that is named. Run in a process of its own:

    python -m tests.story.dying kill "after supervise.start" run play.yaml ...

Moments: `before CALL` and `after CALL` are around the write that carries a call to the agent, `answer CALL` is when its
answer has come, `hears TEXT` when progress that contains TEXT has; `frame N` is the N-th of all these. What is done
then: `kill` (SIGKILL), `kill agent`, `kill supervisor`, `kill both` of them, `kill all` three, `cut` (the connection
breaks, once) or `stop` (Ctrl-C), `stop twice` (a second one, shortly after). Agent and supervisor are found by the
locks that they hold under $DYING_STATE, the host's state folder.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import paramiko

from opsctl.cli.start import main
from opsctl.remote import agent_client

_send, _deliver = agent_client.AgentClient.send, agent_client.AgentClient._deliver


class Moment:
    """Does it, once, when the time has come."""

    def __init__(self, action: str, when: str) -> None:
        self.action, self.when, self.done, self.seen = action, when, False, 0

    def reached(self, name: str) -> None:
        self.seen += 1
        if self.done or self.when not in (name, f"frame {self.seen}"):
            return
        self.done, name = True, self.when
        print(f"({self.action}: {name})", file=sys.stderr, flush=True)
        for kind, file in (("supervisor", "supervisor.lock"), ("agent", "attended")):
            if self.action in (f"kill {kind}", "kill both", "kill all"):
                for pid in {
                    pid for lock in Path(os.environ["DYING_STATE"]).glob(f"runs/*/{file}") for pid in holders(lock)
                }:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        if self.action in ("kill", "kill all"):
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.action.startswith("kill "):
            pass
        elif self.action == "cut":
            for transport in [found for found in gc.get_objects() if isinstance(found, paramiko.Transport)]:
                with contextlib.suppress(OSError):  # an earlier one
                    transport.sock._sock.shutdown(socket.SHUT_RDWR)
        else:
            os.kill(os.getpid(), signal.SIGINT)
            if self.action == "stop twice":
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()


def holders(path: Path) -> list[int]:
    """Processes that have a file open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(fd) == str(path) for fd in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found


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
        else:
            heard = moment.when.startswith("hears ") and moment.when[6:] in str(header["progress"])
            moment.reached(moment.when if heard else "progress")

    agent_client.AgentClient.send = send  # type: ignore[method-assign]
    agent_client.AgentClient._deliver = deliver  # type: ignore[method-assign]


if __name__ == "__main__":
    watch(Moment(sys.argv[1], sys.argv[2]))
    sys.argv[1:] = sys.argv[3:]
    main()
