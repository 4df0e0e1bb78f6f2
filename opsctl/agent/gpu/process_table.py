"""The processes of a host, as far as GPUs and inference servers are concerned."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Set

from opsctl.agent.process import pids

if TYPE_CHECKING:
    from opsctl.wire.calls.gpu import ProcessEntry

_TITLE = re.compile(r"sglang|sgl_diffusion")
_GPU = re.compile(r"/dev/nvidia(\d|-uvm)")
_SIGKILL_BIT = 1 << 8


class Entry(NamedTuple):
    """A process with what tells whether it is interesting."""

    process: pids.Process
    title: str
    holds_gpu: bool


def table(root: str) -> List[Entry]:
    """Every process that is not a kernel thread; there may be thousands."""
    found = (pids.look(pid, root) for pid in pids.numbers(root))
    return [_entry(root, process) for process in found if process is not None and _of_a_program(process)]


def look(root: str, pid: int) -> Optional["ProcessEntry"]:
    """Everything about one process, None when there is none."""
    process = pids.look(pid, root)
    return _told(root, _entry(root, process)) if process is not None and _of_a_program(process) else None


def interesting(
    root: str, entries: List[Entry], named: Set[int], records: List[Dict[str, Any]]
) -> List["ProcessEntry"]:
    """Those that hold a GPU, look like a worker, are named, belong to a server of `records`; and their parents."""
    cgroups = [r["cgroup"] for r in records if r.get("cgroup")]
    sids = {r["sid"] for r in records if r.get("sid")}
    containers = [r["container"] for r in records if r.get("container")]
    wanted = {r["main_pid"] for r in records if r.get("main_pid")} | named
    for entry in entries:
        process = entry.process
        group = _cgroup(root, process.pid) if cgroups or containers else ""
        ours = (
            process.session in sids
            or any(group == c or group.startswith(c.rstrip("/") + "/") for c in cgroups)
            or any(c in group for c in containers)
        )
        if ours or entry.holds_gpu or _TITLE.search(entry.title) or process.name.startswith("sglang"):
            wanted.add(process.pid)
    wanted |= {entry.process.parent for entry in entries if entry.process.pid in wanted}
    return [_told(root, entry) for entry in entries if entry.process.pid in wanted]


def _of_a_program(process: pids.Process) -> bool:
    return process.parent != 2 and process.pid != 2


def _entry(root: str, process: pids.Process) -> Entry:
    # setproctitle overwrites argv and leaves NULs behind; of a long command line the front is enough.
    return Entry(process, pids.command(process.pid, 300, root), _holds_gpu(root, process.pid))


def _told(root: str, entry: Entry) -> "ProcessEntry":
    process = entry.process
    status = pids.status(process.pid, root)
    pending = int(status.get("SigPnd") or "0", 16) | int(status.get("ShdPnd") or "0", 16)
    started = pids.began(process)
    return {
        "pid": process.pid,
        "ppid": process.parent,
        "sid": process.session,
        "uid": int((status.get("Uid") or "-1").split()[0]),
        "state": process.state,
        "ticks": process.start,
        "comm": process.name,
        "cmdline": entry.title,
        "exe": pids.link(process.pid, "exe", root) or "",
        "cgroup": _cgroup(root, process.pid),
        "wchan": pids.text(process.pid, "wchan", root).strip(),
        "started": started,
        "age": max(0.0, time.time() - started),
        "stays_in_d": False,
        "kill_pending": bool(pending & _SIGKILL_BIT),
        "holds_gpu": entry.holds_gpu,
    }


def _cgroup(root: str, pid: int) -> str:
    lines = pids.text(pid, "cgroup", root).strip().splitlines()
    return lines[-1].split(":", 2)[-1] if lines else ""


def _holds_gpu(root: str, pid: int) -> bool:
    with contextlib.suppress(OSError):
        handles = os.listdir(os.path.join(root, "proc", str(pid), "fd"))
        return any(_GPU.match(pids.link(pid, "fd/" + handle, root) or "") for handle in handles)
    return False
