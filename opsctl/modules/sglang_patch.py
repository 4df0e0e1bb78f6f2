"""The state EAGLE-3 needs of an SGLang source tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl import patchfiles
from opsctl.errors import Conflict, RemoteError, UsageError
from opsctl.modules.contract import Change, FileDiff, Module, ModuleArgs, Site
from opsctl.modules.fields import HostPath
from opsctl.sglang.patches import Patch, Status, patching, patchset, reverting
from opsctl.sglang.patches.patching import Looked, Place
from opsctl.sglang.patches.patchset import Entry, FileEdit, Plan
from opsctl.text import few, printable
from opsctl.wire.calls.source import patching_restore
from opsctl.wire.protocol import Call, Reply


class SglangPatchArgs(ModuleArgs):
    state: Literal["applied", "reverted"] = Field(
        "applied", description="`reverted`: the files are as they were before the patches, byte for byte."
    )
    patches: list[str] | None = Field(
        None, description="Names of patches; default: all that the host's target needs, or all that were applied."
    )
    checkout: HostPath | None = Field(
        None,
        description="The source tree; default: `sglang.checkout` of the host. Named here, it is patched even if the "
        "server imports another one.",
    )
    own: str | None = Field(None, description="Folder with patches of your own, on the controller.")
    python: HostPath | None = Field(None, description="Interpreter that proves them; default: the one that serves.")
    target: str | None = Field(None, description="Only what a target model of this class needs.")
    commit: str | None = Field(
        None, description="Commit, in full or short, that the tree must be at.", pattern=r"^[0-9a-f]{4,40}$"
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state == "reverted" and (self.target or self.commit):
            raise ValueError("`target` and `commit` mean nothing with `state: reverted`")
        return self


class SglangPatch(Module[SglangPatchArgs]):
    """Have an SGLang source tree with the patches that EAGLE-3 needs, or without them.

    Every patch is an end state that is found by syntax. All of them are applied or none: the new files are compiled and
    the patched functions run with the interpreter that serves, and if that fails everything is put back. A tree that
    is not as a patch knows it is a conflict, and nothing is touched. A running server keeps the code it was started
    with.
    """

    name = "sglang_patch"
    args = SglangPatchArgs
    examples = """
- name: What EAGLE-3 needs
  when: false
  sglang_patch: {}
- name: One patch, and our own
  when: false
  sglang_patch: {patches: [kimi-k25-eagle3, my-vl-capture], own: patches}
- name: As it was
  when: false
  sglang_patch: {state: reverted}
"""

    def observe(self, args: SglangPatchArgs, site: Site) -> Sequence[Call[Any]]:
        own, place = _own(args, site), _place(args, site)
        calls: list[Call[Any]] = [patching.request(place, args.patches or (), args.target, patchset.files(own.states))]
        if args.state == "reverted":
            calls.append(reverting.asking(_root(place, site)))
        elif own.diffs:
            calls.append(patching.trying(_root(place, site), [diff.text for diff in own.diffs]))
        return calls

    def plan(self, args: SglangPatchArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        looked = patching.received(seen[0])
        if args.state == "reverted":
            names, edits = _reverted(args, looked, seen, site)
            if not edits:
                return None
            call = patching.making(looked.tree, edits, (), self._python(args, looked, site), names)
            return _change(f"take back {few(names)}", looked, edits, call)
        waiting = _wait_for_commit(args, looked, site)
        if waiting is not None:
            return waiting
        found = _planned(args, looked, seen, site)
        _demand_no_conflict(looked, found.report.entries)
        if not found.edits:
            return None
        _demand_served(args, looked)
        names = tuple(e.name for e in found.report.entries if e.status is Status.NEEDED)
        call = patching.making(looked.tree, found.edits, found.applied, self._python(args, looked, site))
        return _change(f"apply {few(names)}", looked, found.edits, call)

    def result(
        self, args: SglangPatchArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        looked = patching.received(seen[0])
        serving = [r.pid for r in looked.running if r.package == looked.package]
        return {
            "tree": looked.tree.root,
            "commit": looked.tree.commit,
            "written": done[-1].result["written"] if done else [],
            "old_code": serving if done else [r.pid for r in looked.old_code],
        }

    def _python(self, args: SglangPatchArgs, looked: Looked, site: Site) -> str:
        return args.python or _place(args, site).python or ""


def _own(args: SglangPatchArgs, site: Site) -> patchfiles.Own:
    """The project's own patches, of those that are asked for."""
    if args.own is None:
        return patchfiles.Own()
    found = patchfiles.read(site.find("files", args.own))
    if args.patches is None:
        return found
    return patchfiles.Own(
        tuple(s for s in found.states if s.name in args.patches),
        tuple(d for d in found.diffs if d.name in args.patches),
    )


