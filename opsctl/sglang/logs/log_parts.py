"""What belongs into a log bundle: the parts to ask a host for, as data.

After the habits of sos and must-gather: one folder, a manifest, nothing that changes the host. nvidia-bug-report.sh
is only run when it is asked for by name: it takes minutes, can hang on a hung GPU, and holds serial numbers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from opsctl.errors import UsageError
from opsctl.text import did_you_mean
from opsctl.wire.calls.logs import Part
from opsctl.wire.calls.server import Begun

DAY = 86400.0
EVIDENCE = "health-evidence.json"
# Made here, of what the host told: see log_findings.
DERIVED = ("summary.json", "summary.txt", "health.json", "gpus.xml", "diagnosis.json", "patches.json")
ON_REQUEST = ("nvidia-bug-report.log",)
FINE = {"kernel.log": (1,)}  # exit codes that are no failure: journalctl -g found nothing
_KERNEL = "NVRM|Xid|AER|[Oo]ut of memory|oom-kill|nvme|nvidia|hung task|blocked for more|soft lockup|DMAR|AMD-Vi"
# As `pip freeze`, which an environment need not have.
_NOT_INSIDE = "--ignore-submodules=dirty"  # git would run in submodules, whoever they belong to
_PACKAGES = (
    "import importlib.metadata as m, sys; print('python', sys.version);"
    " print('\\n'.join(sorted({'%s==%s' % (d.metadata['Name'], d.version) for d in m.distributions()})))"
)
_REPORT = (
    "f=$(mktemp -d) && cd $f && nvidia-bug-report.sh --safe-mode --output-file r.log >/dev/null 2>&1;"
    " zcat -f r.log*; rm -rf $f"
)


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server whose logs are collected.

    Args:
        unit: systemd unit, where it runs as one; of the user's own systemd if `user_unit`.
        container: docker container, where it runs in one.
        record: name of the process record, where opsctl started it.
        logs: log files, oldest first.
        pids: its processes, the main one first.
        port: where it listens, or would.
        python: the interpreter it runs under.
        source: the folder of its SGLang checkout.
        health: arguments of gpu.gather.
    """

    unit: str | None = None
    user_unit: bool = False
    container: str | None = None
    record: str | None = None
    logs: Sequence[str] = ()
    pids: Sequence[int] = ()
    port: int | None = None
    python: str | None = None
    source: str | None = None
    health: Mapping[str, Any] = field(default_factory=dict)


def parts(server: Server, since: float | None = None, run: str | None = None, begun: Begun | None = None) -> list[Part]:
    """All parts of a bundle.

    since: seconds back; without it logs of files are not cut and the others go a day back. begun: the mark of a start,
    see `startlog.mark`: the server's log begins there.
    """
    back = since or DAY
    return [
        *_log(server, since, back, begun),
        *_unit(server),
        *_processes(server),
        *_software(server),
        *_host(server, back),
        *_runs(run),
        {"name": "nvidia-bug-report.log", "argv": ["sh", "-c", _REPORT], "seconds": 600.0, "tail": 16 << 20},
    ]


def select(all_parts: list[Part], include: Collection[str], exclude: Collection[str]) -> list[Part]:
    """The parts that --include and --exclude leave; both take patterns such as `proc/*`."""
    return [part for part in all_parts if wanted(part["name"], include, exclude)]


def wanted(name: str, include: Collection[str], exclude: Collection[str]) -> bool:
    """Whether a part is asked for. --include of a part on request adds it to the others."""
    if any(fnmatchcase(name, pattern) for pattern in exclude):
        return False
    if name in ON_REQUEST:
        return name in include
    only = [pattern for pattern in include if pattern not in ON_REQUEST]
    return not only or any(fnmatchcase(name, pattern) for pattern in only)


def check_names(names: Collection[str]) -> None:
    """Raises UsageError for a name or pattern that can match no part of any bundle."""
    every = Server("u", False, "c", "r", ("l",), (1,), 1, "p", "s")
    known = {*(part["name"].replace("proc/1/", "proc/") for part in parts(every, run="RUN")), *DERIVED}
    for name in names:
        if not name.startswith("proc/") and not any(fnmatchcase(one, name) for one in known):
            raise UsageError(f"there is no part {name!r}", hint=did_you_mean(name, known))


