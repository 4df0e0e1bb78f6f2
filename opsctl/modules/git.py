"""Git checkouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl.errors import Conflict
from opsctl.modules.contract import Change, Module, ModuleArgs, Site
from opsctl.modules.fields import HostPath
from opsctl.quantities import TimeLimit
from opsctl.wire.calls.git import Checkout, git_checkout, git_look, git_restore
from opsctl.wire.protocol import Call, Reply

KEEP = "0"
SHOWN = 10
UNMERGED = frozenset({"DD", "AU", "UD", "UA", "DU", "AA", "UU"})  # git-status(1)


class GitArgs(ModuleArgs):
    dest: HostPath = Field(description="The checkout on the host.")
    repo: str | None = Field(
        None, description="Where it comes from: address, mirror folder or bundle; default: origin."
    )
    commit: str | None = Field(None, description="The commit, in full or short.", pattern=r"^[0-9a-f]{4,40}$")
    ref: str | None = Field(None, description="A branch or tag of the source, instead of `commit`.")
    keep_local_changes: Literal["refuse", "save"] = Field(
        "refuse", description="`save`: store local changes in the journal before the checkout; a rollback returns them."
    )
    submodules: bool = Field(False, description="Bring submodules to their commits too.")
    depth: int | None = Field(None, description="Fetch only this many commits of history.", ge=1)
    timeout: TimeLimit = Field(1800.0, description="Time for the whole of it.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.commit is None) == (self.ref is None):
            raise ValueError("give either `commit` or `ref`")
        if self.ref is not None and self.ref.startswith("-"):
            raise ValueError("a ref does not begin with a dash")
        return self


class Git(Module[GitArgs]):
    """Have a checkout at exactly one commit.

    A short id is resolved on the host and shown in full. Local changes are never lost: the task's line names them, and
    they stop a checkout, unless `keep_local_changes: save` stores them (as files and as a patch) in the journal first;
    a reference below refs/opsctl/saved keeps what was staged, and an undo removes it. Untracked files stay where they
    are. A merge or a rebase under way is named, and stops a checkout.

    Hooks of the repository are not run. As root in the checkout of another user, git runs as that user, with their
    configuration and keys; a new clone belongs to the owner of the folder that it is made in. Refused is a checkout of
    several owners, and as root one of root's that somebody else can change or replace.
    """

    name = "git"
    programs = frozenset({"git"})
    args = GitArgs
    examples = """
- name: SGLang at the commit that was tested
  when: false
  git: {dest: /root/sglang, commit: "3207427", keep_local_changes: save}
- name: A fresh checkout of a tag
  when: false
  git: {repo: "https://github.com/sgl-project/sglang", dest: /opt/sglang, ref: v0.5.10, depth: 1}
"""

    def observe(self, args: GitArgs, site: Site) -> Sequence[Call[Any]]:
        return (git_look(args.dest, args.commit, args.ref, args.repo),)

    def plan(self, args: GitArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        now: Checkout = seen[0].result
        if now["state"] == "other":
            raise Conflict(f"{args.dest} exists and is no git checkout", kind="conflict", hint="move it away first")
        if now["state"] != "repo" and args.repo is None:
            raise Conflict(f"there is no checkout at {args.dest}", kind="not-found", hint="say `repo:` to clone one")
        wanted = now["wanted"]
        if now["state"] == "repo" and wanted == now["head"]:
            return None
        if now["state"] == "repo":
            _demand_free(args, now)
        commit = wanted or args.commit
        assert commit is not None  # the host knows the id of a ref
        call = git_checkout(
            args.dest,
            commit,
            args.repo,
            args.depth,
            submodules=args.submodules,
            save_changes=args.keep_local_changes == "save",
            expect={"head": now["head"], "changed": now["changed"]} if now["state"] == "repo" else {},
            timeout=args.timeout,
            keep=KEEP,
        )
        undo = git_restore(args.dest, KEEP, args.timeout)
        return Change(_summary(args, now, wanted), (call,), (undo,), makes=frozenset((args.dest,)))

    def remark(self, args: GitArgs, seen: Sequence[Reply[Any]]) -> str:
        return _unfinished(seen[0].result)

    def result(
        self, args: GitArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        now: Checkout = seen[0].result
        local = {
            "local_changes": [entry["path"] for entry in now.get("changed", [])],
            "untracked": now.get("untracked", []),
        }
        if done:
            return {**done[-1].result, **local}
        return {"before": now.get("head"), "after": now.get("head"), "saved": [], **local}


def _demand_free(args: GitArgs, now: Checkout) -> None:
    if now["under_way"]:
        hint = "finish or abort it; where no git runs any more, remove index.lock from its git folder"
        raise Conflict(f"{args.dest}: {_unfinished(now)}", kind="conflict", hint=hint)
    if now["changed"] and args.keep_local_changes == "refuse":
        raise Conflict(
            f"{args.dest}: {_unfinished(now)}, which a checkout would touch",
            kind="conflict",
            hint="`keep_local_changes: save` keeps them in the journal; a rollback brings them back",
        )


def _unfinished(now: Checkout) -> str:
    """What somebody has begun in a checkout, in words: under way, unresolved, changed."""
    changed, under_way = now.get("changed", []), now.get("under_way")
    conflicts = [entry["path"] for entry in changed if entry["status"] in UNMERGED]
    edited = [entry["path"] for entry in changed if entry["path"] not in conflicts]
    found = [f"{under_way} is under way"] if under_way else []
    found += [f"unresolved conflicts in {_listed(conflicts)}"] if conflicts else []
    found += [f"local changes in {_listed(edited)}"] if edited else []
    return ", ".join(found)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{more}"


def _summary(args: GitArgs, now: Checkout, wanted: str | None) -> str:
    named = f" ({args.ref})" if args.ref else ""
    target = f"{wanted or f'{args.commit} (not fetched yet)'}{named}"
    if now["state"] != "repo":
        return f"clone {args.repo} to {args.dest} at {target}"
    saved = f", saving {len(now['changed'])} local changes" if now["changed"] else ""
    return f"check out {target} in {args.dest}, from {now['head'] or 'no commit'}{saved}"
