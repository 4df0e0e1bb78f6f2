"""Several patches on one tree: which are needed, what they would change, and whether they give what they promise.

Everything here is pure: a tree goes in, findings and file edits come out.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from opsctl.errors import Exit, Place, UsageError
from opsctl.findings import Finding, Level
from opsctl.sglang.patches import ALL, KIMI_K25, eagle3_capture
from opsctl.sglang.patches.base import About, Patch, Settled, Standing, Status, finding
from opsctl.sglang.patches.capture import Delegation
from opsctl.sglang.patches.own import EndState
from opsctl.sglang.source.symbols import NotPython
from opsctl.sglang.source.tree import SourceTree, unknown_class
from opsctl.text import did_you_mean

CAPTURE = "eagle3-capture"
_ABOUT_TARGET = (KIMI_K25.name, "eagle3-graph-layer-ids")  # the rest is about the draft model, whatever the target


@dataclass(frozen=True, slots=True)
class Entry:
    """One patch on one tree. `file` as the user of the tree knows it."""

    name: str
    status: Status
    file: str | None
    line: int | None
    reason: str

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "status": self.status.value,
            "file": self.file,
            "line": self.line,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """How a tree stands to the patches."""

    tree: SourceTree
    entries: tuple[Entry, ...]

    @property
    def exit_code(self) -> Exit:
        found = {entry.status for entry in self.entries}
        if Status.CONFLICT in found:
            return Exit.CONFLICT
        return Exit.CHANGES if Status.NEEDED in found else Exit.DONE

    def to_json(self) -> dict[str, Any]:
        return {
            "tree": self.tree.root,
            "commit": self.tree.commit,
            "dirty": list(self.tree.dirty),
            "version": str(self.tree.version) or None,
            "patches": [entry.to_json() for entry in self.entries],
        }

    def findings(self, where: str, here: str | None = None) -> list[Finding]:
        """One for each patch.

        Args:
            where: what was looked at: a folder, a host.
            here: the tree's folder, where it lies on this machine and its files can be pointed at.
        """
        return [_finding(where, entry, here) for entry in self.entries]


_LEVELS: dict[Status, Level] = {
    Status.UPSTREAM: "passed", Status.APPLIED: "passed", Status.NEEDED: "error", Status.CONFLICT: "error",
    Status.NOT_APPLICABLE: "skipped",
}  # fmt: skip


def _finding(where: str, entry: Entry, here: str | None) -> Finding:
    level = _LEVELS[entry.status]
    at = f" ({entry.file}{f':{entry.line}' if entry.line else ''})" if entry.file else ""
    message = "" if level == "passed" else f"{entry.status.value}: {entry.reason}{at}"
    place = Place(os.path.join(here, entry.file), entry.line) if here and entry.file else None
    remedy = "opsctl patch sglang" if entry.status is Status.NEEDED else ""
    return Finding(entry.name, level, message, place, remedy, where=where)


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file before and after, None where it is absent.

    Attributes:
        path: relative to the tree's root.
        mode: of a new file.
        patches: names of those that change it.
    """

    path: str
    before: bytes | None
    after: bytes | None
    mode: int | None = None
    patches: tuple[str, ...] = ()

    def diff(self) -> str:
        """The change as a unified diff that `git apply` takes."""
        old = (self.before or b"").decode("utf-8", "replace").splitlines(keepends=True)
        new = (self.after or b"").decode("utf-8", "replace").splitlines(keepends=True)
        before = "/dev/null" if self.before is None else f"a/{self.path}"
        after = "/dev/null" if self.after is None else f"b/{self.path}"
        lines = difflib.unified_diff(old, new, before, after)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


@dataclass(frozen=True, slots=True)
class Plan:
    """What applying patches would do. `edits` is empty where anything is in conflict: all of them, or none."""

    report: Report
    applied: tuple[Patch, ...]
    edits: tuple[FileEdit, ...]

    def diff(self) -> str:
        return "".join(edit.diff() for edit in self.edits)


def select(names: Sequence[str] = (), *, target: str | None = None) -> tuple[Patch, ...]:
    """The patches of these names; without names all, or for a target class those that are about the target.

    Raises UsageError for a name that is none.
    """
    known = {patch.name: patch for patch in ALL}
    if names:
        return tuple(_named(name, known) for name in names)
    if target is None:
        return (*ALL, _AnyClass())
    about = [p for p in ALL if p.name in _ABOUT_TARGET and p is not KIMI_K25]
    return (KIMI_K25 if target == KIMI_K25.class_name else eagle3_capture(target), *about)


def for_target(tree: SourceTree, patches: Sequence[Patch], target: str | None) -> tuple[Patch, ...]:
    """`patches`, which `select` gave for a target; of a class that only some versions have there may be none here."""
    if target != KIMI_K25.class_name or tree.classes.get(target):
        return tuple(patches)
    reason = f"this tree has no class {target}"
    return tuple(LeftOut(patch, reason) if patch.name in _ABOUT_TARGET else patch for patch in patches)


def judged_diff(name: str, answer: Mapping[str, Any]) -> Entry:
    """A unified diff on a tree, from what `diffing.attempt` said of it."""
    if answer["already"]:
        return Entry(name, Status.APPLIED, None, None, "the tree has what the diff adds, and not what it removes")
    message = " ".join(str(answer["message"]).split())
    if answer["applies"]:
        return Entry(name, Status.NEEDED, None, None, "the diff applies" + (f": {message}" if message else ""))
    place = re.search(r"patch failed: (\S+):(\d+)", message)
    file, line = (place[1], int(place[2])) if place else (None, None)
    return Entry(name, Status.CONFLICT, file, line, f"the diff does not apply: {message}")


