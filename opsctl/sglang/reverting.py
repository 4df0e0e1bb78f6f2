"""Taking patches back, byte for byte: to what the journal kept of each file, or to what git has of it. Pure.

A file is gone back to only where it is known to hold our work and nothing else: it is as the last of our changes left
it, or exactly what our patches make of the commit's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.agent.protocol import Call, Reply
from opsctl.errors import Conflict, UsageError
from opsctl.sglang import patchset
from opsctl.sglang.patches import ALL, Patch, Status
from opsctl.sglang.patches.own import EndState
from opsctl.sglang.patchset import FileEdit
from opsctl.sglang.tree import SourceTree, unpacked


@dataclass(frozen=True, slots=True)
class Ours:
    """What is ours in a file: what it was without, and which patches it has."""

    before: bytes | None
    now: bytes | None
    names: frozenset[str]


def asking(root: str) -> Call:
    """The call that asks the journal for what patched this tree."""
    return Call("patching.applied", {"root": root})


def received(reply: Reply) -> dict[str, Ours]:
    """Our part in each file, by its path relative to the tree's root, from the answer to `asking`."""
    told: Mapping[str, Any] = reply.result
    data, images = unpacked(reply.body, (size for _, size in told["images"])), {}
    for sha256, size in told["images"]:
        images[sha256], data = data[:size], data[size:]
    chains: dict[str, tuple[str | None, frozenset[str], str | None]] = {}  # path -> before, names, after
    for step in told["steps"]:
        about = step["about"]
        for path, (before, after) in step["files"].items():
            base, names, last = chains.get(path, (before, frozenset(), before))
            if last != before:  # something else came in between
                base, names = before, frozenset()
            names = names - set(about["reverted"]) | set(about["patches"])
            chains[path] = (base, names, after)
    found = {}
    for path, (base, names, last) in chains.items():
        if names and last == told["now"][path] and (base is None or base in images):
            found[path] = Ours(_get(images, base), _get(images, last), names)
    return found


def from_git(tree: SourceTree, patches: Iterable[Patch]) -> dict[str, Ours]:
    """Our part in files that are exactly what our patches make of the commit's file."""
    there = [p for p in patches if _applied(tree, p)]
    committed = tree.having(tree.heads)
    found = {}
    for edit in patchset.plan(committed, there).edits:
        path = tree.inside(edit.path)
        if path in tree.heads and tree.files.get(path) == edit.after:
            found[edit.path] = Ours(edit.before, edit.after, frozenset(p.name for p in there))
    return found


def revert(
    tree: SourceTree, ours: Mapping[str, Ours], names: Sequence[str], states: Sequence[EndState] = ()
) -> tuple[tuple[str, ...], tuple[FileEdit, ...]]:
    """Names of the patches that are taken back (without `names`: all), and the edits that do it.

    Raises Conflict where a patch is applied and it is not known what its file was before.
    """
    known: dict[str, Patch] = {**{p.name: p for p in ALL}, **{s.name: s for s in states}}
    applied = sorted({name for one in ours.values() for name in one.names})
    patchset.select([name for name in names if name not in (*applied, *known)])
    going = tuple(name for name in applied if not names or name in names)
    bases = tree.having({tree.inside(p): o.before for p, o in ours.items() if o.before is not None})
    kept = [name for name in applied if name not in going]
    remaining = patchset.plan(bases, _patches(kept, known))
    again = {edit.path: edit.after for edit in remaining.edits}
    edits = []
    for path, one in sorted(ours.items()):
        if one.names.isdisjoint(going):
            continue
        after = again.get(path, one.before)
        if after != one.now:
            edits.append(FileEdit(path, one.now, after))
    rest = tree.having({tree.inside(e.path): e.after for e in edits if e.after is not None})
    _demand_gone(rest, names, known)
    return going, tuple(edits)


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


def _patches(names: Iterable[str], known: Mapping[str, Patch]) -> list[Patch]:
    """The patches of these names, in the order in which they are applied."""
    order = [*(p.name for p in ALL), *known]
    found: list[Patch] = []
    for name in names:
        try:
            found += [known[name]] if name in known else patchset.select([name])
        except UsageError as error:
            raise Conflict(
                f"{name} is to stay, and it is not known here what it changes",
                kind="conflict",
                hint="give the folder of your end states with --own; no patch goes alone while a diff stays: take all "
                "back, then apply what is to stay",
            ) from error
    return sorted(found, key=lambda p: order.index(p.name) if p.name in order else -1)


def _get(images: Mapping[str, bytes], sha256: str | None) -> bytes | None:
    return None if sha256 is None else images[sha256]
