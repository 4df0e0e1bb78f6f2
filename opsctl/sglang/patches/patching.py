"""Patching the tree of a host: what is asked of it, which patches it needs, and the call that makes the edits. Pure."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from opsctl.errors import Exit
from opsctl.inventory.model import SglangSettings
from opsctl.sglang.patches import ALL, KIMI_K25, Patch, Status, eagle3_capture, patchset, proofs
from opsctl.sglang.patches.drafter import CLASS
from opsctl.sglang.patches.own import EndState
from opsctl.sglang.patches.patchset import CAPTURE, Entry, FileEdit, LeftOut, Plan, Report
from opsctl.sglang.server import command
from opsctl.sglang.source import tree as trees
from opsctl.sglang.source.tree import SourceTree
from opsctl.wire import command_line
from opsctl.wire.calls.server import ServerProcess
from opsctl.wire.calls.source import (
    DiffsTried,
    DraftNames,
    Edit,
    Gathered,
    PatchLook,
    Written,
    diffing_attempt,
    patching_apply,
    patchlook_look,
)
from opsctl.wire.protocol import Call, Reply


@dataclass(frozen=True, slots=True)
class Place:
    """Where a host's tree is and what serves it; what is None is found out where that can be.

    Attributes:
        root: folder of the tree; None: the one that the server imports.
        port: of the server.
        model: folder of the target; its config.json names the class.
        python: interpreter that serves.
        path: its PYTHONPATH.
        drafter: folder of the draft model that its command names.
        cwd: folder in which that command is run.
    """

    root: str | None
    port: int = command_line.DEFAULT_PORT
    model: str | None = None
    python: str | None = None
    path: str | None = None
    drafter: str | None = None
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class Running:
    """A server of the host. `old_code`: started before its source was last changed; None where that is not known."""

    pid: int
    port: int
    started: float
    package: str | None
    old_code: bool | None
    newest_file: str | None


@dataclass(frozen=True, slots=True)
class Looked:
    """A tree, and what runs it.

    Attributes:
        architectures: classes of the target, where they could be told.
        imported: folder of the `sglang` package that the server imports, or its interpreter would, where told.
        drafter: the draft model, None where the host has none that is known.
        readonly: files, by their path inside the package, that could not be replaced.
    """

    tree: SourceTree
    running: tuple[Running, ...]
    architectures: tuple[str, ...]
    imported: str | None
    readonly: frozenset[str]
    drafter: Drafter | None = None

    @property
    def package(self) -> str:
        return posixpath.join(self.tree.root, self.tree.prefix).rstrip("/")

    @property
    def elsewhere(self) -> bool:
        """Whether what is served is known to be another tree."""
        return self.imported is not None and self.imported != self.package

    @property
    def old_code(self) -> tuple[Running, ...]:
        """The servers that run this tree as it was before its last change."""
        return tuple(r for r in self.running if r.package == self.package and r.old_code)


def place(settings: SglangSettings, root: str | None = None) -> Place:
    """The place that a host's `sglang` section tells, or the tree `root` in place of its checkout."""
    words = command.words(settings) or []
    first = words[0] if words and "python" in posixpath.basename(words[0]) else None
    path = settings.env.get("PYTHONPATH")
    started = command.parse(words)
    return Place(
        root=root or settings.checkout,
        port=settings.port,
        model=settings.model_path or (started.model if started else None),
        python=settings.interpreter or first,
        path=path if isinstance(path, str) else None,
        drafter=started.draft_model if started else None,
        cwd=settings.folder,
    )


def request(
    place: Place, names: Iterable[str] = (), target: str | None = None, files: Iterable[str] = ()
) -> Call[PatchLook]:
    """The one call that brings everything about a tree."""
    classes = [name.partition(" ")[2].strip() for name in names if name.startswith(f"{CAPTURE} ")]
    asked = trees.request("", [*classes, *([target] if target else [])], files).args
    about_drafter = {} if place.drafter is None else {"drafter": place.drafter, "cwd": place.cwd}
    return patchlook_look(
        place.root,
        asked["files"],
        asked["classes"],
        asked["exists"],
        port=place.port,
        model=place.model,
        python=place.python,
        path=place.path,
        **about_drafter,
    )


def received(reply: Reply[PatchLook]) -> Looked:
    """The answer to `request`. Raises RemoteError if it is damaged."""
    told = reply.result
    return Looked(
        tree=trees.received(Reply[Gathered](told, reply.body)),
        running=tuple(_running(server) for server in told["servers"]),
        architectures=tuple(told["architectures"]),
        imported=told["imported"],
        readonly=frozenset(told["readonly"]),
        drafter=drafter_told(told["drafter"]),
    )


def chosen(
    tree: SourceTree,
    names: Sequence[str],
    architectures: Sequence[str],
    states: Sequence[EndState] = (),
    target: str | None = None,
    drafter: Drafter | None = None,
) -> tuple[Patch, ...]:
    """The patches of these names, else what `target` needs, else all that a host may need; and `states`.

    architectures: classes of the host's target, where they are known. drafter: its draft model, which decides about
    patches that are not named. Raises UsageError for a name that is none.
    """
    own = {state.name: state for state in states}
    classes = [target] if target else architectures
    wrappers = [eagle3_capture(t) for t in classes if t != KIMI_K25.class_name and tree.classes.get(t)]
    if names:
        found: list[Patch] = []
        for name in names:
            if name in own:
                found.append(own[name])
            elif name == CAPTURE and wrappers:
                found += wrappers
            else:
                found += patchset.select([name])
        return tuple(found)
    if target:
        return (*patchset.for_target(tree, patchset.select((), target=target), target), *states)
    known = for_drafter(ALL, drafter)
    if architectures and KIMI_K25.class_name not in architectures:
        about_others: Patch = LeftOut(KIMI_K25, f"the target of this host is {architectures[0]}")
        known = tuple(about_others if patch is KIMI_K25 else patch for patch in known)
    return (*wrappers, *known, *states)


