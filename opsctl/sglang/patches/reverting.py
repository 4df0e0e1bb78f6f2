"""Taking patches back, byte for byte: to what the journal kept of each file, or to what git has of it. Pure.

Each file goes back through what we did to it, the last first, and the patches that stay are made anew. Where the file
was changed otherwise too, by hand or by a diff that stays, lines are taken back, and only if nothing else came to them.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from opsctl.errors import Conflict, Exit
from opsctl.sglang.patches import ALL, Patch, Status, eagle3_capture, patchset
from opsctl.sglang.patches.own import EndState
from opsctl.sglang.patches.patchset import FileEdit
from opsctl.sglang.source.tree import SourceTree, unpacked
from opsctl.text import few
from opsctl.wire.calls.source import Applied, patching_applied
from opsctl.wire.protocol import Call, Reply


@dataclass(frozen=True, slots=True)
class Step:
    """A change of a file that we made.

    Attributes:
        before: the file, None where it was absent.
        after: the file, None where it was absent.
        kept: whether that is known of both.
        came: patches that it made.
        went: patches that it took back.
        stand: those that came and did not go since.
        follows: nobody else had changed the file since our step before.
    """

    before: bytes | None
    after: bytes | None
    kept: bool
    came: frozenset[str]
    went: frozenset[str]
    stand: frozenset[str]
    follows: bool


@dataclass(frozen=True, slots=True)
class Ours:
    """What we did to a file, the oldest first, and how it is now. `untouched`: as our last step left it."""

    steps: tuple[Step, ...]
    now: bytes | None
    untouched: bool

    @property
    def names(self) -> frozenset[str]:
        """The patches that the file still has by our account."""
        return frozenset[str]().union(*(step.stand for step in self.steps))

    @property
    def unmixed(self) -> frozenset[str]:
        """The patches among and after which nobody else has changed the file."""
        first = len(self.steps)
        while self.untouched and first and (first == len(self.steps) or self.steps[first].follows):
            first -= 1
        return replace(self, steps=self.steps[first:]).names


def asking(root: str) -> Call[Applied]:
    """The call that asks the journal for what patched this tree."""
    return patching_applied(root)


def received(reply: Reply[Applied]) -> dict[str, Ours]:
    """Our part in each file, by its path relative to the tree's root, from the answer to `asking`."""
    told = reply.result
    data, images = unpacked(reply.body, (size for _, size in told["images"])), {}
    for sha256, size in told["images"]:
        images[sha256], data = data[:size], data[size:]
    steps: dict[str, list[Step]] = {}
    last: dict[str, str | None] = {}
    for step in told["steps"]:
        about = step["about"]
        names = about["patches"]
        if isinstance(names, list):  # an older journal does not tell which of them changed which file
            names = dict.fromkeys(step["files"], names)
        for path, (before, after) in step["files"].items():
            came, earlier = frozenset(names.get(path, ())), steps.get(path, [])
            went = frozenset(name for one in earlier for name in one.came).intersection(about["reverted"])
            # One that comes anew had gone in between.
            earlier = [replace(one, stand=one.stand - came - went) for one in earlier]
            kept = {before, after} <= {None, *images}
            follows = path in last and last[path] == before
            made = Step(images.get(before or ""), images.get(after or ""), kept, came, went, came, follows)
            steps[path], last[path] = [*earlier, made], after
    now = told["now"]
    ours = {p: Ours(tuple(found), images.get(now[p] or ""), last[p] == now[p]) for p, found in steps.items()}
    return {path: one for path, one in ours.items() if one.names}


def from_git(tree: SourceTree, patches: Iterable[Patch]) -> dict[str, Ours]:
    """Our part in the files that the commit has otherwise: what the patches that are there make of the commit's."""
    there = [p for p in patches if _applied(tree, p)]
    found = {}
    for edit in patchset.plan(tree.having(tree.heads), there).edits:
        path = tree.inside(edit.path)
        if path in tree.heads:
            names = frozenset(edit.patches)
            step = Step(edit.before, edit.after, True, names, frozenset(), names, False)
            found[edit.path] = Ours((step,), tree.files.get(path), tree.files.get(path) == edit.after)
    return found


def ours_in(tree: SourceTree, patches: Iterable[Patch], applied: Reply[Applied]) -> dict[str, Ours]:
    """Our part in each file: by the journal, or by git where the journal knows less of the file as it is."""
    git, journal = from_git(tree, patches), received(applied)
    return git | {p: o for p, o in journal.items() if o.untouched or not (p in git and git[p].untouched)}


