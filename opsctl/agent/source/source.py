"""Reading an SGLang source tree where it lies, and proving with its own interpreter what is to be changed.

`gather` brings all that the controller needs to judge a tree in one answer: the files asked for, those that define the
classes asked for together with the model files their bases and inner models come from, and what git says.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from opsctl.agent.core import rights
from opsctl.agent.files.safepath import opened, told, whole
from opsctl.agent.git import ownership
from opsctl.wire.protocol import AgentError, Context, Reply
from opsctl.wire.source_tree import PREFIXES

if TYPE_CHECKING:
    from opsctl.wire.calls.source import Gathered, GatheredFile, Git, Grepped, Match, Proved

MAX_GATHER = 32 << 20
MAX_TREE = 256 << 20  # of Python in a package; SGLang has 20 MB
MODELS = "srt/models"
_DEPTH = 6


def gather(
    call: Context,
    root: str,
    files: List[str],
    classes: Tuple[str, ...] = (),
    exists: Tuple[str, ...] = (),
    everywhere: bool = False,
) -> Reply[Gathered]:
    """The package-relative `files`, the files that define `classes` with what those build on, and the state of git.

    Classes are looked for among the models; `everywhere`: then in the whole package, functions too.
    Body: the files' bytes one after the other, zlib.
    """
    root, prefix = _package(root)
    wanted = [f for f in files if os.path.isfile(os.path.join(root, prefix, f))]
    models = _models(root, prefix)
    found = {name: _defining(models, name) for name in classes}
    if everywhere and not all(found.values()):
        top = os.path.join(root, prefix)
        elsewhere = _texts(top, _walk(top, "", ("*.py",)))
        found = {name: paths or _defining(elsewhere, name) for name, paths in found.items()}
    for paths in found.values():
        wanted += paths
    wanted += _closure(models, classes)
    git = _git_state(root, prefix)
    entries: List[GatheredFile] = []
    parts: List[bytes] = []
    too_large: List[str] = []
    room = MAX_GATHER

    def take(path: str, data: Optional[bytes], head: bool) -> None:
        nonlocal room
        if data is None or len(data) > room:
            too_large.append(path)
            return
        room -= len(data)
        entries.append({"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "head": head})
        parts.append(data)

    for path in dict.fromkeys(wanted):
        take(path, models[path] if path in models else _read(os.path.join(root, prefix, path), room), False)
    changed = set(git["dirty"]) & {os.path.join(prefix, path) for path in wanted}
    for path, data in _committed(root, prefix, changed):
        take(path, data, True)
    result: Gathered = {
        "root": root,
        "prefix": prefix,
        "files": entries,
        "classes": found,
        "too_large": too_large,
        "exists": [p for p in exists if os.path.exists(os.path.join(root, prefix, p))],
        "names": [] if all(found.values()) else sorted(_class_names(models)),
        "commit": git["commit"],
        "dirty": git["dirty"],
        "git_refused": git["git_refused"],
    }
    return Reply(result, zlib.compress(b"".join(parts), 6))


def grep(call: Context, root: str, pattern: str, globs: Tuple[str, ...] = ("*.py",), limit: int = 200) -> Grepped:
    """Lines of the package that match. Paths are relative to `root`."""
    root, prefix = _package(root)
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise AgentError("invalid", "not a regular expression: %s" % error, pattern=pattern) from None
    matches: List[Match] = []
    for path in _walk(root, prefix, globs):
        if call.cancelled():
            break
        data = _read(os.path.join(root, path), MAX_GATHER)
        text = "" if data is None else data.decode("utf-8", "replace")
        if not wanted.search(text):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if wanted.search(line):
                if len(matches) == limit:
                    return {"matches": matches, "more": True}
                matches.append({"path": path, "line": number, "text": line.rstrip("\r")[:400]})
    return {"matches": matches, "more": False}


def compile_files(root: str, files: List[str], python: str = "") -> Dict[str, Any]:
    """Compile `files` with the interpreter `python`, writing nothing: {failed: [{path, message}], version}."""
    script = (
        "import json, sys\nfailed = []\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n        compile(open(path, 'rb').read(), path, 'exec')\n"
        "    except (SyntaxError, ValueError) as error:\n        failed.append({'path': path, 'message': str(error)})\n"
        "print(json.dumps({'failed': failed, 'version': sys.version.split()[0]}))"
    )
    paths = [os.path.join(root, f) for f in files]
    result = json.loads(_python(python, script, paths, check=True).stdout)
    for failure in result["failed"]:
        failure["path"] = os.path.relpath(failure["path"], root)
    return dict(result)


def prove(call: Context, script: str, python: str = "", code: Iterable[str] = ()) -> List[Proved]:
    """Run a proof script with the interpreter `python`, the body on its input. Gives the JSON value it prints.

    code: the files whose functions it runs.
    """
    done = _python(python, script, [], stdin=call.body, code=code)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise AgentError("failed", "the proof did not run: %s" % (lines[-1] if lines else done.returncode))
    proved: List[Proved] = json.loads(done.stdout)
    return proved


def _python(
    python: str, script: str, words: List[str], stdin: bytes = b"", check: bool = False, code: Iterable[str] = ()
) -> "subprocess.CompletedProcess[bytes]":
    """Run a script with an interpreter, and the rights of whoever that one belongs to, or the code that it runs."""
    path = os.path.expanduser(python) or sys.executable
    who = rights.of_program(path, *code)
    argv = [*rights.words(who), path, "-I", "-c", script, *words]
    return run(argv, rights.environment(who), timeout=120, stdin=stdin, check=check)


def _package(root: str) -> Tuple[str, str]:
    root = os.path.realpath(os.path.expanduser(root))
    for prefix in PREFIXES:
        if os.path.isdir(os.path.join(root, prefix, "srt", "models")):
            return root, prefix
    if not os.path.isdir(root):
        raise AgentError("not-found", "there is no folder %s" % root, path=root)
    raise AgentError(
        "invalid", "no SGLang source in %s: neither python/sglang/srt nor sglang/srt is there" % root, path=root
    )


def _read(path: str, limit: int) -> Optional[bytes]:
    """A file, None where it has more than `limit` bytes."""
    with told("read", path), opened(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            return None
        data = whole(file, limit + 1)
    return data if len(data) <= limit else None


def _texts(top: str, paths: Iterable[str]) -> Dict[str, bytes]:
    """The files of a package, in bounded memory. Raises AgentError invalid."""
    found, room = {}, MAX_TREE
    for path in paths:
        data = _read(os.path.join(top, path), room)
        if data is None:
            text = "%s has more than %d MiB of source: that is no SGLang package" % (top, MAX_TREE >> 20)
            raise AgentError("invalid", text, path=path)
        found[path] = data
        room -= len(data)
    return found


def _walk(root: str, prefix: str, globs: Iterable[str]) -> Iterable[str]:
    wanted = tuple(globs)
    top = os.path.join(root, prefix)
    for folder, folders, names in os.walk(top):
        folders[:] = sorted(f for f in folders if f not in ("__pycache__", ".git"))
        for name in sorted(names):
            full = os.path.join(folder, name)
            path = os.path.relpath(full, root)
            matches = any(fnmatch.fnmatch(path, g) or fnmatch.fnmatch(name, g) for g in wanted)
            if matches and os.path.isfile(full):  # not a link that leads nowhere, nor a pipe that never ends
                yield path


def _models(root: str, prefix: str) -> Dict[str, bytes]:
    top = os.path.join(root, prefix)
    return _texts(top, (os.path.join(MODELS, path) for path in _walk(os.path.join(top, MODELS), "", ("*.py",))))


_CLASS = re.compile(rb"^class[ \t]+(\w+)", re.MULTILINE)
_FROM_MODELS = re.compile(  # from sglang.srt.models.x import A, B  |  from .x import (A, B)
    rb"^[ \t]*from[ \t]+(?:sglang\.srt\.models)?(\.[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n\\]+)", re.MULTILINE
)
_MODULES = re.compile(rb"^[ \t]*from[ \t]+sglang\.srt\.models[ \t]+import[ \t]*(\([^)]*\)|[^\n\\]+)", re.MULTILINE)
_BUILT = re.compile(rb"\b([A-Z]\w+)\b")


def _defining(models: Dict[str, bytes], name: str) -> List[str]:
    wanted = re.compile(rb"^(?:class|(?:async[ \t]+)?def)[ \t]+%s\b" % re.escape(name.encode()), re.MULTILINE)
    return [path for path, text in models.items() if name.encode() in text and wanted.search(text)]


def _class_names(models: Dict[str, bytes]) -> Set[str]:
    return {n.decode() for text in models.values() for n in _CLASS.findall(text)}


def _closure(models: Dict[str, bytes], classes: Iterable[str]) -> List[str]:
    """Model files that the classes lead to: their bases and what they build, through imports, some levels deep."""
    todo = [(path, name.encode()) for name in classes for path in _defining(models, name)]
    seen = set(todo)
    for _ in range(_DEPTH):
        following = []
        for path, name in todo:
            text = _class_text(models[path], name)
            names = set(_BUILT.findall(text))
            imported = _imports(path, models[path], models)
            here = set(_CLASS.findall(models[path]))
            following += [(path, n) for n in names & here]
            following += [(imported[n], n) for n in names & set(imported)]
            for module in _modules(models[path]):
                there = "%s/%s.py" % (MODELS, module.decode())
                if there in models:
                    following += [(there, n) for n in re.findall(rb"\b%s\.([A-Z]\w+)" % module, text)]
        todo = [item for item in dict.fromkeys(following) if item not in seen]
        seen.update(todo)
    return sorted({path for path, _ in seen})


def _class_text(text: bytes, name: bytes) -> bytes:
    start = re.search(rb"^class[ \t]+%s\b" % re.escape(name), text, re.MULTILINE)
    if start is None:
        return b""
    end = re.compile(rb"\n(?=[^\s#)\]}\"'])").search(text, start.end())
    return text[start.start() : end.start() if end else len(text)]


def _modules(text: bytes) -> Set[bytes]:
    """The modules of models that a file imports as such: from sglang.srt.models import x."""
    return {n for names in _MODULES.findall(text) for n in re.findall(rb"\w+", names)}


def _imports(path: str, text: bytes, models: Dict[str, bytes]) -> Dict[bytes, str]:
    found = {}
    for match in _FROM_MODELS.finditer(text):
        whole, dotted = match.group(0), match.group(1).decode()
        if b"sglang.srt.models" in whole.split(b"import")[0]:
            parts = [MODELS] + [p for p in dotted.split(".") if p]
        else:
            up = len(dotted) - len(dotted.lstrip("."))
            parts = path.split("/")[:-up] + [p for p in dotted.split(".") if p]
        module = "/".join(parts)
        target = next((c for c in (module + ".py", module + "/__init__.py") if c in models), None)
        if target:
            for name in re.findall(rb"(\w+)(?:[ \t]+as[ \t]+(\w+))?", match.group(2).split(b"#")[0]):
                found[name[1] or name[0]] = target
    return found


def _git_state(root: str, prefix: str) -> Git:
    """What git says of the tree; nothing where it does not track it."""
    nothing: Git = {"commit": None, "dirty": [], "git_refused": None}
    try:
        tracked = _git(root, "ls-files", "--", os.path.join(prefix, "srt", "models"))
    except AgentError as error:
        if error.kind not in ("not-found", "missing-tool"):
            nothing["git_refused"] = error.message
        return nothing
    if tracked.returncode or not tracked.stdout:
        return nothing
    head = _git(root, "rev-parse", "--verify", "HEAD^{commit}")
    words = ["--porcelain=v1", "-z", "--no-renames", "--ignore-submodules=all"]  # in submodules git would run as here
    status = _git(root, "status", *words, "--", ".")
    if status.returncode:
        return nothing
    entries = [e.decode("utf-8", "surrogateescape") for e in status.stdout.split(b"\0") if e]
    return {
        "commit": head.stdout.decode().strip() or None if head.returncode == 0 else None,
        "dirty": [entry[3:].encode("utf-8", "replace").decode() for entry in entries],
        "git_refused": None,
    }


def _committed(root: str, prefix: str, paths: Iterable[str]) -> Iterator[Tuple[str, bytes]]:
    for path in sorted(paths):
        shown = _git(root, "show", "HEAD:./" + path)
        if shown.returncode == 0:
            yield os.path.relpath(path, prefix or "."), shown.stdout


def _git(root: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
    command = ownership.command(root, list(words))
    return run(command.argv, command.env, check=False)


def run(
    argv: List[str], env: Dict[str, str], timeout: float = 30, stdin: bytes = b"", check: bool = True
) -> "subprocess.CompletedProcess[bytes]":
    """Run a program in the folder /, with this environment alone. Raises AgentError failed | timeout | missing-tool."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, env=env, cwd="/")
    except FileNotFoundError:
        raise AgentError("missing-tool", "%s is not on this host" % argv[0], tool=argv[0]) from None
    except subprocess.TimeoutExpired:
        raise AgentError("timeout", "%s did not finish in %g s" % (argv[0], timeout)) from None
    if check and done.returncode:
        raise AgentError("failed", "%s: %s" % (argv[0], done.stderr.decode("utf-8", "replace").strip()[-400:]))
    return done


CALLS = {
    "gather": gather,
    "grep": grep,
    "prove": prove,
}
