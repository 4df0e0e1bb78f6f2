"""SGLang servers on this host: which processes they are, with what settings, and which code they run.

Secrets do not leave the host: values of key flags are masked, and of the environment only names on a list are read.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from opsctl.agent.core import users
from opsctl.agent.git import ownership
from opsctl.agent.process import pids
from opsctl.agent.source import interpreter
from opsctl.wire import command_line
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.server import ServerProcess

# Settings that bear on what a server does; none of them holds a secret.
ENVIRONMENT = re.compile(r"SGLANG_|SGL_|NCCL_|CUDA_VISIBLE_DEVICES$|PYTHONPATH$|TRITON_|FLASHINFER_")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD")
_LOCATE = "import importlib.util as u, json; print(json.dumps(list(u.find_spec('sglang').submodule_search_locations)))"
_LOCATE_LIMIT = 10.0
_MOST_FILES = 20000


def find(call: Context, locate: bool = False) -> List[ServerProcess]:
    """The first process of every server, its parent being none itself, in the order of their start.

    Its fields are told in wire/calls/server.py. The package is found, with `locate`, by asking its own interpreter.
    """
    looked = (_server(pid) for pid in pids.numbers())
    found = [server for server in looked if server is not None]
    own = {server["pid"] for server in found}
    first = [server for server in found if server["parent"] not in own]
    for server in first:
        server["members"] = pids.family(server["pid"])
    if locate:
        for server in first:
            locate_one(server)
    return sorted(first, key=lambda server: (server["started"], server["pid"]))


def locate_one(server: ServerProcess) -> None:
    """Add to a server what `find` tells with `locate`."""
    package = _package(server)
    newest, newest_file = _newest(package) if package else (None, None)
    commit = _commit(package) if package else None
    server["package"], server["commit"] = package, commit
    server["newest"], server["newest_file"] = newest, newest_file


def _server(pid: int) -> Optional[ServerProcess]:
    argv = [os.fsencode(word).decode("utf-8", "backslashreplace") for word in pids.argv(pid)]
    process = pids.look(pid)
    if process is None or not process.alive or command_line.arguments(argv) is None:
        return None
    environment = pids.environment(pid)
    group = pids.group_of(pid)
    unit, user_unit = pids.unit_of(group)
    log = _log(pid)
    cwd = pids.link(pid, "cwd")
    return {
        "pid": pid,
        "start": process.start,
        "members": [pid],
        "parent": process.parent,
        "session": process.session,
        "argv": command_line.masked(argv),
        "model": placed(command_line.value(argv, command_line.MODEL), cwd),
        "drafter": placed(command_line.value(argv, command_line.DRAFTER), cwd),
        "started": pids.began(process),
        "now": time.time(),
        "user": _user(pid),
        "cwd": cwd,
        "python": _python(pid, argv, cwd),
        "own": _own(pid),
        "environment": None
        if environment is None
        else {k: v for k, v in environment.items() if ENVIRONMENT.match(k) and not _SECRET.search(k)},
        "unit": unit,
        "user_unit": user_unit,
        "container": pids.container_of(group),
        "log": log,
        "log_size": _size(log),
        "boot": pids.boot_id(),
    }


def _package(server: ServerProcess) -> Optional[str]:
    """Folder of the package, from the process's interpreter in its folder with its PYTHONPATH, so in its own order.

    As anybody can give a process the name of a server, its interpreter is asked with the rights of its user at most;
    None where we cannot take them, and for a process that sees other files than we do.
    """
    pid = server["pid"]
    if server["container"] or not pids.same_root(pid):
        return None
    ids = None
    if not server["own"]:
        ids = pids.real_ids(pid)
        if ids is None or os.geteuid() != 0:
            return None
    environment = {
        k: v for k, v in (pids.environment(pid) or {}).items() if k in ("PYTHONPATH", "PATH", "HOME", "VIRTUAL_ENV")
    }
    return located(server["python"], server["cwd"] or "/", environment, ids)


def _own(pid: int) -> bool:
    """Whether what it names may be run by us: it was started by our user, or by root."""
    ids = pids.real_ids(pid)
    return ids is not None and ids[0] in (0, os.geteuid())


def located(python: str, cwd: str, environment: Dict[str, str], ids: Optional[Tuple[int, int]] = None) -> Optional[str]:
    """Folder of the `sglang` package that an interpreter imports, found by asking it; None where it does not say.

    ids: as of `interpreter.answer`.
    """
    places = interpreter.answer(python, _LOCATE, cwd, environment, _LOCATE_LIMIT, ids)
    return next((place for place in places or () if os.path.isdir(place)), None)


def _commit(package: str) -> Optional[str]:
    """The commit of the checkout that tracks this package; None where it was installed otherwise."""
    said = []
    for words in (["ls-files", "--error-unmatch", "__init__.py"], ["rev-parse", "HEAD"]):
        try:
            git = ownership.command(package, words)
            done = subprocess.run(
                git.argv,
                env=git.env,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=5.0,
            )
        except (AgentError, OSError, subprocess.SubprocessError):
            return None
        if done.returncode != 0:
            return None
        said = done.stdout.decode("ascii", "replace").split()
    return said[0] if said else None


def _newest(package: str) -> Tuple[Optional[float], Optional[str]]:
    newest, seen = 0.0, 0
    newest_file: Optional[str] = None
    for folder, folders, names in os.walk(os.path.join(package, "srt")):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            if not name.endswith(".py"):
                continue
            path = os.path.join(folder, name)
            try:
                info = os.stat(path)
            except OSError:  # a broken link, or gone meanwhile
                continue
            # A file that is put back in one step may keep its old time; when it was put there, the inode tells.
            changed = max(info.st_mtime, info.st_ctime)
            if changed > newest:
                newest, newest_file = changed, os.path.relpath(path, package)
            seen += 1
            if seen >= _MOST_FILES:
                return newest, newest_file
    return (newest, newest_file) if newest_file else (None, None)


def _python(pid: int, argv: List[str], cwd: Optional[str]) -> str:
    """The interpreter by the name it was started with, which tells the virtual environment, as its target does not."""
    if argv and "/" in argv[0] and "python" in os.path.basename(argv[0]) and (cwd or os.path.isabs(argv[0])):
        return os.path.normpath(os.path.join(cwd or "/", argv[0]))
    return pids.executable(pid) or "python3"


def _log(pid: int) -> Optional[str]:
    for descriptor in ("1", "2"):
        target = pids.link(pid, "fd/" + descriptor)
        if target and target.startswith("/") and os.path.isfile(target):
            return target
    return None


def _size(path: Optional[str]) -> int:
    try:
        return os.path.getsize(path) if path else 0
    except OSError:
        return 0


def _user(pid: int) -> Optional[str]:
    uid = pids.owner(pid)
    return None if uid is None else users.name_of(uid)


def placed(said: Optional[str], cwd: Optional[str]) -> Optional[str]:
    """The folder of a model, as a server that works in `cwd` finds it; the name of one on a hub stays as it is.

    `org/name` may be either: like SGLang, whatever is a folder there is taken for that.
    """
    if not said or not cwd:
        return said
    there = os.path.normpath(os.path.join(cwd, said))
    return there if said.startswith(".") or os.path.isdir(there) else said


CALLS = {"find": find}
