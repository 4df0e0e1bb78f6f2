"""Checkouts on the host: looked at, brought to a commit without losing anything, and taken back exactly."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat as st
import tempfile
import time
from typing import TYPE_CHECKING, Any, BinaryIO, Dict, Iterator, List, Literal, Optional, Sequence, Tuple, cast

from opsctl.agent.core import users
from opsctl.agent.core.durable import sync_folder
from opsctl.agent.core.undo_record import load, place, save
from opsctl.agent.core.users import User, acting
from opsctl.agent.files import backups, replace, safepath, states
from opsctl.agent.files.safepath import opened
from opsctl.agent.git import ownership
from opsctl.agent.process.commands import Done, ending, execute
from opsctl.wire.digests import temporary_name
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.files import State
    from opsctl.wire.calls.git import CheckedOut, Checkout, Edited, Expected, Head, Restored

UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "BISECT_LOG": "a bisection",
    "index.lock": "another git command",
}
MOST_LISTED = 200
OTHER_SOURCE = "`repo` may be another address, or a mirror folder or bundle on the host"
MOST_UNTRACKED = 64 << 20  # bytes of untracked files that go into the patch; they stay in place in any case
SETTINGS = (
    "protocol.file.allow=always",
    "protocol.ext.allow=never",
    "user.name=opsctl",
    "user.email=opsctl@localhost",
)
ENVIRONMENT = {"GIT_ASKPASS": "", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "GIT_ADVICE": "0"}
Entry = Dict[str, Any]


def look(
    call: Context,
    path: str,
    commit: Optional[str] = None,
    ref: Optional[str] = None,
    source: Optional[str] = None,
    timeout: float = 60.0,
) -> Checkout:
    """State of a checkout, and the full id of the `commit` (may be short) or of the `ref` at its source.

    `wanted`: the full id, None where it is not known here yet. Raises AgentError for an ambiguous id, an unknown ref.
    """
    path = states.absolute(path)
    found: Checkout = {"state": _kind(path), "wanted": commit if commit and len(commit) == 40 else None}
    if found["state"] == "repo":
        found = cast("Checkout", dict(found, **_state(call, path)))
        if commit and found["wanted"] is None:
            found["wanted"] = _resolve(call, path, commit)
        source = source or found["origin"]
    if ref is not None:
        if source is None:
            raise AgentError("invalid", "%s has no origin to ask for %s" % (path, ref), path=path)
        found["wanted"] = _remote_id(call, path, source, ref, timeout)
    return found


def checkout(
    call: Context,
    path: str,
    commit: str,
    source: Optional[str] = None,
    depth: Optional[int] = None,
    submodules: bool = False,
    save_changes: bool = False,
    expect: Optional[Expected] = None,
    timeout: float = 1800.0,
    keep: Optional[str] = None,
) -> CheckedOut:
    """Bring a checkout to a commit (detached), cloning it if it is not there.

    Local changes to tracked files are an error, or with `save_changes` go into the journal first. Untracked files stay
    where they are, unless the commit has files of the same names: those are saved likewise.
    """
    path = states.absolute(path)
    if _kind(path) != "repo":
        return _clone(call, path, commit, source, depth, submodules, timeout, keep)
    before = _state(call, path)
    for key, value in (expect or {}).items():
        if dict(before)[key] != value:
            raise AgentError("conflict", "%s has changed since it was looked at: %s" % (path, key), path=path)
    if before["under_way"]:
        raise AgentError("conflict", "%s is under way in %s" % (before["under_way"], path), path=path)
    full = _have(call, path, commit, source or before["origin"], depth, timeout)
    record: Dict[str, Any] = {"before": before, "after": full, "submodules": submodules}
    in_the_way = _in_the_way(call, path, full)
    if (before["changed"] or in_the_way) and not save_changes:
        what = [entry["path"] for entry in before["changed"]] or in_the_way
        why = "local changes" if before["changed"] else "files that git does not track where the commit has its own"
        message = "%s has %s: %s; `keep_local_changes: save` keeps them in the journal" % (
            path,
            why,
            ", ".join(what[:10]),
        )
        raise AgentError("conflict", message, path=path)
    if before["changed"] or in_the_way:
        keep_changes(call, path, dict(before), in_the_way, keep, record)
    save(call, keep, record)
    call.progress({"text": "checking out %s" % full})
    force = ["--force"] if record.get("saved") else []
    git(call, ["checkout", "--quiet", "--detach"] + force + [full], path, timeout)
    if submodules:
        _update_submodules(call, path, timeout)
    return {"before": before["head"], "after": full, "saved": [entry["path"] for entry in record.get("saved", [])]}


def restore(call: Context, path: str, keep: str, timeout: float = 1800.0) -> Restored:
    """Bring a checkout back to where it was, local changes included."""
    path = states.absolute(path)
    record = load(call, keep)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), safepath.place(path) as at:
        replace.temporary_for(call, at, keep)  # removes what a crash has left
    if record is None or record.get("undone") or _kind(path) != "repo":
        return {"restored": False}
    now = _state(call, path)
    if "cloned" in record:
        if now["head"] != record["cloned"] or now["changed"] or now["untracked"]:
            raise AgentError("conflict", "%s was changed by someone else since; it is left as it is" % path, path=path)
        with safepath.place(path) as at:
            backups.discard(call, at, states.of(at, False), keep + ".clone")
    else:
        before = record["before"]
        if now["head"] not in (record["after"], before["head"]):
            raise AgentError("conflict", "%s was moved to %s by someone else since" % (path, now["head"]), path=path)
        strange = _strange(call, path, now, record)
        if strange:
            message = "%s has local changes since: %s" % (path, ", ".join(strange[:10]))
            raise AgentError("conflict", message, path=path)
        _go_back(call, path, now, record, timeout)
        _reattach(call, path, before)
        put_back(call, path, record, keep)
        if record["submodules"]:
            _update_submodules(call, path, timeout)
    save(call, keep, dict(record, undone=True))
    return {"restored": True}


def needs(call: Context, path: str, keep: str, **_: Any) -> List[str]:
    """What `restore` lacks: the commit that the checkout was at."""
    path = states.absolute(path)
    record = load(call, keep)
    if record is None or record.get("undone") or "cloned" in record or _kind(path) != "repo":
        return []
    head = record["before"]["head"]
    if head is None or git(call, ["cat-file", "-e", head + "^{commit}"], path, ok=None).code == 0:
        return []
    return ["%s was at commit %s, which is not there any more" % (path, head)]


def _strange(call: Context, path: str, now: Head, record: Dict[str, Any]) -> List[str]:
    """What has changed that we did not change. Where HEAD is where it was, a checkout may have ended half way."""
    changed = [entry["path"] for entry in now["changed"]]
    if now["head"] == record["after"] or not changed:
        return changed
    done = git(call, ["diff", "--name-only", "-z", "--no-renames", "--no-ext-diff", record["after"]], path)
    otherwise = set(done.out.decode("utf-8", "surrogateescape").split("\0"))
    return [name for name in changed if name in otherwise and _altered(path, record, name)]


def _go_back(call: Context, path: str, now: Head, record: Dict[str, Any], timeout: float) -> None:
    before = record["before"]
    if before["head"] is None:
        if now["head"] is not None:
            git(call, ["rm", "-r", "--quiet", "--force", "."], path, timeout)
        return
    half = any(_altered(path, record, entry["path"]) for entry in now["changed"])
    if half:  # it is finished first: only git knows which of the new files are there
        git(call, ["checkout", "--quiet", "--detach", "--force", record["after"]], path, timeout)
    if half or now["head"] != before["head"]:
        git(call, ["checkout", "--quiet", "--detach", before["head"]], path, timeout)


def _kind(path: str) -> Literal["absent", "empty", "repo", "other"]:
    if not os.path.lexists(path):
        return "absent"
    if os.path.lexists(os.path.join(path, ".git")):
        return "repo"
    return "empty" if os.path.isdir(path) and not os.listdir(path) else "other"


def _state(call: Context, path: str) -> Head:
    _demand_one_owner(call, path, ownership.owner(path)[0])
    head = git(call, ["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], path, ok=(0, 1))
    branch = git(call, ["symbolic-ref", "--quiet", "--short", "HEAD"], path, ok=(0, 1))
    origin = git(call, ["config", "--get", "remote.origin.url"], path, ok=(0, 1))
    folder = os.path.join(path, text(git(call, ["rev-parse", "--git-dir"], path)))
    changed, untracked = changes(call, path)
    return {
        "head": text(head) or None,
        "branch": text(branch) or None,
        "origin": text(origin) or None,
        "under_way": next(
            (what for name, what in UNDER_WAY.items() if os.path.exists(os.path.join(folder, name))), None
        ),
        "changed": cast("List[Edited]", changed),
        "untracked": untracked[:MOST_LISTED],
        "untracked_count": len(untracked),
    }


def _demand_one_owner(call: Context, path: str, who: users.User) -> None:
    """Refuse checkouts inside this one that are somebody else's: git looks into them as it does here."""
    for name in _submodules(call, path):
        folder = os.path.join(path, name)
        if os.path.lexists(os.path.join(folder, ".git")):
            theirs, _ = ownership.owner(folder)
            if theirs.uid != who.uid:
                text = "%s is %s's and %s inside it %s's; give both to one owner: chown -R"
                raise AgentError("permission", text % (path, who.name, folder, theirs.name), path=folder)
            _demand_one_owner(call, folder, who)
        elif who.uid == 0 == os.geteuid() and os.path.isdir(folder):  # they could make one there meanwhile
            ownership.demand_safe_way(os.path.join(folder, ".git"))


