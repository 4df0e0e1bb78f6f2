"""What belongs into a log bundle: the parts to ask a host for, as data.

After the habits of sos and must-gather: one folder, a manifest, nothing that changes the host. nvidia-bug-report.sh is
not among them: it takes minutes, can hang on a hung GPU, and holds serial numbers and host names.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.errors import UsageError
from opsctl.text import did_you_mean

Part = dict[str, Any]
_KERNEL = "NVRM|Xid|AER|[Oo]ut of memory|oom-kill|nvme|nvidia|hung task|blocked for more|soft lockup|DMAR|AMD-Vi"


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server whose logs are collected.

    Args:
        unit: systemd unit, where it runs as one.
        logs: log files, oldest first.
        pids: its processes, the main one first.
        python: the interpreter it runs under.
        source: the folder of its SGLang checkout.
    """

    unit: str | None = None
    logs: Sequence[str] = ()
    pids: Sequence[int] = ()
    python: str | None = None
    source: str | None = None


def parts(server: Server, since: str = "24 hours ago") -> list[Part]:
    """All parts of a default bundle. since: as journalctl takes it."""
    return [*_log(server, since), *_unit(server), *_processes(server), *_software(server), *_host(since)]


def select(all_parts: list[Part], include: Collection[str], exclude: Collection[str]) -> list[Part]:
    """The parts that --include and --exclude leave. Raises UsageError for a name that is none."""
    names = {part["name"] for part in all_parts}
    for name in (*include, *exclude):
        if name not in names:
            raise UsageError(f"there is no part {name!r}", hint=did_you_mean(name, names))
    return [p for p in all_parts if (not include or p["name"] in include) and p["name"] not in exclude]


def _log(server: Server, since: str) -> list[Part]:
    found: list[Part] = []
    if server.logs:
        found.append({"name": "server.log", "logs": list(server.logs)})
    if server.unit:
        argv = ["journalctl", "-u", server.unit, "-o", "short-iso", "--no-pager", "--since", since]
        found.append({"name": "journal.log", "argv": argv, "seconds": 120.0, "window": 4 << 20, "tail": 24 << 20})
    return found


def _unit(server: Server) -> list[Part]:
    if not server.unit:
        return []
    return [
        {"name": "unit.txt", "argv": ["systemctl", "cat", "--no-pager", server.unit]},
        {"name": "unit-state.txt", "argv": ["systemctl", "show", "--no-pager", server.unit]},
    ]


def _processes(server: Server) -> list[Part]:
    found: list[Part] = [
        {
            "name": "processes.txt",
            "argv": ["ps", "-eo", "pid,ppid,pgid,sid,user,stat,lstart,rss,wchan:24,args", "--sort", "pid"],
        }
    ]
    for pid in server.pids[:1]:
        found += [
            {"name": "command-line.txt", "path": f"/proc/{pid}/cmdline", "nul": True},
            {"name": "environment.txt", "path": f"/proc/{pid}/environ", "nul": True},
        ]
    for pid in server.pids[:32]:
        found += [
            {"name": f"proc/{pid}/status.txt", "path": f"/proc/{pid}/status"},
            {"name": f"proc/{pid}/limits.txt", "path": f"/proc/{pid}/limits"},
        ]
    return found


def _software(server: Server) -> list[Part]:
    found: list[Part] = []
    if server.python:
        found.append(
            {"name": "packages.txt", "argv": [server.python, "-m", "pip", "freeze", "--disable-pip-version-check"]}
        )
    if server.source:
        git = ["git", "-c", "core.fsmonitor=false", "-C", server.source]
        found += [
            {"name": "source-commit.txt", "argv": [*git, "log", "-1", "--format=%H %cI %s"]},
            {"name": "source-status.txt", "argv": [*git, "status", "--short", "--branch", "--untracked-files=no"]},
            {"name": "source-changes.diff", "argv": [*git, "diff", "--no-ext-diff", "HEAD"]},
        ]
    return found


def _host(since: str) -> list[Part]:
    return [
        {
            "name": "kernel.log",
            "argv": ["journalctl", "-k", "--no-pager", "-o", "short-iso", "--since", since, "-g", _KERNEL],
        },
        {"name": "gpus.xml", "argv": ["nvidia-smi", "-q", "-x"], "seconds": 25.0},
        {"name": "gpu-links.txt", "argv": ["nvidia-smi", "topo", "-m"], "seconds": 25.0},
        {"name": "disks.txt", "argv": ["df", "-hT"]},
        {"name": "memory.txt", "path": "/proc/meminfo"},
        {"name": "kernel.txt", "argv": ["uname", "-a"]},
        {"name": "kernel-command-line.txt", "path": "/proc/cmdline"},
        {"name": "sockets.txt", "argv": ["ss", "-ltnp"]},
    ]
