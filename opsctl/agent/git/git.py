"""Checkouts on the host: looked at, brought to a commit without losing anything, and taken back exactly."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, cast

from opsctl.agent.core import users
from opsctl.agent.core.undo_record import load, save
from opsctl.agent.files import backups, replace, safepath
from opsctl.agent.files import state as fs
from opsctl.agent.git import checkout as checkouts
from opsctl.agent.git import gitsave
from opsctl.agent.git.gitrun import git, refused, text
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
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
    path = fs.absolute(path)
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
    path = fs.absolute(path)
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
    in_the_way = gitsave.in_the_way(call, path, full)
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
        gitsave.keep_changes(call, path, dict(before), in_the_way, keep, record)
    save(call, keep, record)
    call.progress({"text": "checking out %s" % full})
    force = ["--force"] if record.get("saved") else []
    git(call, ["checkout", "--quiet", "--detach"] + force + [full], path, timeout)
    if submodules:
        _update_submodules(call, path, timeout)
    return {"before": before["head"], "after": full, "saved": [entry["path"] for entry in record.get("saved", [])]}


def restore(call: Context, path: str, keep: str, timeout: float = 1800.0) -> Restored:
    """Bring a checkout back to where it was, local changes included."""
    path = fs.absolute(path)
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
            backups.discard(call, at, fs.of(at, False), keep + ".clone")
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
        gitsave.put_back(call, path, record, keep)
        if record["submodules"]:
            _update_submodules(call, path, timeout)
    save(call, keep, dict(record, undone=True))
    return {"restored": True}


def needs(call: Context, path: str, keep: str, **_: Any) -> List[str]:
    """What `restore` lacks: the commit that the checkout was at."""
    path = fs.absolute(path)
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
    return [name for name in changed if name in otherwise and gitsave.differs(path, record, name)]


def _go_back(call: Context, path: str, now: Head, record: Dict[str, Any], timeout: float) -> None:
    before = record["before"]
    if before["head"] is None:
        if now["head"] is not None:
            git(call, ["rm", "-r", "--quiet", "--force", "."], path, timeout)
        return
    half = any(gitsave.differs(path, record, entry["path"]) for entry in now["changed"])
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
    _demand_one_owner(call, path, checkouts.owner(path)[0])
    head = git(call, ["rev-parse", "--verify", "--quiet", "HEAD^{commit}"], path, ok=(0, 1))
    branch = git(call, ["symbolic-ref", "--quiet", "--short", "HEAD"], path, ok=(0, 1))
    origin = git(call, ["config", "--get", "remote.origin.url"], path, ok=(0, 1))
    folder = os.path.join(path, text(git(call, ["rev-parse", "--git-dir"], path)))
    changed, untracked = gitsave.changes(call, path)
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
    for name in gitsave.submodules(call, path):
        folder = os.path.join(path, name)
        if os.path.lexists(os.path.join(folder, ".git")):
            theirs, _ = checkouts.owner(folder)
            if theirs.uid != who.uid:
                text = "%s is %s's and %s inside it %s's; give both to one owner: chown -R"
                raise AgentError("permission", text % (path, who.name, folder, theirs.name), path=folder)
            _demand_one_owner(call, folder, who)
        elif who.uid == 0 == os.geteuid() and os.path.isdir(folder):  # they could make one there meanwhile
            checkouts.demand_safe_way(os.path.join(folder, ".git"))


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
    who = checkouts.owner(path)[0] if _kind(path) == "repo" else checkouts.maker(path)
    checkouts.demand_usable(source, who)
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
    who = checkouts.maker(path)
    checkouts.demand_usable(source, who)
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
    checkouts.demand_usable(source, checkouts.owner(path)[0])
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


NEEDS = {"restore": needs}
CALLS = {"look": look, "checkout": checkout, "restore": restore}
