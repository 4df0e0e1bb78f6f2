"""The process table, as far as GPUs and inference servers are concerned."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Dict, Iterable, List, Optional, Set

_TITLE = re.compile(r"sglang|sgl_diffusion")
_SIGKILL_BIT = 1 << 8


def table(root: str) -> List[Dict[str, Any]]:
    """Every process that is not a kernel thread. Unreadable ones (ended meanwhile) are left out."""
    boot = _boot_time(root)
    ticks = os.sysconf("SC_CLK_TCK")
    now = time.time()
    found = []
    for name in _names(os.path.join(root, "proc")):
        if name.isdigit():
            entry = _entry(os.path.join(root, "proc", name), int(name), boot, ticks, now)
            if entry is not None:
                found.append(entry)
    return found


def look(root: str, pid: int) -> Optional[Dict[str, Any]]:
    """One process, None when there is none."""
    return _entry(os.path.join(root, "proc", str(pid)), pid, 0.0, 1, 0.0)


def states(root: str, pids: Iterable[int]) -> Dict[int, str]:
    """The state letter of each of `pids` that still exists."""
    found = {}
    for pid in pids:
        stat = _stat(os.path.join(root, "proc", str(pid)))
        if stat:
            found[pid] = stat["state"]
    return found


def called(root: str, comm: str) -> Dict[int, str]:
    """The state letter of every process of that name."""
    found = {}
    for name in _names(os.path.join(root, "proc")):
        stat = _stat(os.path.join(root, "proc", name)) if name.isdigit() else None
        if stat and stat["comm"] == comm:
            found[int(name)] = stat["state"]
    return found


def interesting(entries: List[Dict[str, Any]], named: Set[int], records: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """Those that hold a GPU, look like a worker, are named, belong to a server of `records`; and their parents."""
    cgroups = [r["cgroup"] for r in records if r.get("cgroup")]
    sids = {r["sid"] for r in records if r.get("sid")}
    containers = [r["container"] for r in records if r.get("container")]
    wanted = {r["main_pid"] for r in records if r.get("main_pid")} | named
    by_pid = {e["pid"]: e for e in entries}
    for e in entries:
        ours = (
            e["sid"] in sids
            or any(e["cgroup"] == c or e["cgroup"].startswith(c.rstrip("/") + "/") for c in cgroups)
            or any(c in e["cgroup"] for c in containers)
        )
        if ours or e["holds_gpu"] or _TITLE.search(e["cmdline"]) or e["comm"].startswith("sglang"):
            wanted.add(e["pid"])
    wanted |= {by_pid[pid]["ppid"] for pid in wanted if pid in by_pid}
    return [e for e in entries if e["pid"] in wanted]


def _entry(folder: str, pid: int, boot: float, ticks: int, now: float) -> Optional[Dict[str, Any]]:
    stat = _stat(folder)
    if stat is None or stat["ppid"] == 2 or pid == 2:
        return None
    status = dict(line.split(":\t", 1) for line in _text(folder, "status").splitlines() if ":\t" in line)
    started = boot + stat["ticks"] / ticks
    pending = int(status.get("SigPnd", "0").strip() or "0", 16) | int(status.get("ShdPnd", "0").strip() or "0", 16)
    cgroup = _text(folder, "cgroup").strip().splitlines()
    return {
        "pid": pid,
        "ppid": stat["ppid"],
        "sid": stat["sid"],
        "state": stat["state"],
        "ticks": stat["ticks"],
        "comm": stat["comm"],
        "uid": int(status.get("Uid", "-1").split()[0]),
        # setproctitle overwrites argv and leaves NULs behind; of a long command line the front is enough.
        "cmdline": _text(folder, "cmdline").replace("\0", " ").strip()[:300],
        "exe": _link(folder, "exe"),
        "cgroup": cgroup[-1].split(":", 2)[-1] if cgroup else "",
        "wchan": _text(folder, "wchan").strip(),
        "started": started,
        "age": max(0.0, now - started) if boot else 0.0,
        "kill_pending": bool(pending & _SIGKILL_BIT),
        "holds_gpu": _holds_gpu(folder),
    }


def _stat(folder: str) -> Optional[Dict[str, Any]]:
    """pid (comm) state ppid pgrp session ... starttime; comm may hold blanks and brackets."""
    text = _text(folder, "stat")
    head, found, rest = text.rpartition(")")
    fields = rest.split()
    if not found or len(fields) < 20:
        return None
    return {
        "comm": head.partition("(")[2],
        "state": fields[0],
        "ppid": int(fields[1]),
        "sid": int(fields[3]),
        "ticks": int(fields[19]),
    }


def _holds_gpu(folder: str) -> bool:
    names = _names(os.path.join(folder, "fd"))
    return any(re.match(r"/dev/nvidia(\d|-uvm)", _link(os.path.join(folder, "fd"), name)) for name in names)


def _boot_time(root: str) -> float:
    for line in _text(os.path.join(root, "proc"), "stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def _names(folder: str) -> List[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _text(folder: str, name: str) -> str:
    with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="utf-8", errors="replace") as stream:
        return stream.read(65536)
    return ""


def _link(folder: str, name: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(os.path.join(folder, name))
    return ""