def _log(server: Server, since: float | None, back: float, begun: Begun | None) -> list[Part]:
    found: list[Part] = []
    if server.logs:
        part: Part = {"name": "server.log", "logs": list(server.logs)}
        if begun:
            part["begun"] = begun
        elif since:
            part["since"] = since
        found.append(part)
    if server.unit:
        argv = ["journalctl", *_scope(server, "--user-unit", "--unit"), "-o", "short-iso", "--no-pager"]
        argv.append(f"--since=@{begun['at']:.6f}" if begun else _since(back))
        found.append(_long("journal.log", argv))
    if server.container:
        since_then = f"{begun['at']:.6f}" if begun else f"{back:.0f}s"
        argv = ["docker", "logs", "--since", since_then, server.container]
        found.append(_long("container.log", argv))
    return found


def _long(name: str, argv: list[str]) -> Part:
    return {"name": name, "argv": argv, "seconds": 120.0, "window": 4 << 20, "tail": 24 << 20}


def _scope(server: Server, user: str, system: str) -> list[str]:
    return [f"{user if server.user_unit else system}={server.unit}"]


def _since(back: float) -> str:
    return f"--since=-{back:.0f}s"


def _unit(server: Server) -> list[Part]:
    found: list[Part] = []
    if server.unit:
        systemctl = ["systemctl", *(["--user"] if server.user_unit else []), "--no-pager"]
        found += [
            {"name": "unit.txt", "argv": [*systemctl, "cat", server.unit]},
            {"name": "unit-state.txt", "argv": [*systemctl, "show", server.unit]},
        ]
    if server.container:
        found.append({"name": "container.json", "argv": ["docker", "inspect", server.container]})
    if server.record:
        found.append({"name": "process.json", "call": "process.status", "args": {"name": server.record}})
    return found


def _processes(server: Server) -> list[Part]:
    found: list[Part] = [
        {"name": "servers.json", "call": "servers.find", "args": {"locate": True}},
        {
            "name": "processes.txt",
            "argv": ["ps", "-eo", "pid,ppid,pgid,sid,user,stat,lstart,rss,wchan:24,args", "--sort", "pid"],
        },
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
        found.append({"name": "packages.txt", "python": server.python, "script": _PACKAGES})
    if server.source:
        asked = {
            "source-commit.txt": ["log", "-1", "--format=%H %cI %s"],
            "source-status.txt": ["status", "--short", "--branch", "--untracked-files=no", _NOT_INSIDE],
            "source-changes.diff": ["diff", "--no-ext-diff", "--no-textconv", _NOT_INSIDE, "HEAD"],
        }
        found += [{"name": name, "git": words, "tree": server.source} for name, words in asked.items()]
    return found


def _host(server: Server, back: float) -> list[Part]:
    return [
        {"name": EVIDENCE, "call": "gpu.gather", "args": dict(server.health)},
        {
            "name": "kernel.log",
            "argv": ["journalctl", "-k", "--no-pager", "-o", "short-iso", _since(back), "-g", _KERNEL],
        },
        {"name": "gpu-links.txt", "argv": ["nvidia-smi", "topo", "-m"], "seconds": 25.0},
        {"name": "disks.txt", "argv": ["df", "-hT"]},
        {"name": "memory.txt", "path": "/proc/meminfo"},
        {"name": "kernel.txt", "argv": ["uname", "-a"]},
        {"name": "kernel-command-line.txt", "path": "/proc/cmdline"},
        {"name": "sockets.txt", "argv": ["ss", "-ltnp"]},
    ]


def _runs(run: str | None) -> list[Part]:
    found: list[Part] = [{"name": "runs.json", "call": "history.list", "args": {"limit": 20}}]
    if run:
        found.append({"name": "run.json", "call": "history.show", "args": {"run": run}})
    return found