def _place(args: SglangPatchArgs, site: Site) -> Place:
    return patching.place(site.sglang, args.checkout)


def _root(place: Place, site: Site) -> str:
    if place.root is None:
        raise UsageError(
            f"{site.host}: it is not said where the source tree is",
            hint="set `checkout` in its sglang section, or name the tree in the task",
        )
    return place.root


def _planned(args: SglangPatchArgs, looked: Looked, seen: Sequence[Reply[Any]], site: Site) -> Plan:
    own = _own(args, site)
    diffs = [diff.name for diff in own.diffs]
    names = [name for name in args.patches or () if name not in diffs]
    patches: tuple[Patch, ...] = ()
    if names or args.patches is None:
        patches = patching.chosen(looked.tree, names, looked.architectures, own.states, args.target, looked.drafter)
    entries, changes = patching.tried(diffs, seen[1]) if diffs else ((), ())
    return patching.plan(looked.tree, patches, entries, changes)


def _reverted(
    args: SglangPatchArgs, looked: Looked, seen: Sequence[Reply[Any]], site: Site
) -> tuple[tuple[str, ...], tuple[FileEdit, ...]]:
    states = _own(args, site).states
    known = patching.chosen(looked.tree, (), (), states)
    return reverting.revert(looked.tree, reverting.ours_in(looked.tree, known, seen[1]), args.patches or (), states)


def _wait_for_commit(args: SglangPatchArgs, looked: Looked, site: Site) -> Change | None:
    """What a pin that check mode did not make leaves open."""
    at = looked.tree.commit or ""
    if args.commit is None or at.startswith(args.commit):
        return None
    if site.check:
        return Change("", (), unknown=f"decided once commit {args.commit} is checked out")
    raise Conflict(
        f"{looked.tree.root} is to be at {args.commit}: {looked.tree.at}",
        kind="conflict",
        hint="pin it first: opsctl patch sglang --commit, or a git task",
    )


def _demand_no_conflict(looked: Looked, entries: Sequence[Entry]) -> None:
    wrong = [entry for entry in entries if entry.status is Status.CONFLICT]
    if wrong:
        told = (f"{e.name}: {_at(e)}{e.reason}" for e in wrong)
        raise Conflict(
            printable("; ".join(told)),
            kind="conflict",
            hint=f"nothing was touched; leave {few([e.name for e in wrong])} out by naming the patches you want, or "
            "edit the place by hand",
        )


def _at(entry: Entry) -> str:
    line = f":{entry.line}" if entry.line else ""
    return f"{entry.file}{line}: " if entry.file else ""


def _demand_served(args: SglangPatchArgs, looked: Looked) -> None:
    if looked.elsewhere and args.checkout is None:
        raise Conflict(
            printable(
                f"the server imports {looked.imported}, not {looked.package}: patching this would change nothing"
            ),
            kind="conflict",
            hint=printable(
                f"--tree {looked.imported} patches what is served, --tree {looked.tree.root} this one anyway"
            ),
        )


def _change(what: str, looked: Looked, edits: Sequence[FileEdit], call: Call[Any]) -> Change:
    stuck = [e.path for e in edits if looked.tree.inside(e.path) in looked.readonly]
    if stuck:
        raise RemoteError(
            printable(f"{looked.tree.root} is read-only for us: {few(stuck)} cannot be replaced"),
            kind="permission",
            hint="become the user who owns the tree (`become` in the inventory), or mount it writable",
        )
    diffs = tuple(FileDiff(f"{looked.tree.root}/{e.path}", e.before, e.after) for e in edits)
    summary = printable(f"{what} in {looked.tree.root}: {few([e.path for e in edits])}")
    return Change(summary, (call,), (patching_restore(),), diffs=diffs)
