"""Which unit of systemd a process runs as."""

from __future__ import annotations

from typing import Any, Dict, Optional

from opsctl.agent.process import pids, service, unitname
from opsctl.wire.protocol import AgentError, Context


def running(call: Context, pid: int) -> Optional[Dict[str, Any]]:
    """{"unit", "user"} of the unit whose service this process is, or a child of it; None where it merely lives there.

    A unit of another user's systemd, which cannot be asked, is taken for what it seems.
    """
    unit, user = unitname.of(pids.group_of(pid))
    if unit is None:
        return None
    try:
        seen = service.show(call, unit, user)
    except AgentError:
        seen = {}
    if seen.get("LoadState") != "loaded":
        return {"unit": unit, "user": user} if user else None
    return {"unit": unit, "user": user} if int(seen.get("MainPID") or 0) in pids.ancestors(pid) else None
