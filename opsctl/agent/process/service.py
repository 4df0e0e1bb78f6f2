"""Units of systemd, system or user, through systemctl."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, cast

from opsctl.agent.core.undo_record import load, save
from opsctl.agent.gpu import vram
from opsctl.agent.process import pids
from opsctl.agent.process.commands import Done, ending, execute
from opsctl.wire.protocol import AgentError, Context
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Action, Restored, Started, Unit

PROPERTIES = (
    "Type",
    "RemainAfterExit",
    "ConditionResult",
    "TriggeredBy",
    "ExecMainCode",
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
TICK = 0.2
LASTS = 1.0  # seconds from the first to the last look at what was started: what ends at once is not running
YOUNG = 10.0  # seconds that a unit must live, once systemd had to start it again, to be taken for sound


def show(call: Context, unit: str, user: bool = False) -> Unit:
    """State of a unit: the properties above, by name; `enabled` and `up` are drawn from them."""
    done = _systemctl(call, user, ["show", "--property=" + ",".join(PROPERTIES), "--", unit], QUICK)
    if done.code != 0:
        raise AgentError("failed", "systemctl show %s: %s" % (unit, ending(done)))
    pairs = (line.partition("=") for line in done.out.decode("utf-8", "replace").splitlines())
    found: Dict[str, Any] = {key: value for key, _, value in pairs if key in PROPERTIES}
    enabled = found.get("UnitFileState", "").startswith(("enabled", "linked-enabled", "alias"))
    return cast("Unit", dict(found, up=found.get("ActiveState") in UP, enabled=enabled))


def look(call: Context, unit: str, user: bool = False) -> Unit:
    """As `show`, and `failing`: why a unit that is up does not run as it should, None if nothing speaks against it.

    One that systemd had to start again and that is young is watched until it has lived for `YOUNG` seconds.
    """
    found = show(call, unit, user)
    text = "it ends again and again: systemd has started it anew %s times"
    failing = text % found.get("NRestarts") if _between_starts(found) else None
    now = found
    while failing is None and found["up"] and found.get("NRestarts", "0") != "0" and not call.cancelled():
        lived = _lived(now)
        if lived is None or lived >= YOUNG:
            break
        time.sleep(TICK)
        now = show(call, unit, user)
        if _between_starts(now) or not now["up"] or now.get("NRestarts") != found["NRestarts"]:
            failing = text % now.get("NRestarts")
    now["failing"] = failing
    return now


def change(
    call: Context,
    unit: str,
    actions: List[Action],
    user: bool = False,
    expect: Optional[Dict[str, Optional[str]]] = None,
    timeout: float = 300.0,
    keep: Optional[str] = None,
    judge: bool = False,
) -> Unit:
    """Do things to a unit, in this order: daemon-reload, enable, disable, start, stop, restart, reload.

    judge: look whether the unit then is what was asked for, not only whether systemd has taken the order; see `_judge`.
    Else that is the business of whoever waits for it to answer.
    """
    before = look(call, unit, user)
    for key, value in (expect or {}).items():
        if before.get(key) != value:
            text = "%s has changed since it was looked at: %s is %s, not %s"
            raise AgentError("conflict", text % (unit, key, before.get(key), value))
    save(call, keep, {"before": before, "actions": actions})
    for action in actions:
        call.progress({"text": "%s %s" % (action, unit)})
        _do(call, user, action, unit, timeout)
    return _judge(call, unit, user, actions, timeout) if judge else show(call, unit, user)


def restore(call: Context, unit: str, keep: str, user: bool = False, timeout: float = 300.0) -> Restored:
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


def resume(
    call: Context, unit: str, keep: str, user: bool = False, timeout: float = 300.0, judge: bool = False
) -> Started:
    """Once everything else is undone: have systemd read the unit again, and run it if it ran before.

    judge: as of `change`, for a unit that ran well before.
    """
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
    if judge and not record["before"].get("failing"):
        _judge(call, unit, user, ["start"], timeout)
    return {"started": True}


def _judge(call: Context, unit: str, user: bool, actions: List[Action], timeout: float) -> Unit:
    """What a unit is after `actions`. Raises AgentError if it is not what they were to make of it.

    One that was started has to be active, and its main process, where it has one, the same for `LASTS` seconds. A
    oneshot unit may have ended well; timers, sockets and the like have to be active.
    """
    began = time.monotonic()
    first: Optional[Unit] = None
    since = began
    while True:
        now = show(call, unit, user)
        for action, wanted in (("enable", True), ("disable", False)):
            if action in actions and now["enabled"] != wanted:
                text = "%s is %s after systemctl %s: its file has no [Install] section, or another one enables it"
                raise AgentError("failed", text % (unit, now.get("UnitFileState") or "not enabled", action), unit=unit)
        if "stop" in actions and now["up"]:
            by = now.get("TriggeredBy")
            text = "%s is %s again after its stop%s"
            raise AgentError(
                "failed", text % (unit, now["ActiveState"], "; it is started by " + by if by else ""), unit=unit
            )
        if not {"start", "restart", "reload"} & set(actions):
            return now
        wrong = _wrong(unit, now, first)
        if wrong is not None:
            raise AgentError("failed", wrong + _last_words(call, unit, user, now), unit=unit)
        if now.get("ActiveState") == "inactive":
            return now  # a oneshot unit that has done its work
        if now.get("ActiveState") in ("active", "reloading"):
            if not _main(now):
                return now
            if first is None or _main(first) != _main(now):
                first, since = now, time.monotonic()
            elif time.monotonic() - since >= LASTS:
                return now
        if call.cancelled() or time.monotonic() - began >= timeout:
            raise AgentError("timeout", "%s is still %s" % (unit, now.get("ActiveState")), unit=unit)
        time.sleep(TICK)


def _wrong(unit: str, now: Unit, first: Optional[Unit]) -> Optional[str]:
    """What speaks against a unit that was started; first: what it was when it was first seen to run."""
    how = _how_it_ended(now)
    if _between_starts(now) or (first and now.get("NRestarts") != first.get("NRestarts")):
        return "%s ended (%s), and systemd starts it again: a crash loop" % (unit, how)
    if now.get("ActiveState") == "failed":
        return "%s failed: %s" % (unit, how)
    if now.get("ActiveState") != "inactive":
        return None
    if now.get("ConditionResult") == "no":
        return "%s was not started by systemd: a condition in its file does not hold" % unit
    done = now.get("Type") == "oneshot" and now.get("RemainAfterExit") != "yes" and now.get("Result") == "success"
    return None if done else "%s ended at once: %s" % (unit, how)


def _between_starts(now: Unit) -> bool:
    return str(now.get("SubState", "")).startswith("auto-restart")


def _main(now: Unit) -> int:
    text = now.get("MainPID", "")
    return int(text) if text.isdigit() else 0


def _lived(now: Unit) -> Optional[float]:
    """For how many seconds its main process has lived; None if it has none."""
    text = now.get("ExecMainStartTimestampMonotonic", "")
    return time.monotonic() - int(text) / 1e6 if _main(now) and text.isdigit() and int(text) else None


def _how_it_ended(now: Unit) -> str:
    status, result = now.get("ExecMainStatus", ""), now.get("Result", "")
    if now.get("ExecMainCode") in ("2", "3"):
        return "killed by signal %s" % status
    return "exit code %s" % status if result in ("", "success", "exit-code") and status else result or "no reason given"


def this_start(unit: str, user: bool, shown: Unit) -> List[str]:
    """Arguments of journalctl for what a unit has said, and systemd of it, since it was last started."""
    invocation = shown.get("InvocationID")
    if invocation:
        fields = ("_SYSTEMD_INVOCATION_ID", "USER_INVOCATION_ID" if user else "INVOCATION_ID")
        return ["%s=%s" % (fields[0], invocation), "+", "%s=%s" % (fields[1], invocation)]
    text = shown.get("ExecMainStartTimestampMonotonic", "")
    ago = time.monotonic() - int(text) / 1e6 if text.isdigit() and int(text) else 0.0
    return ["--since=@%d" % (time.time() - max(0.0, ago)), "--user-unit" if user else "--unit", unit]


def _last_words(call: Context, unit: str, user: bool, now: Unit) -> str:
    """The last thing that this start of the unit itself said, as the journal has it; '' where it has nothing."""
    if not now.get("InvocationID"):
        return ""
    argv = ["journalctl", "--quiet", "--no-pager", "--output=cat", "--lines=20"] + (["--user"] if user else [])
    try:
        done = execute(call, argv + this_start(unit, user, now)[:1], env={"LC_ALL": "C"}, timeout=QUICK)
    except AgentError:
        return ""  # no journal, or not for us: what systemd says of the unit stands alone
    lines = Redactor().feed(done.out).decode("utf-8", "replace").splitlines() if done.code == 0 else []
    said = [line.strip() for line in lines if line.strip()]
    return "; the last it said: %s" % said[-1][:300] if said else ""


def _do(call: Context, user: bool, action: str, unit: str, timeout: float) -> None:
    before = vram.held(call, _members(call, unit, user)) if action == "stop" else None
    words = [action] if action == "daemon-reload" else [action, "--", unit]
    done = _systemctl(call, user, words, timeout)
    if done.code != 0:
        last = _last_words(call, unit, user, show(call, unit, user)) if action in ("start", "restart", "reload") else ""
        text = "systemctl %s %s: %s%s" % (action, unit, ending(done), last)
        raise AgentError("failed", text, unit=unit, action=action)
    if action == "stop":
        vram.wait_back(call, before)


def _members(call: Context, unit: str, user: bool) -> List[int]:
    main = _main(show(call, unit, user))
    return pids.control_group(main) if main else []


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


CALLS = {"show": look, "change": change, "restore": restore, "resume": resume}
