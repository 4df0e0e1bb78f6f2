"""Local changes of a checkout: listed, kept in the journal as files and as a patch, and put back byte for byte."""

from __future__ import annotations

import os
import shutil
import time
from typing import Any, Dict, List, Optional, Tuple

from opsctl.agent import filestate as fs
from opsctl.agent import trash
from opsctl.agent.gitrun import git, text
from opsctl.agent.keep import place
from opsctl.agent.protocol import AgentError, Context

MOST_UNTRACKED = 64 << 20  # bytes of untracked files that go into the patch; they stay in place in any case

Entry = Dict[str, Any]


def changes(call: Context, path: str) -> Tuple[List[Entry], List[str]]:
    """Changed tracked files ({"path", "status"}) and untracked ones that are not ignored."""
    done = git(call, ["status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none"], path)
    fields = done.out.decode("utf-8", "surrogateescape").split("\0")
    changed: List[Entry] = []
    untracked: List[str] = []
    while fields:
        field = fields.pop(0)
        kind = field[:1]
        if kind == "?":
            untracked.append(field[2:])
        elif kind in ("1", "2", "u"):
            words = field.split(" ", {"1": 8, "2": 9, "u": 10}[kind])
            entry: Entry = {"path": words[-1], "status": words[1], "submodule": words[2].startswith("S")}
            changed.append(entry)
            if kind == "2":  # renamed: the old name follows
                changed.append({"path": fields.pop(0), "status": words[1], "submodule": False})
    return changed, untracked


def in_the_way(call: Context, path: str, commit: str, untracked: List[str]) -> List[str]:
    """Untracked files where the commit has files of its own."""
    if not untracked:
        return []
    done = git(call, ["ls-tree", "-r", "--name-only", "-z", commit], path)
    names = set(done.out.decode("utf-8", "surrogateescape").split("\0"))
    folders = {name[:i] for name in names for i, c in enumerate(name) if c == "/"}
    above = [(name, {name[:i] for i, c in enumerate(name) if c == "/"}) for name in untracked]
    return [name for name, over in above if name in names or name in folders or over & names]


def keep_changes(
    call: Context, path: str, before: Dict[str, Any], untracked: List[str], keep: Optional[str], record: Dict[str, Any]
) -> None:
    """Write local changes into the journal: each file as it is, the index, and one patch for people to read."""
    if keep is None:
        raise AgentError("invalid", "local changes can only be saved in a journal", path=path)
    inside = [entry["path"] for entry in before["changed"] if entry["submodule"]]
    if inside:
        raise AgentError("conflict", "there are changes in submodules of %s: %s" % (path, ", ".join(inside)), path=path)
    names = sorted({entry["path"] for entry in before["changed"]}) + untracked
    saved: List[Entry] = []
    for number, name in enumerate(names):
        full = os.path.join(path, name)
        state = fs.state(full)
        if state["kind"] == "file":
            trash.image(full, place(call, "%s.file-%d" % (keep, number)), shared=False)
        saved.append({"path": name, "number": number, "state": state})
    shutil.copyfile(_index(call, path), place(call, keep + ".index"))
    pinned = text(git(call, ["stash", "create"], path, ok=None))
    if pinned:  # so that staged contents are not collected before they may be needed
        git(call, ["update-ref", "refs/opsctl/saved/%d" % time.time_ns(), pinned], path)
    _write_patch(call, path, names, before, keep)
    record["saved"] = saved


def put_back(call: Context, path: str, record: Dict[str, Any], keep: str) -> None:
    """Put the local changes back that were kept, and the index with them."""
    if "saved" not in record:
        return
    for entry in record["saved"]:
        full, state = os.path.join(path, entry["path"]), entry["state"]
        now = fs.state(full)
        if not fs.differs(now, state):
            continue
        if now["kind"] in ("file", "link"):
            os.unlink(full)
        if state["kind"] == "absent":
            continue
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if state["kind"] == "link":
            os.symlink(state["target"], full)
        else:
            blob = place(call, "%s.file-%d" % (keep, entry["number"]))
            trash.put(blob, full, state, fs.beside(full))
    shutil.copyfile(place(call, keep + ".index"), _index(call, path))
    git(call, ["update-index", "-q", "--refresh"], path, ok=None)


def _write_patch(call: Context, path: str, names: List[str], before: Dict[str, Any], keep: str) -> None:
    """The patch shows untracked files too: they are added to a copy of the index."""
    others = before["untracked"]
    size = sum(os.lstat(os.path.join(path, name)).st_size for name in others)
    shown = names + [name for name in others if name not in names] if size <= MOST_UNTRACKED else names
    copy = place(call, keep + ".patch-index")
    shutil.copyfile(place(call, keep + ".index"), copy)
    environment = {"GIT_INDEX_FILE": copy}
    there = [name for name in shown if os.path.lexists(os.path.join(path, name))]
    if there:
        git(call, ["add", "--force", "--"] + there, path, env=environment, ok=None)
    done = git(call, ["diff", "--cached", "--binary", "HEAD"], path, env=environment, ok=None)
    os.unlink(copy)
    with open(place(call, keep + ".patch"), "wb") as stream:
        stream.write(done.out)


def _index(call: Context, path: str) -> str:
    return os.path.join(path, text(git(call, ["rev-parse", "--git-path", "index"], path)))
