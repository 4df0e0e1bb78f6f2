"""Asking an interpreter of this host what it would import, and which launch flags that takes."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any, Dict, Optional, Tuple

from opsctl.agent.core import rights, users
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.source import Flags


_FLAGS_LIMIT = 20.0  # seconds

# Runs under the interpreter that serves, whose syntax the source is written in. Flags are those given to argparse by
# name; since 0.5.18 also the fields that are annotated `A[type, help]`, which argparse gets by loop (arg_utils.py).
_FLAGS_SCRIPT = """
import ast, glob, importlib.util, json, os

def words(nodes):
    values = [getattr(node, "value", None) for node in nodes]
    return [value for value in values if isinstance(value, str) and value.startswith("--")]

def both(names, keywords):
    switch = any(getattr(k.value, "attr", None) == "BooleanOptionalAction" for k in keywords)
    return names + ["--no-" + name[2:] for name in names if switch]

def annotated(field):
    about = field.annotation.slice
    about = getattr(about, "value", about)
    for part in getattr(about, "elts", ())[1:]:
        name = "--" + field.target.id.replace("_", "-")
        if isinstance(getattr(part, "value", None), str):
            return [name]
        if isinstance(part, ast.Call) and getattr(part.func, "id", None) == "Arg":
            said = {k.arg: k.value for k in part.keywords}
            if getattr(said.get("no_cli"), "value", False):
                return []
            names = words([said["cli_name"]]) if "cli_name" in said else [name]
            return both(names + words(getattr(said.get("aliases"), "elts", ())), part.keywords)
    return []

places = importlib.util.find_spec("sglang").submodule_search_locations
top = next(place for place in places if os.path.isdir(os.path.join(place, "srt")))
files = [top + "/srt/server_args.py"] + glob.glob(top + "/srt/arg_groups/**/*.py", recursive=True)
files += glob.glob(top + "/launch_server.py") + glob.glob(top + "/cli/serve.py")
found = set()
for path in files:
    with open(path, "rb") as stream:
        text = stream.read()
    if b"add_argument" not in text and b": A[" not in text:
        continue
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "add_argument":
            found.update(both(words(node.args), node.keywords))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript):
            if getattr(node.annotation.value, "id", None) in ("A", "Annotated") and isinstance(node.target, ast.Name):
                found.update(annotated(node))
print(json.dumps({"package": top, "flags": sorted(found)}))
"""


def answer(
    python: str,
    script: str,
    cwd: Optional[str],
    environment: Dict[str, str],
    seconds: float,
    ids: Optional[Tuple[int, int]] = None,
) -> Any:
    """The last line that the script prints, read as JSON; None where there is none in time, or root must not run it.

    ids: user and group to become. What a process of somebody else calls its interpreter may be any program. Without it,
    root becomes whoever could change the interpreter, or a folder that it imports from, with that user's environment.
    """
    path = environment.get("PYTHONPATH", "")
    try:
        who = users.User(*ids) if ids else rights.of_program(python, cwd or "/", *filter(None, path.split(os.pathsep)))
        if ids is None and users.others(who):
            environment = dict(rights.environment(who), PYTHONPATH=path)
        done = subprocess.run(
            [*rights.words(who), os.path.expanduser(python), "-c", script],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (AgentError, OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def known(call: Context, python: str, cwd: Optional[str] = None, path: Optional[str] = None) -> Flags:
    """Tell what the server would import, and the flags that this takes.

    python: the interpreter that serves, started in `cwd` with PYTHONPATH `path`, as the server is.
    """
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = path
    found = answer(python, _FLAGS_SCRIPT, os.path.expanduser(cwd) if cwd else None, environment, _FLAGS_LIMIT)
    return {"package": None, "flags": None} if found is None else found


CALLS = {"known": known}