def _resolve(call: Context, path: str, commit: str) -> Optional[str]:
    """Full id of a commit that is here. Raises AgentError where a short id fits several."""
    done = git(call, ["rev-parse", "--verify", "--quiet", commit + "^{commit}"], path, ok=(0, 1, 128))
    if done.code == 0:
        return text(done)
    fits = text(git(call, ["rev-parse", "--disambiguate=" + commit], path)).split()
    if len(fits) > 1:
        raise AgentError("invalid", "commit id %s is ambiguous in %s: %s" % (commit, path, ", ".join(fits[:5])))
    return None


def _remote_id(call: Context, path: str, source: str, ref: str, timeout: float) -> str:
    who = ownership.owner(path)[0] if _kind(path) == "repo" else ownership.maker(path)
    ownership.demand_usable(source, who)
    done = git(call, ["ls-remote", "--", source, ref, ref + "^{}"], path, timeout, maker=who)
    rows = [line.split("\t") for line in text(done).splitlines()]
    ids = {name: number for number, name in rows}
    for name in (ref, "refs/tags/%s^{}" % ref, "refs/tags/" + ref, "refs/heads/" + ref, ref + "^{}"):
        if name in ids:
            return ids.get(name + "^{}", ids[name])
    raise AgentError("not-found", "there is no branch or tag %r at %s" % (ref, source), ref=ref)


