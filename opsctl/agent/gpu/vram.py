"""GPU memory of processes, as nvidia-smi tells it. It is asked only where it is there, and believed only when quick."""

from __future__ import annotations

import time
from typing import Dict, Iterable, List, NamedTuple, Optional

from opsctl.agent.gpu import tools
from opsctl.agent.process import pids
from opsctl.wire.protocol import AgentError, Context

QUICK = 5.0  # seconds; without persistence mode the driver is loaded for each question, which takes some
BACK = 100.0  # seconds: the driver frees pages after the process is gone, for 1 TB of weights for long
POLL = 2.0
SLACK = 300  # MiB that an idle GPU may use by itself: 0 to 122 were seen, more with ECC pages in repair

Memory = Dict[str, int]  # GPU -> MiB


class Held(NamedTuple):
    """What a server holds before it is stopped, and what is in use there altogether."""

    used: Memory
    ours: Memory


def processes(call: Context) -> Optional[Dict[str, int]]:
    """MiB by pid (as text) of every process that nvidia-smi lists; None where it cannot be asked."""
    apps = _apps(call)
    if apps is None:
        return None
    found: Dict[str, int] = {}
    for pid, _, mib in apps:
        found[str(pid)] = found.get(str(pid), 0) + mib
    return found


def in_use(call: Context) -> Optional[int]:
    """MiB in use on all GPUs together; None where nvidia-smi cannot be asked."""
    used = _used(call)
    return None if used is None else sum(used.values())


def held(call: Context, members: Iterable[int]) -> Optional[Held]:
    """What these processes hold; None where they hold nothing, or nobody knows."""
    wanted = set(members)
    ours: Memory = {}
    for pid, gpu, mib in (_apps(call) if wanted else None) or []:
        if pid in wanted:
            ours[gpu] = ours.get(gpu, 0) + mib
    used = _used(call) if ours else None
    return None if used is None else Held(used, ours)


def wait_back(call: Context, before: Optional[Held]) -> None:
    """Wait until what a server held is free again. Raises AgentError with what is left, and who holds it."""
    deadline = time.monotonic() + BACK
    while before is not None:
        used, apps = _used(call), _apps(call)
        if used is None or apps is None:
            return
        left = _left(before, used, apps)
        if not left:
            return
        if time.monotonic() >= deadline or call.cancelled():
            raise AgentError("timeout", _told(left, apps), left=left)
        shown = sum(left.values()) / 1024.0
        call.progress({"text": "waiting for %.1f GiB of GPU memory to come back" % shown})
        time.sleep(POLL)


def _left(before: Held, used: Memory, apps: List["_App"]) -> Memory:
    """What is in use beyond what was others', and beyond what others hold now."""
    left = {}
    for gpu, ours in before.ours.items():
        if gpu not in used or gpu not in before.used:
            continue  # a slice of a card (MIG), whose use is not told one by one
        others = sum(app.mib for app in apps if app.gpu == gpu)
        beyond = min(used[gpu] - (before.used[gpu] - ours), used[gpu] - others)
        if beyond > SLACK:
            left[gpu] = beyond
    return left


def _told(left: Memory, apps: List["_App"]) -> str:
    cards = ", ".join("%s: %.1f GiB" % (gpu, mib / 1024.0) for gpu, mib in sorted(left.items()))
    holders = []
    for pid in sorted({app.pid for app in apps if app.gpu in left}):
        seen = pids.look(pid)
        state = seen.state if seen else "not visible here"
        holders.append("pid %d (%s, %s)" % (pid, pids.command(pid, 60) or "no command", state))
    who = "held by " + ", ".join(holders) if holders else "no process is listed for it: the host may need a reboot"
    return "the server has ended, but %g s later GPU memory is not back: %s; %s" % (BACK, cards, who)


class _App(NamedTuple):
    pid: int
    gpu: str
    mib: int


def _apps(call: Context) -> Optional[List[_App]]:
    rows, _ = tools.smi_rows(call, "--query-compute-apps=pid,gpu_uuid,used_memory", QUICK)
    if rows is None:
        return None
    return [_App(int(r[0]), r[1], int(r[2])) for r in rows if len(r) == 3 and r[0].isdigit() and r[2].isdigit()]


def _used(call: Context) -> Optional[Memory]:
    rows, _ = tools.smi_rows(call, "--query-gpu=uuid,memory.used", QUICK)
    if rows is None:
        return None
    return {r[0]: int(r[1]) for r in rows if len(r) == 2 and r[1].isdigit()}


CALLS = {"processes": processes}