def trying(root: str, diffs: Sequence[bytes]) -> Call[DiffsTried]:
    """The call that tries unified diffs on the tree."""
    return diffing_attempt(root, [len(diff) for diff in diffs], body=b"".join(diffs))


def tried(names: Sequence[str], reply: Reply[DiffsTried]) -> tuple[tuple[Entry, ...], tuple[FileEdit, ...]]:
    """What the diffs of these names find, and what they would change, from the answer to `trying`."""
    told = reply.result
    entries = tuple(patchset.judged_diff(name, one) for name, one in zip(names, told["diffs"], strict=True))
    sizes = (change[side] or 0 for change in told["changes"] for side in ("old", "new"))
    data, edits = trees.unpacked(reply.body, sizes), []
    made = [(e.name, one["paths"]) for e, one in zip(entries, told["diffs"], strict=True) if e.status is Status.NEEDED]
    for change in told["changes"]:
        old, data = data[: change["old"] or 0], data[change["old"] or 0 :]
        new, data = data[: change["new"] or 0], data[change["new"] or 0 :]
        before, after = (None if change["old"] is None else old), (None if change["new"] is None else new)
        by = tuple(name for name, paths in made if change["path"] in paths)
        edits.append(FileEdit(change["path"], before, after, change["mode"] if before is None else None, by))
    return entries, tuple(edits)


def plan(
    tree: SourceTree, patches: Sequence[Patch], entries: Sequence[Entry] = (), diffs: Sequence[FileEdit] = ()
) -> Plan:
    """What brings the tree to the end state of all: the diffs first, the patches on what they leave."""
    changed = {tree.inside(edit.path): edit.after for edit in diffs}
    files = {path: changed.get(path, data) for path, data in {**tree.files, **changed}.items()}
    after = replace(tree, files={path: data for path, data in files.items() if data is not None})
    found = patchset.plan(after, patches)
    report = Report(tree, (*found.report.entries, *entries))
    if report.exit_code is Exit.CONFLICT:
        return Plan(report, (), ())
    edits = {edit.path: edit for edit in diffs}
    for edit in found.edits:
        first = edits.get(edit.path)
        both = replace(first, after=edit.after, patches=first.patches + edit.patches) if first else edit
        edits[edit.path] = both
    return Plan(report, found.applied, tuple(edits[path] for path in sorted(edits)))


def making(
    tree: SourceTree, edits: Sequence[FileEdit], applied: Sequence[Patch], python: str, reverted: Sequence[str] = ()
) -> Call[Written]:
    """The call that makes edits, all or none, and proves them; the journal keeps which patches came and which went."""
    described: list[Edit] = [
        {
            "path": edit.path,
            "before": None if edit.before is None else hashlib.sha256(edit.before).hexdigest(),
            "size": None if edit.after is None else len(edit.after),
            "mode": edit.mode,
        }
        for edit in edits
    ]
    after = tree.having({tree.inside(edit.path): edit.after for edit in edits if edit.after is not None})
    proof = proofs.request(after, applied, python)
    about = {"patches": {edit.path: edit.patches for edit in edits}, "reverted": reverted}
    how = {} if proof is None else {"script": proof.args["script"], "code": proof.args["code"]}
    body = b"".join([*(e.after or b"" for e in edits), proof.body if proof else b""])
    return patching_apply(tree.root, described, about, python, **how, body=body)


def _running(server: ServerProcess) -> Running:
    newest, package = server["newest"], server["package"]
    return Running(
        pid=server["pid"],
        port=command_line.port(server["argv"]),
        started=server["started"],
        package=package,
        old_code=None if newest is None else newest > server["started"],
        newest_file=server["newest_file"],
    )


NAMES = "eagle3-loader-names"
ABOUT_DRAFTER = (NAMES, "eagle3-loader-strict", "eagle3-d2t-guard", "eagle3-fc-guard")
_READ_AS = {"Eagle3Speculator": CLASS}  # what the configuration of speculators is turned into
_BY_NUMBER = re.compile(r"(^|\.)layers\.0\.")


@dataclass(frozen=True, slots=True)
class Drafter:
    """The draft model of a host. layers: names of its layers' tensors, None where they cannot be read."""

    path: str
    architectures: tuple[str, ...]
    layers: tuple[str, ...] | None


def drafter_told(told: DraftNames | None) -> Drafter | None:
    """The draft model that the host tells of."""
    if told is None:
        return None
    layers = None if told["layers"] is None else tuple(told["layers"])
    return Drafter(told["path"], tuple(told["architectures"]), layers)


def for_drafter(patches: Sequence[Patch], drafter: Drafter | None) -> tuple[Patch, ...]:
    """The patches, those that this draft model does not need told to be so."""
    why = {name: _why_not(name, drafter) for name in ABOUT_DRAFTER} if drafter else {}
    return tuple(LeftOut(patch, reason) if (reason := why.get(patch.name)) else patch for patch in patches)


def _why_not(name: str, drafter: Drafter) -> str | None:
    classes = [_READ_AS.get(one, one) for one in drafter.architectures]
    if classes and CLASS not in classes:
        return f"the draft model of this host, {drafter.path}, is a {classes[0]}, which another loader loads"
    if name == NAMES and drafter.layers is not None and not any(map(_BY_NUMBER.search, drafter.layers)):
        return f"the draft model of this host, {drafter.path}, has no tensor called layers.0.*"
    return None
