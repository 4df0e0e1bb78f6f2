"""Ctrl-C on several hosts of which one is stuck."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable

import pytest

from opsctl.engine.connections import Connections
from opsctl.engine.fleet import Fleet
from opsctl.engine.session import RunInfo
from opsctl.errors import RemoteError, Unreachable
from opsctl.inventory import load
from opsctl.remote.host import RemoteHost
from opsctl.wire.protocol import Call
from tests.engine.world import Project
from tests.sshd import eventually

SLEEP = Call("proc.run", {"argv": ["sleep", "1000"]})


def send_much(remote: RemoteHost) -> None:
    """What a stopped agent does not take; it is closed in the end."""
    with contextlib.suppress(Unreachable):
        remote.send([Call("lock.show", {}, bytes(4 << 20))])


def test_a_host_that_takes_no_more_input_keeps_no_other_from_being_cancelled(
    project: Project, agent_pid: Callable[[RemoteHost], int]
) -> None:
    project.hosts("stuck", "well")
    info = RunInfo("r1", {}, check=False, cancelled=lambda: False, lock_wait=0.0)
    fleet = Fleet(info, lambda event: None, lambda: 0.0, Connections())
    fleet.connect(load(project.folder / "inventory.yaml").select("all"))
    stuck, well = (fleet.sessions[name] for name in ("stuck", "well"))
    pid = agent_pid(stuck.remote())
    for session in (stuck, well):
        session.current += session.remote().send([SLEEP])
    os.kill(pid, signal.SIGSTOP)
    try:
        threading.Thread(target=send_much, args=(stuck.remote(),), daemon=True).start()
        eventually(stuck.remote()._agent(None)._sending.locked)
        fleet.cancel()
        with pytest.raises(RemoteError, match="cancelled after"):
            well.wait(well.current[0], 10)
    finally:
        os.kill(pid, signal.SIGCONT)
        fleet.close()
