"""Long-running processes of our own: started so that they are known for sure, and stopped without touching others.

A process is known by its record in the state folder: pid, session, start time and boot id, with everything needed to
start it again (readable by its owner alone, since the environment may hold keys). A name or a port never identifies a
process, and nothing that has no record is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, cast

from opsctl.agent.core import durable
from opsctl.agent.core.undo_record import load, save
from opsctl.agent.files import safepath
from opsctl.agent.files.safepath import told
from opsctl.agent.files.states import absolute
from opsctl.agent.gpu import vram
from opsctl.agent.logs.logtail import last_lines
from opsctl.agent.process import pids
from opsctl.agent.process.commands import unseal
from opsctl.agent.server import adoption
from opsctl.wire import command_line
from opsctl.wire.digests import environment_digest
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Adopted, Listener, ProcessRecord, Restored, Resumed, Status, StoppedProcess

Record = Dict[str, Any]
TERM_REST = 10.0  # seconds for what the main process leaves behind, after a SIGTERM of its own
GONE = 100.0  # seconds for killed processes to disappear: the GPU driver may hold them for long
RELEASE = 20.0  # seconds for the port of a process that has ended to be free
TICK = 0.1
LASTS = 1.0  # seconds that a process must live to count as started
WANTED = ("name", "argv", "cwd", "env", "log", "port")  # what a start is asked for; the rest of a record is found
# The shell waits until the record is durable, and becomes the program with the same pid and start time.
GATE = 'read -r go && exec "$@" </dev/null'
DRAFTER = re.compile(r"^/.*/[0-9a-f]{16}(/|$)")  # of a draft model: its folder is named by its content
_children: List["subprocess.Popen[bytes]"] = []  # started here: they are ours to reap, else they stay as zombies
NOT_INHERITED = re.compile(r"^(SSH_|SUDO_|XDG_|OPSCTL_|DBUS_|_$|OLDPWD$|PWD$|TERM$)")


def status(call: Context, name: str) -> Status:
    """State of a process: running | orphans (it has died, children of it live) | dead | absent (no record)."""
    record = _record(name)
    if record is None:
        return {"state": "absent"}
    members = living(record)
    main = [m for m in members if m.pid == record["pid"]]
    shown = {key: value for key, value in record.items() if key != "env"}
    shown["env_digest"] = environment_digest(record["env"])
    shown["members"] = [{"pid": m.pid, "state": m.state, "command": pids.command(m.pid)} for m in members]
    return cast("Status", dict(shown, state="running" if main else "orphans" if members else "dead"))


def start(
    call: Context,
    name: str,
    argv: List[str],
    log: str,
    cwd: Optional[str] = None,
    env: Optional[Dict[str, str]] = None,
    port: Optional[int] = None,
    sealed: int = 0,
    keep: Optional[str] = None,
    judge: bool = False,
) -> ProcessRecord:
    """Start a process in a session of its own, its output appended to `log`. Secret environment comes in the body.

    judge: fail with its exit code and last output if it does not live for `LASTS` seconds. Else that is the business of
    whoever waits for it to answer.
    """
    record = _record(name)
    if record is not None and living(record):
        raise AgentError("conflict", "%s runs already, as pid %d" % (name, record["pid"]), pid=record["pid"])
    secret, _ = unseal(call.body, sealed)
    wanted = {
        "name": name,
        "argv": argv,
        "cwd": absolute(cwd) if cwd else "/",
        "env": dict(env or {}, **secret.get("env", {})),
        "log": absolute(log),
        "port": port,
    }
    return _start(wanted, lambda new: save(call, keep, {"started": new}), judge)


def start_like(
    call: Context, name: str, like: str, without: Optional[str] = None, keep: Optional[str] = None
) -> ProcessRecord:
    """Start again what a stop that is kept as `like` has ended, as it was; `without` flags that begin so."""
    ended = load(call, like)
    if ended is None:
        raise AgentError("conflict", "%s has ended since it was looked at; there is nothing to start again" % name)
    wanted = _wanted(ended["stopped"])
    if without is not None:
        wanted["argv"] = command_line.without(wanted["argv"], without)
    return _start(wanted, lambda new: save(call, keep, {"started": new}))


def stop(call: Context, name: str, wait: float = 90.0, keep: Optional[str] = None) -> StoppedProcess:
    """Stop a process and what is left of its session: SIGTERM, `wait` seconds, SIGTERM to the rest, SIGKILL."""
    record = _record(name)
    if record is None:
        return {"stopped": False}
    members = living(record)
    save(call, keep, {"stopped": record, "ran": any(p.pid == record["pid"] for p in members)})
    _end(call, record, wait)
    _forget(name)
    return {"stopped": bool(members), "pid": record["pid"]}


def listener(call: Context, port: int) -> Optional[Listener]:
    """Whoever listens on a port, and whether it can be taken over; see `adoption.listening`."""
    return adoption.listening(call, port)


def adopt(call: Context, name: str, pid: int, start: int, port: Optional[int] = None) -> Adopted:
    """Make a record for a server that someone else started, so that it can be stopped, and started again, exactly."""
    seen = pids.look(pid)
    if seen is None or seen.start != start:
        raise AgentError("conflict", "pid %d is not the process that was looked at" % pid, pid=pid)
    first = adoption.server_of(pid)
    why = "it is not an SGLang server" if first is None or first.pid != pid else adoption.obstacle(seen)
    if why is not None:
        raise AgentError("conflict", "pid %d cannot be taken over: %s" % (pid, why), pid=pid)
    environment = pids.environment(pid)
    if not environment:
        raise AgentError("conflict", "pid %d cannot be taken over: its environment cannot be read" % pid, pid=pid)
    with told("read", "/proc/%d" % pid):
        record: Record = {
            "name": name,
            "argv": pids.argv(pid),
            "cwd": os.readlink("/proc/%d/cwd" % pid),
            "env": environment,
            "log": os.readlink("/proc/%d/fd/1" % pid),
            "port": port,
        }
    if not os.path.isfile(record["log"]):
        record["log"] = os.path.join(durable.folder("processes"), name + ".log")
    others = [[each.pid, each.start] for each in adoption.bystanders(seen)]
    record.update(pid=pid, sid=seen.session, group=pid, start=start, boot=pids.boot_id(), uid=pids.owner(pid))
    record.update(log_offset=0, since=time.time(), exe=pids.executable(pid), bystanders=others)
    if not pids.is_same(seen):
        raise AgentError("conflict", "pid %d has ended while it was looked at" % pid, pid=pid)
    durable.write(_path(name), json.dumps(record).encode())
    return {"adopted": pid}


def restore(call: Context, name: str, keep: str, wait: float = 90.0) -> Restored:
    """Take a start back: stop what it started, or what a later run has started again in just the same way."""
    kept = load(call, keep)
    now = _record(name)
    if kept is None or now is None or kept.get("undone"):
        return {"restored": False}
    if _identity(now) != _identity(kept["started"]) and not living(now):
        return {"restored": False}
    if _wanted(now) != _wanted(kept["started"]):
        raise AgentError("conflict", "%s was started anew with another command since, as pid %d" % (name, now["pid"]))
    _end(call, now, wait)
    _forget(name)
    save(call, keep, dict(kept, undone=True))
    return {"restored": True}


def resume(call: Context, name: str, keep: str, wait: float = 90.0, judge: bool = False) -> Resumed:
    """Start again what a stop ended, with the same program, arguments, environment and log. judge: as of `start`."""
    kept = load(call, keep)
    if kept is None or not kept["ran"]:
        return {"started": False}
    old = kept["stopped"]
    now = _record(name)
    if now is not None and living(now):
        if _identity(now) != _identity(old):
            return {"started": False, "pid": now["pid"]}
        _end(call, now, wait)  # it was told to stop, and may be half way
    return {"started": True, "pid": _start(old, lambda new: None, judge)["pid"]}


def needs(call: Context, name: str, keep: str, **_: Any) -> List[str]:
    """What `resume` lacks: the program, the folder it ran in, releases of draft models that its command names."""
    kept = load(call, keep)
    if kept is None or not kept["ran"]:
        return []
    old = kept["stopped"]
    named = [word.rpartition("=")[2] for word in old["argv"][1:]]
    paths = [old["argv"][0], old["cwd"], *(path for path in named if DRAFTER.search(path))]
    gone = [path for path in paths if path.startswith("/") and not os.path.exists(path)]
    return ["%s would be started again with %s, which is gone" % (name, path) for path in gone]


def living(record: Record) -> List[pids.Process]:
    """What lives of a recorded process: itself, and members of its session. Empty after a reboot."""
    _children[:] = [child for child in _children if child.poll() is None]
    if record["boot"] != pids.boot_id():
        return []
    leader = pids.look(record["pid"])
    if leader is not None and leader.start != record["start"]:
        return []  # the pid is someone else's now; it cannot be while a member of our session lives
    members = [p for p in pids.session(record["sid"]) if p.start >= record["start"]]
    group = record.get("group")  # of an adopted process, whose session may hold its owner's shell
    others = record.get("bystanders", ())
    return members if group is None else [p for p in members if p.group == group and [p.pid, p.start] not in others]


def is_alive(name: str) -> bool:
    """Whether the main process of a record lives."""
    record = _record(name)
    return record is not None and any(p.pid == record["pid"] for p in living(record))


def _start(wanted: Record, known: Callable[[Record], None], judge: bool = False) -> ProcessRecord:
    port = wanted["port"]
    taken = _holder(port) if port else None
    if taken:
        who = "pid %s (%s)" % (taken["pid"], taken["command"][:80]) if taken["pid"] else "another user's process"
        raise AgentError("conflict", "port %d is taken by %s" % (port, who), port=port, pid=taken["pid"])
    if not os.path.isdir(wanted["cwd"]):
        raise AgentError("not-found", "there is no folder %s to run in" % wanted["cwd"], path=wanted["cwd"])
    environment = {key: value for key, value in os.environ.items() if not NOT_INHERITED.match(key)}
    environment.update(wanted["env"])
    descriptor = _log(wanted["log"])
    try:
        seen_log = os.fstat(descriptor)
        offset, log_file = seen_log.st_size, [seen_log.st_dev, seen_log.st_ino]
        child = subprocess.Popen(
            ["/bin/sh", "-c", GATE, "sh"] + wanted["argv"],
            cwd=wanted["cwd"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=descriptor,
            stderr=descriptor,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    _children.append(child)
    assert child.stdin is not None
    seen = pids.look(child.pid)
    if seen is None:
        raise AgentError("failed", "the process ended before it began")
    record = dict(
        _wanted(wanted),
        pid=child.pid,
        sid=child.pid,
        start=seen.start,
        boot=pids.boot_id(),
        uid=os.getuid(),
        log_offset=offset,
        log_file=log_file,
        since=time.time(),
    )
    known(record)
    durable.write(_path(wanted["name"]), json.dumps(record).encode())
    child.stdin.write(b"go\n")
    child.stdin.close()
    _became(child, wanted)
    record["exe"] = pids.executable(child.pid)
    durable.write(_path(wanted["name"]), json.dumps(record).encode())
    if judge:
        _lasts(child, record)
    return cast("ProcessRecord", {key: value for key, value in record.items() if key != "env"})


def _log(path: str) -> int:
    """A log, open to be added to. Raises AgentError where somebody else decides which file that is."""
    with told("write the log", path), safepath.place(safepath.resolved(path)) as at:
        fd = at.open(os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o640)  # a pipe may have no reader
        if at.planted(os.fstat(fd)):
            os.close(fd)
            raise AgentError("permission", "%s may be a hard link that somebody has put there" % path, path=path)
        os.set_blocking(fd, True)
        return fd


def _lasts(child: "subprocess.Popen[bytes]", record: Record) -> None:
    """Raises AgentError if the process ends within `LASTS` seconds."""
    deadline = time.monotonic() + LASTS
    while child.poll() is None:
        if time.monotonic() >= deadline:
            return
        time.sleep(TICK)
    code = child.returncode
    how = "exit code %d" % code if code >= 0 else "killed by signal %d" % -code
    children = living(record)
    more = "; it left %d processes: it is to stay in the foreground" % len(children) if children else ""
    lines = last_lines(record["log"], record["log_offset"], 1)
    last = "; the last it said: %s" % lines[0].strip()[:300] if lines else ""
    text = "%s ended at once: %s%s%s" % (record["name"], how, more, last)
    raise AgentError("failed", text, code=code, log=record["log"])


def _holder(port: int) -> Optional[Dict[str, Any]]:
    """Who listens on a port. A process whose threads are still ending holds it for a moment, seen by nobody."""
    deadline = time.monotonic() + RELEASE
    while True:
        taken = pids.listener(port)
        if taken is None or taken["pid"] is not None or time.monotonic() >= deadline:
            return taken
        time.sleep(TICK)


def _became(child: "subprocess.Popen[bytes]", wanted: Record) -> None:
    """Wait until the shell has become the program. Raises AgentError if there is no such program."""
    deadline = time.monotonic() + 10.0
    while child.poll() is None and time.monotonic() < deadline:
        shown = pids.command(child.pid)
        if shown and GATE not in shown:  # one that is ending shows nothing, before it can be asked how it ended
            break
        time.sleep(0.005)
    if child.poll() in (126, 127):
        _forget(wanted["name"])
        why = "may not be executed" if child.returncode == 126 else "is not a program on this host"
        raise AgentError("not-found", "%s %s" % (wanted["argv"][0], why), path=wanted["argv"][0])


def _end(call: Context, record: Record, wait: float) -> None:
    """Stop what lives of it, and wait until the GPU memory it held is free."""
    before = vram.held(call, [p.pid for p in living(record)])
    _signal_all(call, record, wait)
    vram.wait_back(call, before)


def _signal_all(call: Context, record: Record, wait: float) -> None:
    steps = (
        ("SIGTERM", signal.SIGTERM, True, wait),
        ("SIGTERM", signal.SIGTERM, False, TERM_REST),
        ("SIGKILL", signal.SIGKILL, False, GONE),
    )
    for word, number, main_only, seconds in steps:
        members = living(record)
        if not members:
            return
        targets = [p for p in members if p.pid == record["pid"]] if main_only else members
        if not targets:
            continue
        call.progress({"text": "%s to %s" % (word, ", ".join(str(p.pid) for p in targets))})
        for process in targets:
            with contextlib.suppress(ProcessLookupError):
                pids.signal(process, number)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and {p.pid for p in living(record)} & {p.pid for p in targets}:
            time.sleep(TICK)
    left = living(record)
    if left:
        shown = ", ".join("%d (%s, state %s)" % (p.pid, pids.command(p.pid, 60), p.state) for p in left)
        raise AgentError("timeout", "still there after SIGKILL: %s; the host may need a reboot" % shown)


def _identity(record: Record) -> List[Any]:
    return [record["pid"], record["start"], record["boot"]]


def _wanted(record: Record) -> Record:
    return {key: record[key] for key in WANTED}


def _path(name: str) -> str:
    if not re.match(r"^[A-Za-z0-9][A-Za-z0-9_.@-]*$", name):
        raise AgentError("invalid", "not a name for a process: %r" % name)
    return os.path.join(durable.folder("processes"), name + ".json")


def _record(name: str) -> Optional[Record]:
    return durable.read_json(_path(name))


def _forget(name: str) -> None:
    path = _path(name)
    if os.path.exists(path):
        os.unlink(path)


NEEDS = {"resume": needs}
CALLS = {
    "status": status,
    "start": start,
    "start_like": start_like,
    "stop": stop,
    "listener": listener,
    "adopt": adopt,
    "restore": restore,
    "resume": resume,
}
