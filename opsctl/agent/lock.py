"""The host's lock: an flock held by the living, with the holder's name in the file. Nothing to break by hand."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, Optional

from opsctl.agent import durable, flocks, masking
from opsctl.agent.protocol import AgentError, Context

_held: Dict[str, int] = {}
_guard = threading.Lock()


def take(
    call: Context, holder: Dict[str, Any], name: str = "host", wait: float = 0.0, token: str = ""
) -> Dict[str, Any]:
    """Take a lock until this agent ends. Raises AgentError locked, with the holder, once `wait` seconds are over.

    Another agent that has it with the same `token` works for the same controller: then there is nothing to take.
    """
    path = _path(name)
    start = time.monotonic()
    told: Optional[Dict[str, Any]] = None
    while True:
        with _guard:
            if name in _held:
                return {"waited": 0.0}
            fd = flocks.take(path, 0.1)
            if fd is not None:
                flocks.say(fd, durable.json_bytes(dict(masking.data(holder, masking.known), token=token)))
                _held[name] = fd
                return {"waited": round(time.monotonic() - start, 3)}
        now = durable.read_json(path)
        if now is not None and now.pop("token", "") == token != "":
            return {"waited": round(time.monotonic() - start, 3)}
        if time.monotonic() - start >= wait or call.cancelled():
            raise AgentError("locked", _sentence(now), holder=now)
        if now != told:
            told = now
            call.progress({"waiting_for": now})
        time.sleep(0.2)


def release(call: Context, name: str = "host") -> bool:
    """Let go of a lock. Says whether this agent had it."""
    with _guard:
        fd = _held.pop(name, None)
        if fd is None:
            return False
        # A supervisor may hold on to it through a descriptor of its own: then the name has to stay.
        os.close(fd)
        free = flocks.take(_path(name), 0.0)
        if free is not None:
            flocks.say(free, b"")
            os.close(free)
        return True


def show(call: Context, name: str = "host") -> Optional[Dict[str, Any]]:
    """Who holds a lock, None if nobody does."""
    path = _path(name)
    if not flocks.is_locked(path):
        return None
    holder = durable.read_json(path) or {}
    holder.pop("token", None)
    return holder


def descriptors() -> List[int]:
    """The descriptors that keep this process's locks, for a process that is to hold them as well."""
    with _guard:
        return list(_held.values())


def _path(name: str) -> str:
    if not name.isidentifier():
        raise AgentError("invalid", "%r cannot be the name of a lock" % name)
    return os.path.join(durable.folder("locks"), name)


def _sentence(holder: Optional[Dict[str, Any]]) -> str:
    if not holder:
        return "somebody else holds the lock"
    parts = ["%s holds the lock" % holder.get("who", "somebody else")]
    if holder.get("from"):
        parts.append("from %s" % holder["from"])
    if holder.get("run"):
        parts.append("for run %s" % holder["run"])
    if holder.get("since"):
        parts.append("since %s" % holder["since"])
    return " ".join(parts)


CALLS = {"take": take, "release": release, "show": show}