def revert(
    tree: SourceTree, ours: Mapping[str, Ours], names: Sequence[str], states: Sequence[EndState] = ()
) -> tuple[tuple[str, ...], tuple[FileEdit, ...]]:
    """Names of the patches that are taken back (without `names`: all), and the edits that do it.

    Raises Conflict for a file of which it is not known what it would be without them.
    """
    ever = {name for one in ours.values() for name in one.names}
    known = {patch.name: patch for patch in (*_captures(tree, ever), *ALL, *states)}
    patchset.select([name for name in names if name not in ever and name not in known])
    standing = {path: _standing(tree, one, known) for path, one in ours.items()}
    there = frozenset[str]().union(*standing.values())
    for path, one in ours.items():
        lost = [name for name in one.names - there if name in names and not _gone(tree, known.get(name))]
        if lost:
            raise _refused(tree, path, lost, "what it did there was changed since")
    going = there.intersection(names) if names else there
    leaving = {path: found & going for path, found in standing.items() if found & going}
    anew = {path: (standing[path] & known.keys()) - going for path in leaving}
    try:  # patches may build on each other: those that stay come anew on what is left without any
        bare = {p: _back(tree, p, ours[p], _all_steps(ours[p], leaving[p], anew[p]), known) for p in leaving}
        kept = frozenset[str]().union(*anew.values())
        after = _again(tree, bare, [patch for name, patch in known.items() if name in kept])
    except Conflict:
        after = {p: _apart(tree, p, ours[p], leaving[p], anew[p], known) for p in leaving}
    edits = tuple(FileEdit(path, ours[path].now, data) for path, data in after.items() if data != ours[path].now)
    rest = tree.having({tree.inside(e.path): e.after for e in edits if e.after is not None})
    _demand_gone(rest, names, known)
    return tuple(sorted(going)), edits


def _standing(tree: SourceTree, ours: Ours, known: Mapping[str, Patch]) -> frozenset[str]:
    """The patches that a file still has: where it was changed since, only the known ones can be looked for."""
    sure = ours.unmixed
    return sure | {name for name in ours.names - sure if name in known and _applied(tree, known[name])}


def _again(tree: SourceTree, bare: Mapping[str, bytes | None], patches: Sequence[Patch]) -> dict[str, bytes | None]:
    """The files once these patches are made on them. Raises Conflict where one does not fit."""
    found = patchset.plan(tree.having({tree.inside(p): d for p, d in bare.items() if d is not None}), patches)
    if found.report.exit_code is Exit.CONFLICT:
        raise Conflict("what is to stay does not fit any more", kind="conflict", where=tree.root)
    return {**bare, **{edit.path: edit.after for edit in found.edits if edit.path in bare}}


Taking = list[tuple[Step, frozenset[str]]]  # steps, the last first, and which of their patches are taken back


def _all_steps(ours: Ours, leaving: frozenset[str], anew: frozenset[str]) -> Taking:
    """Every step back to the one with the first that leaves; of what came, all but what stays and cannot come anew."""
    found: Taking = []
    missing = leaving
    for step in reversed(ours.steps):
        found.append((step, step.came - (step.stand - leaving - anew)))
        missing = (missing | step.went) - step.came
        if not missing:
            break
    return found


def _apart(
    tree: SourceTree,
    path: str,
    ours: Ours,
    leaving: frozenset[str],
    staying: frozenset[str],
    known: Mapping[str, Patch],
) -> bytes | None:
    """The file without the lines of the patches that leave, whatever else was done to it."""
    diffs, patches = leaving - known.keys(), leaving & known.keys()
    alone = [(step, step.stand & diffs) for step in reversed(ours.steps) if step.stand & diffs]
    content = _back(tree, path, ours, alone, known)
    if patches:
        first = next(step for step in ours.steps if step.stand & patches)
        both, rest = (_made(tree, path, first.before, names, known) for names in (patches | staying, staying))
        content = _taken(tree, path, patches, content, FileEdit(path, rest, both))
    return content


