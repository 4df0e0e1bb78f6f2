"""The process table, as far as GPUs and inference servers are concerned."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any, Dict, Iterable, List, Optional, Set

_TITLE = re.compile(r"sglang|sgl_diffusion")
_GPU = re.compile(r"/dev/nvidia(\d|-uvm)")
_SIGKILL_BIT = 1 << 8


def table(root: str) -> List[Dict[str, Any]]:
    """Every process that is not a kernel thread, with what tells whether it is interesting: there may be thousands.

    Unreadable ones (ended meanwhile) are left out.
    """
    pids = (int(name) for name in _names(os.path.join(root, "proc")) if name.isdigit())
    return [entry for entry in (_entry(root, pid) for pid in pids) if entry is not None]


def look(root: str, pid: int) -> Optional[Dict[str, Any]]:
    """Everything about one process but its age, None when there is none."""
    entry = _entry(root, pid)
    return entry and dict(entry, **_details(root, entry, 0.0))


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


def interesting(
    root: str, entries: List[Dict[str, Any]], named: Set[int], records: List[Dict[str, Any]]
) -> List[Dict[str, Any]]:
    """Those that hold a GPU, look like a worker, are named, belong to a server of `records`; and their parents.

    With everything about them.
    """
    cgroups = [r["cgroup"] for r in records if r.get("cgroup")]
    sids = {r["sid"] for r in records if r.get("sid")}
    containers = [r["container"] for r in records if r.get("container")]
    wanted = {r["main_pid"] for r in records if r.get("main_pid")} | named
    by_pid = {e["pid"]: e for e in entries}
    for e in entries:
        group = _cgroup(_folder(root, e["pid"])) if cgroups or containers else ""
        ours = (
            e["sid"] in sids
            or any(group == c or group.startswith(c.rstrip("/") + "/") for c in cgroups)
            or any(c in group for c in containers)
        )
        if ours or e["holds_gpu"] or _TITLE.search(e["cmdline"]) or e["comm"].startswith("sglang"):
            wanted.add(e["pid"])
    wanted |= {by_pid[pid]["ppid"] for pid in wanted if pid in by_pid}
    boot = _boot_time(root)
    return [dict(e, **_details(root, e, boot)) for e in entries if e["pid"] in wanted]


def _entry(root: str, pid: int) -> Optional[Dict[str, Any]]:
    folder = _folder(root, pid)
    stat = _stat(folder)
    if stat is None or stat["ppid"] == 2 or pid == 2:
        return None
    return dict(
        stat,
        pid=pid,
        # setproctitle overwrites argv and leaves NULs behind; of a long command line the front is enough.
        cmdline=_text(folder, "cmdline").replace("\0", " ").strip()[:300],
        holds_gpu=_holds_gpu(folder),
    )


def _details(root: str, entry: Dict[str, Any], boot: float) -> Dict[str, Any]:
    """What is sent about a process besides. boot: when the host was started, 0 where that does not matter."""
    folder = _folder(root, entry["pid"])
    status = dict(line.split(":\t", 1) for line in _text(folder, "status").splitlines() if ":\t" in line)
    started = boot + entry["ticks"] / os.sysconf("SC_CLK_TCK")
    pending = int(status.get("SigPnd", "0").strip() or "0", 16) | int(status.get("ShdPnd", "0").strip() or "0", 16)
    return {
        "uid": int(status.get("Uid", "-1").split()[0]),
        "exe": _link(folder, "exe"),
        "cgroup": _cgroup(folder),
        "wchan": _text(folder, "wchan").strip(),
        "started": started,
        "age": max(0.0, time.time() - started) if boot else 0.0,
        "kill_pending": bool(pending & _SIGKILL_BIT),
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


def _cgroup(folder: str) -> str:
    lines = _text(folder, "cgroup").strip().splitlines()
    return lines[-1].split(":", 2)[-1] if lines else ""


def _folder(root: str, pid: int) -> str:
    return os.path.join(root, "proc", str(pid))


def _holds_gpu(folder: str) -> bool:
    handles = folder + "/fd"
    return any(_GPU.match(_link(handles, name)) for name in _names(handles))


def _boot_time(root: str) -> float:
    """When the host was started, in seconds since the epoch; 0 where it is not told."""
    if root == "/":  # btime, which another root is told by, is cut to whole seconds and moves with the clock
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    for line in _text(os.path.join(root, "proc"), "stat").splitlines():
        if line.startswith("btime "):
            return float(line.split()[1])
    return 0.0


def _names(folder: str) -> List[str]:
    with contextlib.suppress(OSError):
        return os.listdir(folder)
    return []


def _text(folder: str, name: str) -> str:
    try:  # without `open` and the like: there are thousands of files
        handle = os.open(folder + "/" + name, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(handle, 65536).decode("utf-8", "replace")
    except OSError:  # it ended meanwhile
        return ""
    finally:
        os.close(handle)


def _link(folder: str, name: str) -> str:
    try:
        return os.readlink(folder + "/" + name)
    except OSError:
        return ""
