"""Which unit of systemd a process runs as."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

from opsctl.agent import pids, service
from opsctl.agent.protocol import AgentError, Context

# Services that processes live in without being what the service is for: a login, a job.
_NOT_SERVING = ("user@", "ssh", "cron", "atd", "systemd-", "docker", "containerd", "getty@", "supervisor")
_OF_A_USER = re.compile(r"/user@\d+\.service/(?:[^\n]*?/)?([^/\n]+\.service)(?:/|$)", re.M)
_OF_THE_SYSTEM = re.compile(r"/([^/\n]+\.service)(?:/|$)", re.M)


def of(group: str) -> Tuple[Optional[str], bool]:
    """The unit that a control group belongs to, None for none; and whether it is one of a user's own systemd."""
    of_a_user = _OF_A_USER.search(group)
    found = of_a_user or _OF_THE_SYSTEM.search(group)
    if found is None or found.group(1).startswith(_NOT_SERVING):
        return None, False
    return found.group(1), of_a_user is not None


def running(call: Context, pid: int) -> Optional[Dict[str, Any]]:
    """{"unit", "user"} of the unit whose service this process is, or a child of it; None where it merely lives there.

    A unit of another user's systemd, which cannot be asked, is taken for what it seems.
    """
    unit, user = of(pids.group_of(pid))
    if unit is None:
        return None
    try:
        seen = service.show(call, unit, user)
    except AgentError:
        seen = {}
    if seen.get("LoadState") != "loaded":
        return {"unit": unit, "user": user} if user else None
    return {"unit": unit, "user": user} if int(seen.get("MainPID") or 0) in pids.ancestors(pid) else None