def files(patches: Iterable[Patch]) -> tuple[str, ...]:
    """The files that the patches must see, beside those that every tree is asked for."""
    return tuple(p.path for p in patches if isinstance(p, EndState))


def classes(patches: Iterable[Patch]) -> tuple[str, ...]:
    """The model classes whose source the patches must see."""
    return tuple(p.class_name for p in patches if isinstance(p, Delegation))


def status(tree: SourceTree, patches: Iterable[Patch]) -> Report:
    """Each patch against the tree as it is. Raises UsageError for a target class that no tree file defines."""
    entries = []
    for patch in patches:
        if isinstance(patch, Delegation) and patch is not KIMI_K25 and not tree.classes.get(patch.class_name):
            raise unknown_class(tree, patch.class_name)
        entries.append(_entry(tree, patch.name, finding(patch, tree)))
    return Report(tree, tuple(entries))


def plan(tree: SourceTree, patches: Iterable[Patch]) -> Plan:
    """The edits that bring the tree to the end state of all `patches`.

    Each patch works on what those before it leave. After its edit the end state must hold when looked at afresh,
    and that of those before it still: a patch that does not keep its promise is a conflict.
    """
    chosen = tuple(patches)
    entries = status(tree, chosen).entries
    try:
        made = _made(tree, chosen, entries, each=False)
        kept = not _broken(made.tree, made.applied)
    except NotPython:  # what one leaves, the next cannot read
        kept = False
    if not kept:
        made = _made(tree, chosen, entries, each=True)  # which of them it is
    current, applied = made.tree, made.applied
    result = Report(tree, made.entries)
    if result.exit_code is Exit.CONFLICT:
        return Plan(result, (), ())
    edits = (
        FileEdit(tree.shown(path), tree.files[path], data, patches=made.by[path])
        for path, data in sorted(current.files.items())
        if data != tree.files[path]
    )
    return Plan(result, applied, tuple(edits))


class _Made(NamedTuple):
    """The tree as it is once patches were made on it, which these are, how each patch stands, and who wrote a file."""

    tree: SourceTree
    applied: tuple[Patch, ...]
    entries: tuple[Entry, ...]
    by: Mapping[str, tuple[str, ...]]


def _made(tree: SourceTree, patches: Sequence[Patch], found: Sequence[Entry], *, each: bool) -> _Made:
    """Make the patches that are needed; with `each`, after each leave it out if anything is not as promised then."""
    entries = list(found)
    current = tree
    applied: list[Patch] = []
    by: dict[str, tuple[str, ...]] = {}
    for index, patch in enumerate(patches):
        if entries[index].status is not Status.NEEDED:
            continue
        try:
            written = patch.rewrite(current)
            following = current.having(written)
        except Settled as settled:
            entries[index] = _entry(tree, patch.name, settled.finding)
            continue
        if each and (broken := _broken(following, [*applied, patch])):
            entries[index] = _entry(tree, patch.name, broken)
            continue
        current = following
        applied.append(patch)
        by.update({path: (*by.get(path, ()), patch.name) for path in written})
    return _Made(current, tuple(applied), tuple(entries), by)


class _AnyClass:
    """Stands for eagle3-capture where no class is named."""

    name = CAPTURE
    about = eagle3_capture("CLASS").about

    def look(self, tree: SourceTree) -> Standing:
        return Standing(Status.NOT_APPLICABLE, None, None, "is about one model class, and none was named")

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        return {}


def _broken(tree: SourceTree, applied: Sequence[Patch]) -> Standing | None:
    """Why the edited tree is not what the patches promise, None if it is."""
    for patch in applied:
        after = finding(patch, tree)
        if after.status not in (Status.APPLIED, Status.UPSTREAM):
            tabs = after.path and b"\n\t" in tree.files.get(after.path, b"")
            why = "the file is indented with tabs, and the edit with spaces" if tabs else after.reason
            reason = f"the edit does not give the end state of {patch.name}: {why}"
            return Standing(Status.CONFLICT, after.path, after.line, reason)
    return None


def _named(name: str, known: dict[str, Patch]) -> Patch:
    word, _, class_name = name.partition(" ")
    if word == CAPTURE and class_name.strip():
        return eagle3_capture(class_name.strip())
    if name not in known:
        raise UsageError(f"no patch is called {name!r}", hint=did_you_mean(name, [*known, f"{CAPTURE} CLASS"]))
    return known[name]


def _entry(tree: SourceTree, name: str, found: Standing) -> Entry:
    return Entry(name, found.status, tree.shown(found.path) if found.path else None, found.line, found.reason)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`patch`, which is not for this host; what the tree has already is told all the same."""

    patch: Patch
    reason: str

    @property
    def name(self) -> str:
        return self.patch.name

    @property
    def about(self) -> About:
        return self.patch.about

    def look(self, tree: SourceTree) -> Standing:
        found = finding(self.patch, tree)
        if found.status in (Status.NEEDED, Status.CONFLICT):
            return replace(found, status=Status.NOT_APPLICABLE, reason=self.reason)
        return found

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        return {}
