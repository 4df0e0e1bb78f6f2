"""The host's lock: an flock held by the living, with the holder's name in the file. Nothing to break by hand.

Each user has one in a state folder of its own. Root takes those of other users as well, whose server it is to change;
it opens them with their rights, so that nothing they put in the way leads further than they get by themselves.
"""

from __future__ import annotations

import json
import os
import pwd
import stat as st
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple, cast

from opsctl.agent.core import durable, file_locks, users
from opsctl.agent.process import ports
from opsctl.wire import masking
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Holder, ServerOf, Taken

_held: Dict[Tuple[str, int], int] = {}  # name, uid of whose lock it is -> descriptor
_guard = threading.Lock()


def take(
    call: Context,
    holder: Holder,
    name: str = "host",
    wait: float = 0.0,
    token: str = "",
    server: Optional[ServerOf] = None,
) -> Taken:
    """Take a lock until this agent ends. Raises AgentError locked, with the holder, once `wait` seconds are over.

    Another agent that has it with the same `token` works for the same controller: then there is nothing to take.
    server: root takes the locks of those whose server it is, too.
    """
    start = time.monotonic()
    note = durable.json_bytes(dict(masking.data(holder, masking.known), token=token))
    others = _owners(**server) if server and os.geteuid() == 0 else []
    with ExitStack() as taken:
        for uid in (os.geteuid(), *others):
            if _take(call, name, uid, note, token, start + wait):
                taken.callback(_release, (name, uid))
        taken.pop_all()
    return {"waited": round(time.monotonic() - start, 3)}


def release(call: Context, name: str = "host") -> bool:
    """Let go of a lock. Says whether this agent had it."""
    with _guard:
        mine = [one for one in _held if one[0] == name]
    for one in mine:
        _release(one)
    return bool(mine)


def show(call: Context, name: str = "host") -> Optional[Holder]:
    """Who holds a lock, None if nobody does."""
    path = _path(name)
    if not file_locks.is_locked(path):
        return None
    holder = durable.read_json(path) or {}
    holder.pop("token", None)
    return cast("Holder", holder)


def descriptors() -> List[int]:
    """The descriptors that keep this process's locks, for a process that is to hold them as well."""
    with _guard:
        return list(_held.values())


def _take(call: Context, name: str, uid: int, note: bytes, token: str, until: float) -> bool:
    """Take one user's lock. Whether it is new to us."""
    told: Optional[Dict[str, Any]] = None
    fd = _open(name, uid)
    if fd is None:
        return False
    try:
        while True:
            with _guard:
                if (name, uid) in _held:
                    return False
                if file_locks.locked(fd, 0.1):
                    file_locks.say(fd, note)
                    _held[name, uid] = os.dup(fd)
                    return True
            now = _said(fd)
            if now is not None and now.pop("token", "") == token != "":
                return False
            if time.monotonic() >= until or call.cancelled():
                raise AgentError("locked", _sentence(now), holder=now)
            if now != told:
                told = now
                call.progress({"waiting_for": now})
            time.sleep(0.2)
    finally:
        os.close(fd)


def _release(one: Tuple[str, int]) -> None:
    with _guard:
        os.close(_held.pop(one))
        # A supervisor may hold on to it through a descriptor of its own: then the name has to stay.
        free = _open(*one)
        if free is not None:
            if file_locks.locked(free, 0.0):
                file_locks.say(free, b"")
            os.close(free)


def _owners(port: int, unit: Optional[str]) -> List[int]:
    """The other users whose server it is: who listens on the port, and as whom its unit runs."""
    found = [uid for uid, _ in ports.listening(port)]
    if unit is not None:
        with suppress(OSError, subprocess.SubprocessError, KeyError):  # no systemd here, or no such user
            words = ["systemctl", "show", "--property=User", "--value", "--", unit]
            name = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=30).stdout
            user = name.decode().strip()
            found.append(int(user) if user.isdigit() else pwd.getpwnam(user).pw_uid)
    return sorted(set(found) - {0})


def _open(name: str, uid: int) -> Optional[int]:
    """The file of a user's lock; None where a user can have none, who so cannot work with opsctl either."""
    if not name.isidentifier():
        raise AgentError("invalid", "%r cannot be the name of a lock" % name)
    if uid == os.geteuid():
        return durable.opened(_path(name), os.O_RDWR | os.O_CREAT)
    try:
        known = pwd.getpwuid(uid)
    except KeyError:
        return None
    path = os.path.join(known.pw_dir, ".local/state/opsctl/locks", name)
    with durable.explained(), users.acting(users.User(uid, known.pw_gid)):
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            return None
    if not st.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise AgentError("unsafe", "%s, which is to be the lock of %s, is no file" % (path, known.pw_name), path=path)
    return fd


def _path(name: str) -> str:
    return os.path.join(durable.folder("locks"), name)


def _said(fd: int) -> Optional[Dict[str, Any]]:
    """Who says in the file of a lock that it is theirs."""
    try:
        value = json.loads(os.pread(fd, 64 << 10, 0))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


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
