"""Who a process is, from /proc: a pid alone is never enough, since pids are used again."""

from __future__ import annotations

import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple


class Process(NamedTuple):
    """One line of /proc/PID/stat, as much of it as identifies a process. `start` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    start: int

    @property
    def alive(self) -> bool:
        return self.state not in ("Z", "X")


def boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id") as stream:
        return stream.read().strip()


def look(pid: int) -> Optional[Process]:
    """The process with this pid, None if there is none."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as stream:
            line = stream.read()
    except OSError:
        return None
    fields = line[line.rindex(b")") + 2 :].split()  # the name in brackets may hold anything, brackets too
    return Process(pid, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def session(sid: int) -> List[Process]:
    """Living processes of a session. It stays with its members when their parent dies or they change their title."""
    found = []
    for name in os.listdir("/proc"):
        process = look(int(name)) if name.isdigit() else None
        if process is not None and process.session == sid and process.alive:
            found.append(process)
    return found


def control_group(pid: int) -> List[int]:
    """Processes in the control group of one, itself included; empty if it is gone or in the group of all."""
    own = group_of(pid)
    if all(line.endswith(":/") for line in own.splitlines()):
        return []
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and group_of(int(name)) == own]


def ancestors(pid: int) -> List[int]:
    """A process, its parent, and so on, without the first of all."""
    found: List[int] = []
    while pid > 1 and pid not in found:
        found.append(pid)
        process = look(pid)
        pid = process.parent if process else 0
    return found


def group_of(pid: int) -> str:
    """Its control groups, as the kernel tells them; empty if it is gone."""
    try:
        with open("/proc/%d/cgroup" % pid) as stream:
            return stream.read()
    except OSError:
        return ""


def executable(pid: int) -> Optional[str]:
    """Path of the running program, None where we may not know."""
    try:
        return os.readlink("/proc/%d/exe" % pid)
    except OSError:
        return None


def owner(pid: int) -> Optional[int]:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None


def command(pid: int, limit: int = 400) -> str:
    """Its arguments, as it shows them."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            words = stream.read(limit).rstrip(b"\0").split(b"\0")
    except OSError:
        return ""
    return b" ".join(words).decode("utf-8", "backslashreplace")


def listener(port: int) -> Optional[Dict[str, Any]]:
    """Whoever listens on a TCP port: {"pid", "command"}, pid None where we may not know; None if no one listens."""
    inodes = _listening(port)
    if not inodes:
        return None
    wanted = {"socket:[%s]" % inode for inode in inodes}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        folder = "/proc/%s/fd" % name
        try:
            if any(_link(os.path.join(folder, entry)) in wanted for entry in os.listdir(folder)):
                return {"pid": int(name), "command": command(int(name))}
        except OSError:
            continue
    return {"pid": None, "command": ""}


def _listening(port: int) -> List[str]:
    inodes = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(table) as stream:
                rows = [line.split() for line in stream.readlines()[1:]]
        except OSError:
            continue
        # 0A is LISTEN; the address is HEX:PORT
        inodes += [row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port]
    return inodes


def _link(path: str) -> Optional[str]:
    try:
        return os.readlink(path)
    except OSError:
        return None


def real_ids(pid: int) -> Optional[Tuple[int, int]]:
    """User and group that started it, whatever it runs as now; None if it is gone."""
    try:
        with open("/proc/%d/status" % pid) as stream:
            told = dict(line.split(":", 1) for line in stream if ":" in line)
        return int(told["Uid"].split()[0]), int(told["Gid"].split()[0])
    except (OSError, KeyError):
        return None


def same_root(pid: int) -> bool:
    """Whether `/` is for it what it is for us; taken to be so where we may not know."""
    try:
        return os.path.samestat(os.stat("/proc/%d/root/" % pid), os.stat("/"))
    except OSError:
        return True
