"""Whose process listens on a port, and whether opsctl may take it over: stop it, and start it again as it was.

A process is taken over only when it is an SGLang server by its own command line, program and place in the tree of
processes, and when all that starts it again could be read. Everything else is told by name and left alone.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, List, Optional, cast

from opsctl.agent.core import users
from opsctl.agent.process import pids, service
from opsctl.wire import command_line
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Listener, Service, Unit

# By the name that the kernel has of them: each starts its child again, or ends with it.
_MANAGERS = ("supervisord", "circusd", "runsv", "s6-supervise", "slurmstepd")
# What a container begins with, where it is not the program itself; the container ends with its first child.
_FIRST_OF_A_CONTAINER = ("tini", "docker-init", "dumb-init", "catatonit")
_NAMESPACES = ("mnt", "pid", "net", "user")


def listening(call: Context, port: int) -> Optional[Listener]:
    """Who listens on a port; None if no one does."""
    found = pids.listener(port)
    if found is None or found["pid"] is None:
        return cast("Optional[Listener]", found)
    first = server_of(found["pid"])
    seen = first or pids.look(found["pid"])
    if seen is None:
        return {"pid": None, "command": found["command"]}  # it ended while it was looked at
    argv = command_line.masked(pids.argv(seen.pid))
    uid = pids.owner(seen.pid)
    return {
        "pid": seen.pid,
        "start": seen.start,
        "command": " ".join(argv)[:400],
        "argv": argv,
        "server": first is not None,
        "user": None if uid is None else users.name_of(uid),
        "began": pids.began(seen),
        "service": _service_of(call, seen.pid),
        "obstacle": obstacle(seen) if first is not None else None,
    }


def server_of(pid: int) -> Optional[pids.Process]:
    """The first process of the SGLang server that a process is part of; None if it is part of none.

    Parts of a server have titles of their own. A program that holds a server (`timeout`, `ssh`, `tmux` with the
    server's command as arguments) is none: stopping it would end more than the server.
    """
    found = None
    for each in pids.ancestors(pid):
        if _runs_server(each):
            found = each
        elif found is not None:
            break
    return pids.look(found) if found is not None else None


def obstacle(process: pids.Process) -> Optional[str]:
    """Why a server cannot be stopped and started again as it was; None if it can."""
    pid, me = process.pid, os.geteuid()
    ids = pids.all_ids(pid)
    if ids is None:
        return "it has ended"
    if set(ids) != {me}:
        others = sorted(ids - {me})
        whose = " and ".join(users.name_of(uid) for uid in others)
        return "it runs as %s, and opsctl works as %s here" % (whose, users.name_of(me))
    inside = _other_world(pid)
    if inside is not None:
        return inside
    manager = _manager(process)
    if manager is not None:
        return manager
    if process.group != pid:
        return "it shares its process group with what started it (pid %d: %s)" % (
            process.group, pids.command(process.group, 80) or "ended",
        )  # fmt: skip
    return _unrecorded(pid)


def bystanders(process: pids.Process) -> List[pids.Process]:
    """Living members of its process group that are no part of the server, as `tee` at the end of a pipe."""
    family = set(pids.family(process.pid))
    members = [each for each in pids.session(process.session) if each.group == process.group]
    return [each for each in members if each.pid not in family and not command_line.is_part(pids.command(each.pid))]


def _runs_server(pid: int) -> bool:
    program = pids.executable(pid)
    if program is not None and not command_line.is_python(program.replace(" (deleted)", "")):
        return False  # a name says nothing: any program can be given any arguments
    return command_line.runs_server(pids.argv(pid))


def _other_world(pid: int) -> Optional[str]:
    for kind in _NAMESPACES:
        try:
            theirs = os.readlink("/proc/%d/ns/%s" % (pid, kind))
        except OSError:
            return "its %s namespace cannot be read" % kind
        if theirs != os.readlink("/proc/self/ns/" + kind):
            container = pids.container_of(pids.group_of(pid))
            return "it runs in container %s" % container[:12] if container else "it runs in a container"
    return None


def _manager(process: pids.Process) -> Optional[str]:
    """Which program would notice its end, and start it again or end too."""
    above = pids.look(process.parent)
    parent = above.name if above else ""
    # What has lost its parent gets process 1 for one, which is supervisord in many containers.
    if parent in _MANAGERS and (
        process.parent != 1 or "SUPERVISOR_PROCESS_NAME" in (pids.environment(process.pid) or ())
    ):
        return "%s (pid %d) would start it again" % (parent, process.parent)
    if process.pid == 1 or (parent in _FIRST_OF_A_CONTAINER and process.pid == _eldest(process.parent)):
        return "it is the main process of its container, which ends with it"
    return None


def _eldest(parent: int) -> Optional[int]:
    """The child that a process has had for the longest."""
    children = [each for each in pids.processes() if each.parent == parent]
    return min(children, key=lambda each: each.start).pid if children else None


def _unrecorded(pid: int) -> Optional[str]:
    """What a start of the same server would lack."""
    program = pids.executable(pid)
    if program is None or not os.access(program.replace(" (deleted)", ""), os.X_OK):
        return "its program %s is no longer there" % program
    if not pids.environment(pid):
        return "its environment cannot be read"
    try:
        folder = os.readlink("/proc/%d/cwd" % pid)
        there = os.path.samestat(os.stat("/proc/%d/cwd" % pid), os.stat(folder))
    except OSError:
        there = False
    return None if there else "its working folder is no longer there"


def _service_of(call: Context, pid: int) -> Optional[Service]:
    """The unit whose service this process is, or a child of it; None where it merely lives there.

    A unit of another user's systemd, which cannot be asked, is taken for what it seems.
    """
    unit, user = pids.unit_of(pids.group_of(pid))
    if unit is None:
        return None
    seen: Optional[Unit] = None
    with contextlib.suppress(AgentError):
        seen = service.show(call, unit, user)
    if seen is None or seen.get("LoadState") != "loaded":
        return {"unit": unit, "user": user} if user else None
    return {"unit": unit, "user": user} if int(seen.get("MainPID") or 0) in pids.ancestors(pid) else None
