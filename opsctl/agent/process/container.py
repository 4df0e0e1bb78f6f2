"""Docker containers: looked at, stopped and started. What is in them is their maker's business."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, List

from opsctl.agent.core.undo_record import load, save
from opsctl.agent.gpu import vram
from opsctl.agent.process import pids
from opsctl.agent.process.commands import Done, ending, execute
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.process import Container, Restored, Started, Stopped

QUICK = 30.0  # seconds for a question


def look(call: Context, name: str) -> Container:
    """How a container is."""
    done = _docker(call, ["container", "inspect", "--", name], QUICK)
    if done.code != 0:
        if b"no such container" in done.err.lower():
            return {"exists": False, "running": False}
        raise AgentError("failed", "docker inspect %s: %s" % (name, ending(done)))
    found = json.loads(done.out.decode("utf-8", "replace"))[0]
    state, config = found.get("State", {}), found.get("Config", {})
    return {
        "exists": True,
        "running": bool(state.get("Running")),
        "restarting": bool(state.get("Restarting")),
        "restarts": found.get("RestartCount") or 0,
        "started": state.get("StartedAt"),
        "pid": state.get("Pid") or None,
        "image": config.get("Image"),
        "command": list(found.get("Args") or []),
        "mounts": {mount.get("Destination"): mount.get("Source") for mount in found.get("Mounts") or []},
    }


def stop(call: Context, name: str, wait: float, keep: str) -> Stopped:
    """SIGTERM, and after `wait` seconds SIGKILL."""
    before = look(call, name)
    save(call, keep, {"before": before})
    if before["running"]:
        _end(call, name, before, wait)
    return {"stopped": before["running"]}


def start(call: Context, name: str, keep: str) -> Container:
    before = look(call, name)
    save(call, keep, {"before": before})
    if not before["running"]:
        _demand(call, ["start", "--", name], 120.0)
    return look(call, name)


def restore(call: Context, name: str, keep: str, wait: float) -> Restored:
    """Take a start back."""
    record = load(call, keep)
    now = look(call, name)
    if record is None or record["before"]["running"] or not now["running"] or record.get("undone"):
        return {"restored": False}
    _end(call, name, now, wait)
    save(call, keep, dict(record, undone=True))
    return {"restored": True}


def resume(call: Context, name: str, keep: str) -> Started:
    """Start again what a stop ended."""
    record = load(call, keep)
    if record is None or not record["before"]["running"] or look(call, name)["running"]:
        return {"started": False}
    _demand(call, ["start", "--", name], 120.0)
    return {"started": True}


def _end(call: Context, name: str, now: Container, wait: float) -> None:
    """Stop it, and wait until the GPU memory it held is free."""
    pid = now.get("pid")
    before = vram.held(call, pids.control_group(pid) if pid else [])
    _demand(call, ["stop", "--time", str(int(wait)), "--", name], wait + 60)
    vram.wait_back(call, before)


def _demand(call: Context, words: List[str], timeout: float) -> None:
    call.progress({"text": "docker %s %s" % (words[0], words[-1])})
    done = _docker(call, words, timeout)
    if done.code != 0:
        raise AgentError("failed", "docker %s %s: %s" % (words[0], words[-1], ending(done)))


def _docker(call: Context, words: List[str], timeout: float) -> Done:
    try:
        return execute(call, ["docker"] + words, env={"LC_ALL": "C"}, timeout=timeout, keep_output=16 << 20)
    except AgentError as error:
        if error.kind == "not-found":
            raise AgentError("missing-tool", "docker is not installed on this host", tool="docker") from None
        raise


CALLS = {"look": look, "stop": stop, "start": start, "restore": restore, "resume": resume}
