"""Two drafters side by side: the same mapping? the same weights? which traffic do they cover?"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opsctl import this_machine
from opsctl.drafter.case import Case, Serving, converted_name
from opsctl.drafter.folder import Folder, Reader, Tensor
from opsctl.drafter.vocab_map import TableKind, fingerprint
from opsctl.errors import Conflict, Unreadable, UsageError
from opsctl.localfiles import opened
from opsctl.text import one_line, printable
from opsctl.wire.calls.checkpoint import checkpoint_digests
from opsctl.wire.protocol import AgentError

MAX_TABLE = 64 << 20
MAX_VOCAB = 1 << 20  # four times the largest there are


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a draft vocabulary covers of a token-frequency table: an upper bound on acceptance per token.

    Args:
        share: covered occurrences over all occurrences.
        uncovered: the most frequent tokens outside, with their counts.
        specials: special tokens by name: inside or not.
    """

    share: float
    uncovered: tuple[tuple[int, int], ...]
    specials: Mapping[str, bool]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`common`, `jaccard` speak of the sets of target ids; `positions_differ` of the rows, which is what counts."""

    a: str
    b: str
    positions: int
    positions_differ: int
    common: int
    union: int
    interchangeable: bool
    why: str
    fingerprints: tuple[str, str]
    identical: tuple[str, ...]
    changed: tuple[str, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]
    coverage: tuple[Coverage, Coverage] | None = field(default=None)
    doubts: tuple[str, ...] = ()

    @property
    def jaccard(self) -> float:
        return self.common / self.union if self.union else 1.0

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "a": printable(self.a),
            "b": printable(self.b),
            "positions_differ": self.positions_differ,
            "positions": self.positions,
            "common": self.common,
            "jaccard": round(self.jaccard, 6),
            "interchangeable": self.interchangeable,
            "why": printable(self.why),
            "doubts": [printable(doubt) for doubt in self.doubts],
            "fingerprints": list(self.fingerprints),
            "identical_tensors": [printable(name) for name in self.identical],
            "changed_tensors": [printable(name) for name in self.changed],
            "only_a": [printable(name) for name in self.only_a],
            "only_b": [printable(name) for name in self.only_b],
        }
        if self.coverage:
            found["coverage"] = {
                side: {
                    "share": round(c.share, 6),
                    "uncovered": [{"token": token, "count": count} for token, count in c.uncovered],
                    "specials": {printable(name): inside for name, inside in c.specials.items()},
                }
                for side, c in zip("ab", self.coverage, strict=True)
            }
        return found

    def lines(self) -> Iterator[str]:
        yield f"a  {one_line(self.a)}  mapping {self.fingerprints[0]}"
        yield f"b  {one_line(self.b)}  mapping {self.fingerprints[1]}"
        yield ""
        yield f"{'' if self.interchangeable else 'not '}interchangeable: {printable(self.why)}"
        for doubt in self.doubts:
            yield f"  ! {printable(doubt)}"
        yield f"  positions that differ  {self.positions_differ} of {self.positions}"
        yield f"  target ids in common   {self.common} of {self.union} (Jaccard {self.jaccard:.3f})"
        yield f"  tensors                {_counts(self)}"
        for label, names in (("identical", self.identical), ("changed", self.changed)):
            if names:
                yield f"    {label}: {printable(', '.join(names[:20]))}{', ...' if len(names) > 20 else ''}"
        for side, names in (("a", self.only_a), ("b", self.only_b)):
            if names:
                yield f"    only in {side}: {printable(', '.join(names[:20]))}{', ...' if len(names) > 20 else ''}"
        if self.coverage:
            yield ""
            for side, found in zip("ab", self.coverage, strict=True):
                yield f"  {side} covers {found.share:.2%} of the traffic"
                if found.uncovered:
                    tokens = ", ".join(f"{token} ({count})" for token, count in found.uncovered)
                    yield f"    most frequent tokens outside: {tokens}"
                outside = [name for name, inside in found.specials.items() if not inside]
                if found.specials:
                    text = f"outside: {printable(', '.join(outside))}" if outside else "all inside"
                    yield f"    special tokens: {text}"


def _counts(c: Comparison) -> str:
    return (
        f"{len(c.identical)} identical, {len(c.changed)} changed, {len(c.only_a)} only in a, {len(c.only_b)} only in b"
    )


def read_table(path: str) -> dict[str, int]:
    """A JSON object of names or token ids to whole numbers. Raises UsageError, Unreadable."""
    try:
        with opened(Path(path), piped=True) as file:
            data = file.read(MAX_TABLE + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=path) from None
    if len(data) > MAX_TABLE:
        raise Unreadable(f"over the cap of {MAX_TABLE} bytes", where=path)
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError):
        raise Unreadable("not JSON", where=path, hint='write it as {"token id": count}') from None
    if not isinstance(raw, dict) or not all(type(value) is int and value >= 0 for value in raw.values()):
        raise Unreadable("not an object of whole numbers", where=path, hint='write it as {"token id": count}')
    return raw


def compare_folders(
    a: Folder,
    b: Folder,
    *,
    counts: Mapping[str, int] | None = None,
    specials: Mapping[str, int] | None = None,
    top: int = 10,
    read: Reader = this_machine.call,
    read_b: Reader | None = None,
) -> Comparison:
    """Compare two gathered folders; weights are compared by digest where names, types and shapes agree.

    Raises Unreadable when one of them cannot be read.
    """
    (ids_a, doubt_a), (ids_b, doubt_b) = _ids(a), _ids(b)
    size = max(len(ids_a), len(ids_b))
    differ = sum(x != y for x, y in zip(ids_a, ids_b, strict=False)) + abs(len(ids_a) - len(ids_b))
    set_a, set_b = set(ids_a), set(ids_b)
    identical, changed, only_a, only_b = _tensors(a, b, read, read_b or read)
    vocabularies = {settings.vocab for settings in (a.settings, b.settings) if settings is not None}
    coverage = None
    if counts is not None:
        traffic = _traffic(counts)
        coverage = _coverage(set_a, traffic, specials, top), _coverage(set_b, traffic, specials, top)
    return Comparison(
        a=a.path,
        b=b.path,
        positions=size,
        positions_differ=differ,
        common=len(set_a & set_b),
        union=len(set_a | set_b),
        interchangeable=differ == 0 and len(vocabularies) == 1,
        why=_why(differ, size, len(set_a & set_b), sorted(vocabularies)),
        fingerprints=(fingerprint(ids_a), fingerprint(ids_b)),
        identical=identical,
        changed=changed,
        only_a=only_a,
        only_b=only_b,
        coverage=coverage,
        doubts=tuple(f"{side}: {doubt}" for side, doubt in (("a", doubt_a), ("b", doubt_b)) if doubt),
    )


def _why(differ: int, size: int, common: int, vocabularies: Sequence[int]) -> str:
    if len(vocabularies) > 1:
        return f"they are for different vocabularies: {' and '.join(map(str, vocabularies))} target ids"
    if not differ:
        return f"all {size} draft ids mean the same target ids in both"
    if common == size:
        return (
            f"the same {size} target ids, but {differ} rows mean another one: swapping d2t under an existing lm_head"
            " ruins every row that differs"
        )
    return f"{differ} of {size} rows mean another target id: swapping d2t under an existing lm_head ruins each of them"


def _ids(folder: Folder) -> tuple[tuple[int, ...], str]:
    """The target id of each draft id, as the table means it, and what is wrong with the table."""
    for container in folder.loaded():
        if container.problem is not None:
            raise Unreadable(container.problem.text, where=f"{folder.path}/{container.file}")
    case = Case(folder, None, Serving())
    if case.draft is None:
        why = folder.config_problem.text if folder.config_problem else "missing"
        raise Unreadable(f"config.json cannot be used: {why}", where=folder.path)
    if case.d2t is None:
        rows = case.draft.draft_vocab or case.draft.vocab
        if not 0 <= rows <= MAX_VOCAB:
            raise Unreadable(f"config.json claims a draft vocabulary of {rows} ids", where=folder.path)
        return tuple(range(rows)), ""
    if case.mapping is None:
        raise Unreadable(
            f"d2t is {case.d2t.dtype} {list(case.d2t.shape)}: no mapping that can be compared",
            where=folder.path,
            hint=f"opsctl drafter check {folder.path}",
        )
    found = case.mapping
    if found.sound or found.kind is TableKind.AMBIGUOUS:
        return found.ids if found.ids is not None else found.served, ""
    absolute = found.kind is TableKind.ABSOLUTE
    read = "compared as such, but SGLang takes it for offsets" if absolute else "compared as SGLang reads it"
    return found.ids if found.ids is not None else found.served, f"d2t is {found.kind.value} ({found.proof}); {read}"


def _tensors(
    a: Folder, b: Folder, read_a: Reader, read_b: Reader
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    one, two = _named(a), _named(b)
    names = [{t.name for t in tensors.values()} for tensors in (one, two)]
    if all(any(name.startswith("layers.0.") for name in given) for given in names):  # one style: names as they are
        one, two = ({t.name: t for t in tensors.values()} for tensors in (one, two))
    both = [name for name in one if name in two]
    alike = [name for name in both if (one[name].dtype, one[name].shape) == (two[name].dtype, two[name].shape)]
    digests_a = _digests(a, [one[name] for name in alike], read_a)
    digests_b = _digests(b, [two[name] for name in alike], read_b)
    identical = {name for name, x, y in zip(alike, digests_a, digests_b, strict=True) if x == y}
    return (
        tuple(sorted(identical)),
        tuple(sorted(set(both) - identical)),
        tuple(sorted(set(one) - set(two))),
        tuple(sorted(set(two) - set(one))),
    )


def _named(folder: Folder) -> dict[str, Tensor]:
    return {converted_name(t.name): t for container in folder.loaded() for t in container.tensors}


def _digests(folder: Folder, tensors: Sequence[Tensor], read: Reader) -> list[str]:
    found: dict[Tensor, str] = {}
    for file in dict.fromkeys(tensor.file for tensor in tensors):
        of_file = [tensor for tensor in tensors if tensor.file == file]
        ranges = [[t.start, t.end] for t in of_file]
        try:
            digests = read(checkpoint_digests(folder.path, file, ranges, folder.follow_links)).result
        except AgentError as error:
            where = f"{folder.path}/{file}"
            raise Conflict(f"changed since it was listed: {error.message}", where=where, hint="run it again") from None
        found |= dict(zip(of_file, digests, strict=True))
    return [found[tensor] for tensor in tensors]


def _traffic(counts: Mapping[str, int]) -> dict[int, int]:
    try:
        return {int(token): count for token, count in counts.items() if len(token) <= 20}
    except ValueError:
        raise Unreadable(
            "a key of the frequency table is no token id", hint='write it as {"token id": count}'
        ) from None


def _coverage(ids: set[int], traffic: Mapping[int, int], specials: Mapping[str, int] | None, top: int) -> Coverage:
    total = sum(traffic.values())
    inside = sum(count for token, count in traffic.items() if token in ids)
    outside = sorted(((t, c) for t, c in traffic.items() if t not in ids and c), key=lambda item: (-item[1], item[0]))
    return Coverage(
        share=inside / total if total else 0.0,
        uncovered=tuple(outside[:top]),
        specials={name: token in ids for name, token in sorted((specials or {}).items())},
    )