def _back(tree: SourceTree, path: str, ours: Ours, taking: Taking, known: Mapping[str, Patch]) -> bytes | None:
    """The file with what these patches of these steps did taken back."""
    content = ours.now
    for step, names in taking:
        if step.came and not names:
            continue
        if step.kept and step.came <= names:
            edit = FileEdit(path, step.before, step.after)
        elif names and names <= known.keys():
            edit = FileEdit(path, step.before, _made(tree, path, step.before, names, known))
        elif others := step.stand - names:
            raise _refused(tree, path, names, f"it came together with {few(sorted(others))}, and which lines are whose "
                           "is not known here", f"take {few(sorted(step.stand))} back together")  # fmt: skip
        else:
            raise _refused(tree, path, names, "the file was changed since")
        content = _taken(tree, path, names, content, edit)
    return content


def _taken(tree: SourceTree, path: str, names: Collection[str], content: bytes | None, edit: FileEdit) -> bytes | None:
    """The file with one change of ours taken back. Raises Conflict where that is mixed up with another's."""
    if content == edit.after:
        return edit.before
    if content is None or edit.after is None or edit.before is None:
        raise _refused(tree, path, names, "the file was changed since")
    found = taken_back(content, edit.after, edit.before)
    if found is None:
        raise _refused(tree, path, names, "the same lines, or those beside them, were changed since")
    return found


def _made(
    tree: SourceTree, path: str, before: bytes | None, names: Collection[str], known: Mapping[str, Patch]
) -> bytes | None:
    """What patches make of a file, None where they do not fit it."""
    if before is None:
        return None
    found = patchset.plan(tree.having({tree.inside(path): before}), [p for n, p in known.items() if n in names])
    if found.report.exit_code is Exit.CONFLICT:
        return None
    return next((edit.after for edit in found.edits if edit.path == path), before)


def _refused(
    tree: SourceTree,
    path: str,
    names: Collection[str],
    why: str,
    todo: str = "take these lines out by hand: `git diff` shows them",
) -> Conflict:
    return Conflict(
        f"{few(sorted(names))} cannot be taken out of {path}: {why}",
        kind="conflict",
        where=tree.root,
        hint=f"nothing was touched; {todo}",
    )


def _demand_gone(tree: SourceTree, names: Sequence[str], known: Mapping[str, Patch]) -> None:
    """What is still there after the revert was put there by others, or changed by them since."""
    left = [p for name, p in known.items() if (not names or name in names) and _applied(tree, p)]
    for patch in left:
        (entry,) = patchset.status(tree, [patch]).entries
        raise Conflict(
            f"{patch.name} is in {entry.file}:{entry.line}, and it is not known what the file was before",
            kind="conflict",
            where=tree.root,
            hint="opsctl did not patch this file, or it was changed since; compare it with `git diff`",
        )


def _applied(tree: SourceTree, patch: Patch) -> bool:
    (entry,) = patchset.status(tree, [patch]).entries
    return entry.status is Status.APPLIED


def _gone(tree: SourceTree, patch: Patch | None) -> bool:
    """Whether the tree is known to have nothing of the patch."""
    return patch is not None and patchset.status(tree, [patch]).entries[0].status is not Status.CONFLICT


def _captures(tree: SourceTree, names: Iterable[str]) -> Iterator[Patch]:
    """The patches among these names that are about one class of the target, where the tree was asked for it."""
    for name in sorted(names):
        word, _, target = name.partition(" ")
        if word == patchset.CAPTURE and tree.classes.get(target):
            yield eagle3_capture(target)


class _Change(NamedTuple):
    """Lines `first` to `last` (not itself) of a text become `lines`."""

    first: int
    last: int
    lines: tuple[bytes, ...]


def taken_back(now: bytes, after: bytes, before: bytes) -> bytes | None:
    """`now` without the change from `before` to `after`, all that came later kept.

    None where something came later in the lines of that change, or right beside them: then it is not told apart.
    """
    lines = after.splitlines(keepends=True)
    later = _changes(lines, now.splitlines(keepends=True))
    back = [change for change in _changes(lines, before.splitlines(keepends=True)) if change not in later]
    if any(one.first <= other.last and other.first <= one.last for one in back for other in later):
        return None
    for first, last, new in sorted((*later, *back), reverse=True):
        lines[first:last] = new
    return b"".join(lines)


def _changes(old: Sequence[bytes], new: Sequence[bytes]) -> list[_Change]:
    found = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return [_Change(a, b, tuple(new[c:d])) for tag, a, b, c, d in found if tag != "equal"]
