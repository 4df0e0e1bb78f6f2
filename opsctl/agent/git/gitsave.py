"""Local changes of a checkout: listed, kept in the journal as files and as a patch, and put back byte for byte."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat as st
import tempfile
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Iterator, List, Optional, Tuple

from opsctl.agent.core.durable import sync_folder
from opsctl.agent.core.undo_record import place, save
from opsctl.agent.core.users import User, acting
from opsctl.agent.files import state as fs
from opsctl.agent.files.regular import opened
from opsctl.agent.git import checkout
from opsctl.agent.git.gitrun import git, text
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.files import State

MOST_UNTRACKED = 64 << 20  # bytes of untracked files that go into the patch; they stay in place in any case

Entry = Dict[str, Any]


def changes(call: Context, path: str) -> Tuple[List[Entry], List[str]]:
    """Changed tracked files ({"path", "status"}) and untracked ones that are not ignored."""
    words = ["status", "--porcelain=v2", "-z", "--untracked-files=all", "--ignore-submodules=none"]
    with _nothing_hidden(call, path) as environment:
        done = git(call, words, path, env=environment)
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


def submodules(call: Context, path: str) -> List[str]:
    """Names of the folders where the index has a commit of another repository."""
    entries = _names(git(call, ["ls-files", "--stage", "-z"], path).out)
    return [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]


def in_the_way(call: Context, path: str, commit: str) -> List[str]:
    """Files that git does not track, ignored ones too, where the commit has files of its own."""
    done = git(call, ["ls-files", "--others", "-z"], path)
    untracked = [name.rstrip("/") for name in _names(done.out)]  # a checkout inside this one ends in a slash
    if not untracked:
        return []
    names = set(_names(git(call, ["ls-tree", "-r", "--name-only", "-z", commit], path).out))
    folders = {name[:i] for name in names for i, c in enumerate(name) if c == "/"}
    above = [(name, {name[:i] for i, c in enumerate(name) if c == "/"}) for name in untracked]
    return [name for name, over in above if name in names or name in folders or over & names]


def keep_changes(
    call: Context, path: str, before: Dict[str, Any], untracked: List[str], keep: Optional[str], record: Dict[str, Any]
) -> None:
    """Write local changes into the journal: each file as it is, the index, and one patch for people to read.

    A reference in the checkout keeps git from collecting staged contents; `put_back` removes it. Completes `record`.
    """
    if keep is None:
        raise AgentError("invalid", "local changes can only be saved in a journal", path=path)
    inside = [entry["path"] for entry in before["changed"] if entry["submodule"]]
    if inside:
        raise AgentError("conflict", "there are changes in submodules of %s: %s" % (path, ", ".join(inside)), path=path)
    names = sorted({entry["path"] for entry in before["changed"]}) + untracked
    who, _ = checkout.owner(path)
    with acting(who):
        states = [_state(path, name) for name in names]
    for name, state in zip(names, states):
        if state["kind"] == "other" or (state["kind"] == "dir" and name in untracked):
            raise AgentError("conflict", "%s/%s cannot be saved: move it away first" % (path, name), path=path)
    saved: List[Entry] = []
    for number, (name, state) in enumerate(zip(names, states)):
        full = os.path.join(path, name)
        if state["kind"] == "file":
            _copy_out(full, place(call, "%s.file-%d" % (keep, number)), who)
        saved.append({"path": name, "number": number, "state": state})
    _copy_out(_index(call, path), place(call, keep + ".index"), who)
    record.update(saved=saved, pin="refs/opsctl/saved/%d" % time.time_ns())
    save(call, keep, record)  # the checkout is changed from here on
    _look_at(call, path, _hidden(call, path), {})
    pinned = text(git(call, ["stash", "create"], path, ok=None))
    if pinned:
        git(call, ["update-ref", record["pin"], pinned], path)
    _write_patch(call, path, names, before, keep)


def put_back(call: Context, path: str, record: Dict[str, Any], keep: str) -> None:
    """Put the local changes back that were kept, and the index with them."""
    if "saved" not in record:
        return
    who, _ = checkout.owner(path)
    blobs = {entry["number"]: place(call, "%s.file-%d" % (keep, entry["number"])) for entry in record["saved"]}
    for entry in record["saved"]:
        if entry["state"]["kind"] == "file" and fs.sha256(blobs[entry["number"]]) != entry["state"]["sha256"]:
            text = "what was kept of %s is damaged; it is left as it is" % entry["path"]
            raise AgentError("failed", text, path=blobs[entry["number"]])
    with acting(who):
        waiting = [entry for entry in record["saved"] if fs.differs(_state(path, entry["path"]), entry["state"])]
        waiting.sort(key=lambda entry: str(entry["path"]))
        for entry in reversed(waiting):  # a folder after what is in it
            _clear(os.path.join(path, entry["path"]))
    for entry in waiting:
        full, state = os.path.join(path, entry["path"]), entry["state"]
        if state["kind"] == "absent":
            continue
        with acting(who):
            os.makedirs(full if state["kind"] == "dir" else os.path.dirname(full), exist_ok=True)
            if state["kind"] == "link":
                os.symlink(state["target"], full)
        if state["kind"] == "file":
            _copy_in(blobs[entry["number"]], full, who, state["mode"])
    index = _index(call, path)
    _copy_in(place(call, keep + ".index"), index, who)
    git(call, ["update-index", "-q", "--refresh"], path, ok=None)
    git(call, ["update-ref", "-d", record["pin"]], path)


def differs(path: str, record: Dict[str, Any], name: str) -> bool:
    """Whether a file is otherwise than its local change that was kept, or was none."""
    states = {entry["path"]: entry["state"] for entry in record.get("saved", ())}
    return name not in states or fs.differs(_state(path, name), states[name]) is not None


def _copy_out(source: str, target: str, who: User) -> None:
    """Copy a file of the checkout, read as its owner, to one of ours."""
    with acting(who):
        reader = opened(source, os.O_NOFOLLOW)
    with reader, open(target, "wb") as writer:
        shutil.copyfileobj(reader, writer)
        _as_it_was(reader, writer)


def _copy_in(source: str, target: str, who: User, mode: Optional[int] = None) -> None:
    """Make `target`, in the checkout and as its owner, a copy of a file of ours, in one step. `mode`: as it has now."""
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, fs.hidden(name, os.urandom(6).hex()))
    with open(source, "rb") as reader, acting(who):
        try:
            with open(temporary, "xb") as writer:
                shutil.copyfileobj(reader, writer)
                _as_it_was(reader, writer)
                if mode is None and os.path.exists(target):
                    mode = st.S_IMODE(os.stat(target).st_mode)
                if mode is not None:
                    os.fchmod(writer.fileno(), mode)
            os.replace(temporary, target)
            sync_folder(folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)


def _as_it_was(source: BinaryIO, target: BinaryIO) -> None:
    """Give a copy the times of what it is of, and make it durable."""
    info = os.fstat(source.fileno())
    target.flush()
    os.utime(target.fileno(), ns=(info.st_atime_ns, info.st_mtime_ns))
    os.fsync(target.fileno())


def _state(path: str, name: str) -> State:
    """How a file of the checkout is; what a link on the way leads to is none."""
    above = os.path.dirname(os.path.join(os.path.realpath(path), name))
    return fs.state(os.path.join(path, name)) if os.path.realpath(above) == above else fs.ABSENT.copy()


def _clear(full: str) -> None:
    """Make room for what was there before. A folder goes only if nothing is left in it."""
    if os.path.islink(full) or os.path.isfile(full):
        os.unlink(full)
    elif os.path.isdir(full):
        try:
            os.rmdir(full)
        except OSError as error:
            raise AgentError("conflict", "%s cannot be put back: %s" % (full, error.strerror), path=full) from None


def _hidden(call: Context, path: str) -> List[str]:
    """Files that git was told not to look at, and that are there: a checkout may overwrite those too."""
    lines = _names(git(call, ["ls-files", "-v", "-z"], path).out)
    marked = [line[2:] for line in lines if line[0] == "S" or line[0].islower()]
    return [name for name in marked if os.path.lexists(os.path.join(path, name))]


def _look_at(call: Context, path: str, names: List[str], environment: Dict[str, str]) -> None:
    listed = "".join(name + "\0" for name in names).encode("utf-8", "surrogateescape")
    for flag in ("--no-assume-unchanged", "--no-skip-worktree") if names else ():
        git(call, ["update-index", flag, "-z", "--stdin"], path, env=environment, stdin=listed)


@contextlib.contextmanager
def _nothing_hidden(call: Context, path: str) -> Iterator[Dict[str, str]]:
    """Environment in which git looks at every file; its own index stays as it is."""
    names = _hidden(call, path)
    if not names:
        yield {}
        return
    with _index_copy(call, path) as environment:
        _look_at(call, path, names, environment)
        yield environment


@contextlib.contextmanager
def _index_copy(call: Context, path: str) -> Iterator[Dict[str, str]]:
    """Environment in which git works on a copy of the index, in a folder of the checkout's owner."""
    index, (who, _) = _index(call, path), checkout.owner(path)
    with acting(who):
        folder = tempfile.mkdtemp(prefix="opsctl-index-")
    try:
        copy = os.path.join(folder, "index")
        with acting(who):
            shutil.copyfile(index, copy)
        yield {"GIT_INDEX_FILE": copy}
    finally:
        with acting(who):
            shutil.rmtree(folder)


def _write_patch(call: Context, path: str, names: List[str], before: Dict[str, Any], keep: str) -> None:
    """The patch shows untracked files too: they are added to a copy of the index."""
    others = before["untracked"]
    size = sum(os.lstat(os.path.join(path, name)).st_size for name in others)
    shown = names + [name for name in others if name not in names] if size <= MOST_UNTRACKED else names
    there = [name for name in shown if os.path.lexists(os.path.join(path, name))]
    with _index_copy(call, path) as environment:
        if there:
            git(call, ["add", "--force", "--"] + there, path, env=environment, ok=None)
        words = ["diff", "--cached", "--binary", "--no-ext-diff", "--no-textconv", "HEAD"]
        done = git(call, words, path, env=environment, ok=None)
    with open(place(call, keep + ".patch"), "wb") as stream:
        stream.write(done.out)


def _index(call: Context, path: str) -> str:
    return os.path.join(path, text(git(call, ["rev-parse", "--git-path", "index"], path)))


def _names(out: bytes) -> List[str]:
    return out.decode("utf-8", "surrogateescape").split("\0")[:-1]