def _clone(
    call: Context,
    path: str,
    commit: str,
    source: Optional[str],
    depth: Optional[int],
    submodules: bool,
    timeout: float,
    keep: Optional[str],
) -> CheckedOut:
    if _kind(path) == "other":
        raise AgentError("conflict", "%s exists and is no git checkout" % path, path=path)
    if source is None:
        raise AgentError("invalid", "there is no checkout at %s, and no source to clone" % path, path=path)
    who = ownership.maker(path)
    ownership.demand_usable(source, who)
    with users.acting(who):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with safepath.place(path) as at:
        temporary = replace.temporary_for(call, at, keep)
        try:
            call.progress({"text": "cloning %s" % source})
            words = ["clone", "--quiet", "--no-checkout", *(["--depth", str(depth)] if depth else []), "--", source]
            git(call, [*words, temporary.path], path, timeout, maker=who)
            full = _have(call, temporary.path, commit, source, depth, timeout)
            git(call, ["checkout", "--quiet", "--detach", full], temporary.path, timeout)
            if submodules:
                _update_submodules(call, temporary.path, timeout)
            save(call, keep, {"cloned": full})
            temporary.rename(at)
        finally:
            if temporary.exists():
                backups.delete(temporary)
    return {"before": None, "after": full, "saved": []}


def _have(call: Context, path: str, commit: str, source: Optional[str], depth: Optional[int], timeout: float) -> str:
    """Full id of a commit, fetched if it is not here: by its id, else with everything the source has."""
    full = _resolve(call, path, commit)
    if full is not None:
        return full
    if source is None:
        raise AgentError("not-found", "commit %s is not in %s, which has no origin" % (commit, path), path=path)
    ownership.demand_usable(source, ownership.owner(path)[0])
    call.progress({"text": "fetching from %s" % source})
    everything = ["+refs/heads/*:refs/remotes/opsctl/*", "+refs/tags/*:refs/tags/*"]
    shallow = text(git(call, ["rev-parse", "--is-shallow-repository"], path)) == "true"
    attempts: List[List[str]] = [["--unshallow"] + ["--", source] + everything] if shallow else []
    attempts.append(["--", source] + everything)
    if len(commit) == 40:
        attempts.insert(0, (["--depth", str(depth)] if depth else []) + ["--", source, commit])
    failed = None
    for words in attempts:
        done = git(call, ["fetch", "--quiet", "--no-write-fetch-head"] + words, path, timeout, ok=None)
        failed = done if done.code != 0 else None
        full = _resolve(call, path, commit)
        if full is not None:
            return full
    if failed is not None:
        error = refused("fetch from %s" % source, failed)
        raise AgentError(error.kind, "%s; %s" % (error.message, OTHER_SOURCE), **error.fields)
    message = "there is no commit %s at %s; %s" % (commit, source, OTHER_SOURCE)
    raise AgentError("not-found", message, path=path, commit=commit)


