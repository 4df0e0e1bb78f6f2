"""Which unit of systemd a process runs as."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Optional

from opsctl.agent.process import pids, service, unitname
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Service, Unit


def running(call: Context, pid: int) -> Optional[Service]:
    """The unit whose service this process is, or a child of it; None where it merely lives there.

    A unit of another user's systemd, which cannot be asked, is taken for what it seems.
    """
    unit, user = unitname.of(pids.group_of(pid))
    if unit is None:
        return None
    seen: Optional[Unit] = None
    with contextlib.suppress(AgentError):
        seen = service.show(call, unit, user)
    if seen is None or seen.get("LoadState") != "loaded":
        return {"unit": unit, "user": user} if user else None
    return {"unit": unit, "user": user} if int(seen.get("MainPID") or 0) in pids.ancestors(pid) else None
