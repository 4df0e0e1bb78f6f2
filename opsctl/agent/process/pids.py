"""Who a process is, from /proc: a pid alone is never enough, since pids are used again."""

from __future__ import annotations

import os
import pwd
import signal as signals
import time
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple

from opsctl.agent.process import ports


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


def processes() -> List[Process]:
    """All that there are, zombies too."""
    looked = (look(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [process for process in looked if process is not None]


def session(sid: int) -> List[Process]:
    """Living processes of a session. It stays with its members when their parent dies or they change their title."""
    return [process for process in processes() if process.session == sid and process.alive]


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


def name(pid: int) -> str:
    """What the kernel calls it, in 15 characters at most; empty if it is gone."""
    try:
        with open("/proc/%d/comm" % pid) as stream:
            return stream.read().rstrip("\n")
    except OSError:
        return ""


def began(process: Process) -> float:
    """When it was started, in seconds since the epoch."""
    # Not from btime of /proc/stat: that is cut to whole seconds, and source is patched a moment before a restart.
    return time.time() - (time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK"))


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def argv(pid: int) -> List[str]:
    """Its arguments, as bytes that are no text can be had back from (os.fsencode); none if it is gone."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            data = stream.read()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data[: -data.endswith(b"\0") or None].split(b"\0")] if data else []


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
    inodes = [inode for _, inode in ports.listening(port)]
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


def all_ids(pid: int) -> Optional[Set[int]]:
    """The users it runs as: real, effective, saved, of the file system; None if it is gone."""
    try:
        with open("/proc/%d/status" % pid) as stream:
            told = dict(line.split(":", 1) for line in stream if ":" in line)
        return {int(word) for word in told["Uid"].split()}
    except (OSError, KeyError):
        return None


def same_root(pid: int) -> bool:
    """Whether `/` is for it what it is for us; taken to be so where we may not know."""
    try:
        return os.path.samestat(os.stat("/proc/%d/root/" % pid), os.stat("/"))
    except OSError:
        return True