def _reattach(call: Context, path: str, before: Dict[str, Any]) -> None:
    """Put HEAD back on its branch, unless the branch has moved meanwhile."""
    branch = before["branch"]
    if branch is None:
        return
    done = git(call, ["rev-parse", "--verify", "--quiet", "refs/heads/" + branch], path, ok=(0, 1))
    if text(done) == (before["head"] or ""):
        git(call, ["symbolic-ref", "HEAD", "refs/heads/" + branch], path)


def _update_submodules(call: Context, path: str, timeout: float) -> None:
    call.progress({"text": "updating submodules"})
    git(call, ["submodule", "--quiet", "update", "--init", "--recursive"], path, timeout)


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


def _submodules(call: Context, path: str) -> List[str]:
    """Names of the folders where the index has a commit of another repository."""
    entries = _names(git(call, ["ls-files", "--stage", "-z"], path).out)
    return [entry.partition("\t")[2] for entry in entries if entry.startswith("160000 ")]


def _in_the_way(call: Context, path: str, commit: str) -> List[str]:
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
    who, _ = ownership.owner(path)
    with acting(who):
        found = [_file_state(path, name) for name in names]
    for name, state in zip(names, found):
        if state["kind"] == "other" or (state["kind"] == "dir" and name in untracked):
            raise AgentError("conflict", "%s/%s cannot be saved: move it away first" % (path, name), path=path)
    saved: List[Entry] = []
    for number, (name, state) in enumerate(zip(names, found)):
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
    who, _ = ownership.owner(path)
    blobs = {entry["number"]: place(call, "%s.file-%d" % (keep, entry["number"])) for entry in record["saved"]}
    for entry in record["saved"]:
        if entry["state"]["kind"] == "file" and states.sha256(blobs[entry["number"]]) != entry["state"]["sha256"]:
            text = "what was kept of %s is damaged; it is left as it is" % entry["path"]
            raise AgentError("failed", text, path=blobs[entry["number"]])
    with acting(who):
        waiting = [
            entry for entry in record["saved"] if states.differs(_file_state(path, entry["path"]), entry["state"])
        ]
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


def _altered(path: str, record: Dict[str, Any], name: str) -> bool:
    """Whether a file is otherwise than its local change that was kept, or was none."""
    kept = {entry["path"]: entry["state"] for entry in record.get("saved", ())}
    return name not in kept or states.differs(_file_state(path, name), kept[name]) is not None


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
    temporary = os.path.join(folder, temporary_name(name, os.urandom(6).hex()))
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


def _file_state(path: str, name: str) -> State:
    """How a file of the checkout is; what a link on the way leads to is none."""
    above = os.path.dirname(os.path.join(os.path.realpath(path), name))
    return states.state(os.path.join(path, name)) if os.path.realpath(above) == above else states.ABSENT.copy()


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
    index, (who, _) = _index(call, path), ownership.owner(path)
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


def git(
    call: Context,
    words: Sequence[str],
    path: str,
    timeout: float = 120.0,
    ok: Optional[Sequence[int]] = (0,),
    env: Optional[Dict[str, str]] = None,
    stdin: bytes = b"",
    maker: Optional[User] = None,
) -> Done:
    """Run git in the checkout at `path`, or as `maker` in none. `ok`: how it may end; None: any way.

    Raises AgentError, also where git must not run there: see `checkout.owner`.
    """
    if maker is None:
        command = ownership.command(path, list(words), SETTINGS)
    else:
        command = ownership.command_of(maker, "/", list(words), SETTINGS)
    environment = dict(command.env, **ENVIRONMENT, **(env or {}))
    done = execute(call, command.argv, "/", environment, stdin, timeout, keep_output=64 << 20, clean=True)
    if ok is not None and done.code not in ok:
        raise refused(words[0], done)
    return done


def refused(doing: str, done: Done) -> AgentError:
    said = done.err.decode("utf-8", "replace")
    if "dubious ownership" in said or "unsafe repository" in said:
        text = "git %s: a checkout belongs to another user; become that user, or add it to safe.directory" % doing
        return AgentError("permission", text, stderr=said[-2000:])
    lines = said.splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith(("fatal:", "error:"))), None)
    if first is None:
        return AgentError("failed", "git %s: %s" % (doing, ending(done)), stderr=said[-2000:])
    told = lines[first].partition(": ")[2]
    names = [line.strip() for line in lines[first + 1 : first + 11] if line.startswith("\t")]
    return AgentError("failed", " ".join(["git %s: %s" % (doing, told), ", ".join(names)]).strip(), stderr=said[-2000:])


def text(done: Done) -> str:
    return done.out.decode("utf-8", "surrogateescape").strip()


NEEDS = {"restore": needs}
CALLS = {"look": look, "checkout": checkout, "restore": restore}
