"""Units of systemd, system or user, through systemctl."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

from opsctl.agent import pids, vram
from opsctl.agent.keep import load, save
from opsctl.agent.proc import Done, ending, execute
from opsctl.agent.protocol import AgentError, Context

PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "MainPID",
    "ControlGroup",
    "NRestarts",
    "Result",
    "ExecMainStatus",
    "NeedDaemonReload",
    "FragmentPath",
    "InvocationID",
    "ExecMainStartTimestampMonotonic",
)
QUICK = 30.0  # seconds for a question
UP = ("active", "activating", "reloading")


def show(call: Context, unit: str, user: bool = False) -> Dict[str, Any]:
    """State of a unit: the properties above, by name; `enabled` and `up` are drawn from them."""
    done = _systemctl(call, user, ["show", "--property=" + ",".join(PROPERTIES), "--", unit], QUICK)
    if done.code != 0:
        raise AgentError("failed", "systemctl show %s: %s" % (unit, ending(done)))
    pairs = (line.partition("=") for line in done.out.decode("utf-8", "replace").splitlines())
    found: Dict[str, Any] = {key: value for key, _, value in pairs if key in PROPERTIES}
    found["up"] = found.get("ActiveState") in UP
    found["enabled"] = found.get("UnitFileState", "").startswith(("enabled", "linked-enabled", "alias"))
    return found


def change(
    call: Context,
    unit: str,
    actions: List[str],
    user: bool = False,
    expect: Optional[Dict[str, Any]] = None,
    timeout: float = 300.0,
    keep: Optional[str] = None,
) -> Dict[str, Any]:
    """Do things to a unit, in this order: daemon-reload, enable, disable, start, stop, restart, reload."""
    before = show(call, unit, user)
    for key, value in (expect or {}).items():
        if before.get(key) != value:
            text = "%s has changed since it was looked at: %s is %s, not %s"
            raise AgentError("conflict", text % (unit, key, before.get(key), value))
    save(call, keep, {"before": before, "actions": actions})
    for action in actions:
        call.progress({"text": "%s %s" % (action, unit)})
        _do(call, user, action, unit, timeout)
    return show(call, unit, user)


def restore(call: Context, unit: str, keep: str, user: bool = False, timeout: float = 300.0) -> Dict[str, Any]:
    """Take a change back as far as it must be before other things are undone: stop it, put enablement back."""
    record = load(call, keep)
    if record is None or record.get("undone"):
        return {"restored": False}
    before, now = record["before"], show(call, unit, user)
    started = any(action in record["actions"] for action in ("start", "restart"))
    if started and now["up"] and now.get("InvocationID") != before.get("InvocationID"):
        _do(call, user, "stop", unit, timeout)
    if now["enabled"] != before["enabled"]:
        _do(call, user, "enable" if before["enabled"] else "disable", unit, timeout)
    save(call, keep, dict(record, undone=True))
    return {"restored": True}


def resume(call: Context, unit: str, keep: str, user: bool = False, timeout: float = 300.0) -> Dict[str, Any]:
    """Once everything else is undone: have systemd read the unit again, and run it if it ran before."""
    record = load(call, keep)
    if record is None:
        return {"started": False}
    now = show(call, unit, user)
    first = "daemon-reload" in record["actions"] and not record.get("settled")
    if now.get("NeedDaemonReload") == "yes" or first:
        _do(call, user, "daemon-reload", unit, timeout)
        save(call, keep, dict(record, settled=True))
    if not record["before"]["up"]:
        return {"started": False}
    if now["up"]:
        if "reload" in record["actions"]:
            _do(call, user, "reload", unit, timeout)
        return {"started": False}
    _do(call, user, "start", unit, timeout)
    return {"started": True}


def _do(call: Context, user: bool, action: str, unit: str, timeout: float) -> None:
    before = vram.held(call, _members(call, unit, user)) if action == "stop" else None
    words = [action] if action == "daemon-reload" else [action, "--", unit]
    done = _systemctl(call, user, words, timeout)
    if done.code != 0:
        raise AgentError("failed", "systemctl %s %s: %s" % (action, unit, ending(done)), unit=unit, action=action)
    if action == "stop":
        vram.wait_back(call, before)


def _members(call: Context, unit: str, user: bool) -> List[int]:
    main = show(call, unit, user).get("MainPID", "")
    return pids.control_group(int(main)) if main.isdigit() and int(main) else []


def _systemctl(call: Context, user: bool, words: List[str], timeout: float) -> Done:
    argv = ["systemctl", "--no-pager", "--no-ask-password"] + (["--user"] if user else []) + words
    try:
        done = execute(call, argv, env={"LC_ALL": "C", "SYSTEMD_COLORS": "0"}, timeout=timeout)
    except AgentError as error:
        if error.kind == "not-found":
            raise AgentError("missing-tool", "this host has no systemctl", tool="systemctl") from None
        raise
    said = done.err.decode("utf-8", "replace")
    if "not been booted with systemd" in said or "Failed to connect to bus" in said:
        what = "no systemd of this user runs" if user else "systemd does not run"
        raise AgentError("missing-tool", "%s on this host: %s" % (what, ending(done)), tool="systemd")
    return done


CALLS = {"show": show, "change": change, "restore": restore, "resume": resume}
