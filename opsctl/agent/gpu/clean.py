"""Leftovers of inference servers: list the files they leave, and remove what was listed, if it is still the same."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import time
from typing import TYPE_CHECKING, List, Literal, Optional, Pattern, Set, Tuple

from opsctl.agent.files.if_readable import names_in, text_of
from opsctl.agent.gpu import process_table
from opsctl.agent.process import pids
from opsctl.wire.protocol import Context

if TYPE_CHECKING:
    from opsctl.wire.calls.gpu import Done, Ended, File, Files, Removed, Unlinked

# Kind, folder (None: the one for temporary files), names.
_PLACES: Tuple[Tuple[Literal["shm", "tmp"], Optional[str], Pattern[str]], ...] = (
    ("shm", "/dev/shm", re.compile(r"^(nccl-|psm_|sem\.|mp-|torch_)")),
    ("tmp", None, re.compile(r"^tmp[a-z0-9_]{8}$")),
)
TICK = 0.1


def files(call: Context, root: str = "/", temporary: str = "/tmp") -> Files:
    """Shared memory files and ipc sockets that could be leftovers, and whether a process uses them."""
    seen: List[Tuple[Literal["shm", "tmp"], str, os.stat_result]] = []
    for folder, where, wanted in _PLACES:
        at = where or temporary
        here = os.path.join(root, at.lstrip("/"))
        for name in names_in(here):
            with contextlib.suppress(OSError):
                if wanted.match(name):
                    seen.append((folder, at + "/" + name, os.lstat(os.path.join(here, name))))
    used = _used(root, {path for _, path, _ in seen})
    me = os.geteuid()
    found: List[File] = []
    for folder, path, said in seen:
        private = not said.st_mode & 0o077 and said.st_uid == me
        found.append(
            {
                "path": path,
                "folder": folder,
                "uid": said.st_uid,
                "size": said.st_size,
                "modified": said.st_mtime,
                "socket": stat.S_ISSOCK(said.st_mode),
                "inode": said.st_ino,
                "in_use": True if path in used else (False if me == 0 or private else None),
            }
        )
    return {"files": found, "uid": me, "now": time.time()}


def remove(
    call: Context, processes: List[Ended], paths: List[Unlinked], root: str = "/", patience: float = 10.0
) -> Removed:
    """End `processes` ({pid, ticks, sid, cgroup}) and unlink `paths` ({path, inode, modified}).

    Each is looked at again first: what is no longer what was listed is left alone, and said so.
    """
    told: List[Done] = []
    ended = [p for p in processes if _signal(p, signal.SIGTERM, root, told)]
    left = _until_gone(call, ended, root, patience)
    for process in left:
        _signal(process, signal.SIGKILL, root, told)
    stuck = {p["pid"] for p in _until_gone(call, left, root, patience)}
    told += [
        {"pid": p["pid"], "done": p["pid"] not in stuck, "why": "does not end" if p["pid"] in stuck else ""}
        for p in ended
    ]
    used = _used(root, {p["path"] for p in paths})
    for wanted in paths:
        why = _unlink(os.path.join(root, wanted["path"].lstrip("/")), wanted, used)
        told.append({"path": wanted["path"], "done": not why, "why": why})
    return {"done": told}


def _used(root: str, paths: Set[str]) -> Set[str]:
    """Which of `paths` some visible process maps, opens or listens on."""
    proc = os.path.join(root, "proc")
    found = _listening(os.path.join(proc, "net/unix"))
    networks = set()
    for pid in filter(str.isdigit, names_in(proc)):
        # The sockets of a container stand in the list of its own network.
        with contextlib.suppress(OSError):
            network = os.readlink(os.path.join(proc, pid, "ns/net"))
            if network not in networks:
                networks.add(network)
                found |= _listening(os.path.join(proc, pid, "net/unix"))
        maps = text_of(os.path.join(proc, pid, "maps"))
        found |= {path for path in paths if path in maps}
        for name in names_in(os.path.join(proc, pid, "fd")):
            with contextlib.suppress(OSError):
                found.add(os.readlink(os.path.join(proc, pid, "fd", name)))
    return found & paths


def _listening(path: str) -> Set[str]:
    return {line.split()[-1] for line in text_of(path).splitlines() if "/" in line}


def _signal(process: Ended, number: int, root: str, told: List[Done]) -> bool:
    """Send the signal if the pid still means the same process."""
    try:
        if not _same(process, root):
            raise ProcessLookupError
        pids.signal(pids.Process(process["pid"], "", "", 0, 0, process["sid"], process["ticks"]), number)
    except ProcessLookupError:
        told.append({"pid": process["pid"], "done": True, "why": "had ended"})
    except OSError as error:
        told.append({"pid": process["pid"], "done": False, "why": os.strerror(error.errno or 0)})
    else:
        return True
    return False


def _same(process: Ended, root: str) -> bool:
    now = process_table.look(root, process["pid"])
    return (
        now is not None
        and now["state"] not in ("Z", "X")
        and all(now[name] == process[name] for name in ("ticks", "sid", "cgroup", "uid"))
    )


def _until_gone(call: Context, processes: List[Ended], root: str, patience: float) -> List[Ended]:
    """Those that are still there after `patience` seconds."""
    until = time.monotonic() + patience
    left = [p for p in processes if _same(p, root)]
    while left and time.monotonic() < until and not call.cancelled():
        time.sleep(TICK)
        left = [p for p in left if _same(p, root)]
    return left


def _unlink(path: str, wanted: Unlinked, used: Set[str]) -> str:
    """Why the file was left, empty when it was removed."""
    if wanted["path"] in used:
        return "a process uses it now"
    try:
        said = os.lstat(path)
        if (said.st_ino, said.st_mtime) != (wanted["inode"], wanted["modified"]):
            return "it is another file now"
        os.unlink(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return os.strerror(error.errno or 0)
    return ""


CALLS = {"files": files, "remove": remove}
