"""Who a process is, from /proc: its number, since when it runs, its command line, whose it is, what unit it is in.

A pid alone is never enough, since pids are used again. `root`: where the file system of this machine is mounted.
"""

from __future__ import annotations

import os
import re
import signal as signals
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from opsctl.agent.process import ports

_LONGEST = 1 << 21  # bytes: the kernel allows a command line of 2 MiB (ARG_MAX with the usual stack)
# Services that processes live in without being what the service is for: a login, a job.
_NOT_SERVING = ("user@", "ssh", "cron", "atd", "systemd-", "docker", "containerd", "getty@", "supervisor")
_OF_A_USER = re.compile(r"/user@\d+\.service/(?:[^\n]*?/)?([^/\n]+\.service)(?:/|$)", re.M)
_OF_THE_SYSTEM = re.compile(r"/([^/\n]+\.service)(?:/|$)", re.M)


class Process(NamedTuple):
    """One line of /proc/PID/stat, as much of it as identifies a process. `start` is in clock ticks since boot.

    name: what the kernel calls it, in 15 characters at most.
    """

    pid: int
    name: str
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


def look(pid: int, root: str = "/") -> Optional[Process]:
    """The process with this pid, None if there is none."""
    line = read(pid, "stat", root)
    head, found, rest = (line or b"").rpartition(b")")  # the name in brackets may hold anything, brackets too
    fields = rest.split()
    if not found or len(fields) < 20:
        return None
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(pid, name, fields[0].decode(), int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def numbers(root: str = "/") -> List[int]:
    """The pids that there are."""
    try:
        return [int(name) for name in os.listdir(os.path.join(root, "proc")) if name.isdigit()]
    except OSError:
        return []


def read(pid: int, file: str, root: str = "/", most: int = _LONGEST) -> Optional[bytes]:
    """A file of a process's folder; None where it is gone or we may not know."""
    try:  # without `open`, which takes three times as long: there may be thousands
        handle = os.open(os.path.join(root, "proc", str(pid), file), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    found = b""
    try:
        while len(found) < most:
            part = os.read(handle, min(1 << 16, most - len(found)))
            if not part:
                break
            found += part
    except OSError:  # it ended meanwhile
        return None
    finally:
        os.close(handle)
    return found


def text(pid: int, file: str, root: str = "/") -> str:
    """The same as text; empty where it is gone or we may not know."""
    return (read(pid, file, root) or b"").decode("utf-8", "replace")


def link(pid: int, name: str, root: str = "/") -> Optional[str]:
    """Where a link of its folder leads: exe, cwd, fd/1; None where it is gone or we may not know."""
    try:
        return os.readlink(os.path.join(root, "proc", str(pid), name))
    except OSError:
        return None


def processes(root: str = "/") -> List[Process]:
    """All that there are, zombies too."""
    looked = (look(pid, root) for pid in numbers(root))
    return [process for process in looked if process is not None]


def session(sid: int) -> List[Process]:
    """Living processes of a session. It stays with its members when their parent dies or they change their title."""
    return [process for process in processes() if process.session == sid and process.alive]


def control_group(pid: int) -> List[int]:
    """Processes in the control group of one, itself included; empty if it is gone or in the group of all."""
    own = group_of(pid)
    if all(line.endswith(":/") for line in own.splitlines()):
        return []
    return [pid for pid in numbers() if group_of(pid) == own]


def ancestors(pid: int) -> List[int]:
    """A process, its parent, and so on, without the first of all."""
    found: List[int] = []
    while pid > 1 and pid not in found:
        found.append(pid)
        process = look(pid)
        pid = process.parent if process else 0
    return found


def family(pid: int) -> List[int]:
    """A process and all its descendants, in the order of their numbers."""
    parents = {process.pid: process.parent for process in processes()}
    found, grown = {pid}, True
    while grown:
        more = {child for child, parent in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(found)


def group_of(pid: int) -> str:
    """Its control groups, as the kernel tells them; empty if it is gone."""
    return text(pid, "cgroup")


def unit_of(group: str) -> Tuple[Optional[str], bool]:
    """The unit that a control group belongs to, None for none; and whether it is one of a user's own systemd."""
    of_a_user = _OF_A_USER.search(group)
    found = of_a_user or _OF_THE_SYSTEM.search(group)
    if found is None or found.group(1).startswith(_NOT_SERVING):
        return None, False
    return found.group(1), of_a_user is not None


def container_of(group: str) -> Optional[str]:
    """The id of the container that a control group belongs to; None for none."""
    found = re.search(r"(?:docker|libpod|cri-containerd)[-/]([0-9a-f]{12,64})", group)
    return found.group(1) if found else None


def executable(pid: int) -> Optional[str]:
    """Path of the running program, None where we may not know."""
    return link(pid, "exe")


def owner(pid: int) -> Optional[int]:
    try:
        return os.stat("/proc/%d" % pid).st_uid
    except OSError:
        return None


def began(process: Process) -> float:
    """When it was started, in seconds since the epoch."""
    # Not from btime of /proc/stat: that is cut to whole seconds, and source is patched a moment before a restart.
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK"))


def argv(pid: int, root: str = "/") -> List[str]:
    """Its arguments, as bytes that are no text can be had back from (os.fsencode); none if it is gone.

    A process that is stuck with its memory locked cannot be asked: who tries is stuck as well.
    """
    return _strings(pid, "cmdline", root) or []


def environment(pid: int, root: str = "/") -> Optional[Dict[str, str]]:
    """The variables that it was started with, in the same form; None where we may not know."""
    found = _strings(pid, "environ", root)
    return None if found is None else dict(pair.split("=", 1) for pair in found if "=" in pair)


def _strings(pid: int, file: str, root: str) -> Optional[List[str]]:
    data = read(pid, file, root)
    if not data:
        return None if data is None else []
    return [os.fsdecode(word) for word in data[: -data.endswith(b"\0") or None].split(b"\0")]


def is_same(process: Process) -> bool:
    """Whether it still lives: its number alone may be another's by now."""
    now = look(process.pid)
    return now is not None and now.start == process.start and now.alive


def signal(process: Process, number: int) -> None:
    """Send a signal if the pid still means the same process. With a pidfd (Python 3.9) it cannot change in between.

    Raises ProcessLookupError if it is gone or another, OSError if the signal may not be sent.
    """
    opener = getattr(os, "pidfd_open", None)
    sender = getattr(signals, "pidfd_send_signal", None)
    handle: Optional[int] = None
    if opener and sender:
        try:
            handle = opener(process.pid)
        except ProcessLookupError:
            raise
        except OSError:  # a kernel before 5.3, or a sandbox that knows no such call
            handle = None
    try:
        if not is_same(process):
            raise ProcessLookupError(process.pid)
        if handle is not None and sender:
            sender(handle, number)
        else:
            os.kill(process.pid, number)
    finally:
        if handle is not None:
            os.close(handle)


def command(pid: int, limit: int = 400, root: str = "/") -> str:
    """Its arguments on one line, as it shows them, cut; for people, or to look for a title in."""
    data = read(pid, "cmdline", root, limit) or b""
    return data.rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "backslashreplace")


def listener(port: int) -> Optional[Dict[str, Any]]:
    """Whoever listens on a TCP port: {"pid", "command"}, pid None where we may not know; None if no one listens."""
    inodes = [inode for _, inode in ports.listening(port)]
    if not inodes:
        return None
    wanted = {"socket:[%s]" % inode for inode in inodes}
    for pid in numbers():
        try:
            handles = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        if any(link(pid, "fd/" + handle) in wanted for handle in handles):
            return {"pid": pid, "command": command(pid)}
    return {"pid": None, "command": ""}


def real_ids(pid: int) -> Optional[Tuple[int, int]]:
    """User and group that started it, whatever it runs as now; None if it is gone."""
    told = status(pid)
    return (int(told["Uid"].split()[0]), int(told["Gid"].split()[0])) if "Uid" in told else None


def all_ids(pid: int) -> Optional[Set[int]]:
    """The users it runs as: real, effective, saved, of the file system; None if it is gone."""
    told = status(pid)
    return {int(word) for word in told["Uid"].split()} if "Uid" in told else None


def status(pid: int, root: str = "/") -> Dict[str, str]:
    """/proc/PID/status by the names of its lines; empty if it is gone."""
    pairs = (line.partition(":") for line in text(pid, "status", root).splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def same_root(pid: int) -> bool:
    """Whether `/` is for it what it is for us; taken to be so where we may not know."""
    try:
        return os.path.samestat(os.stat("/proc/%d/root/" % pid), os.stat("/"))
    except OSError:
        return True
