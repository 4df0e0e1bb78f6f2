"""Checks of tensor contents: NaN, infinities, zeros, rows of the head that are alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from opsctl.drafter import vocab_map
from opsctl.drafter.case import Case
from opsctl.drafter.folder import Rows, Sample
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version


def payload(case: Case, version: Version) -> Iterator[Remark]:
    """Row 41, from samples or, when asked for, from every byte."""
    groups: dict[tuple[str, Verdict], list[tuple[str, Sample]]] = defaultdict(list)
    for name, used in _taken(case, version):
        sample = case.samples.get(name) or case.samples.get(_original(case, name))
        if sample is None or not sample.blocks:
            continue
        if sample.nonfinite_blocks:
            groups["nan", Verdict.SILENT_GARBAGE if used else Verdict.NOTE].append((name, sample))
        if sample.zero_blocks == sample.blocks and not name.endswith(".bias"):  # which training may leave at zero
            groups["zero", Verdict.SILENT_GARBAGE if used else Verdict.NOTE].append((name, sample))
        elif sample.zero_blocks and name.endswith("proj.weight"):
            groups["hole", Verdict.DEGRADED].append((name, sample))
    for (kind, verdict), found in groups.items():
        yield _finding(case, kind, verdict, found)


def repeats(case: Case, version: Version) -> Iterator[Remark]:
    """Rows of the head that are alike, by samples: each token has a row of its own."""
    for container in case.folder.loaded():
        for name, rows in container.rows.items():
            if rows.read >= _ENOUGH_ROWS and rows.alike >= _MANY * rows.read:
                yield _repeated(case, name, rows)


_ENOUGH_ROWS = 16
_NEARLY_ALL = 0.9
_MANY = 0.05  # of the rows read; tokens that no text has, a few in a hundred at most, may share one


def _repeated(case: Case, name: str, rows: Rows) -> Remark:
    first, second = rows.pairs[0]
    detail = f"of {rows.read} rows read {rows.alike} are like another, as rows {first} and {second}"
    apart = {j - i for i, j in rows.pairs}
    values = vocab_map.decode(case.table(case.d2t) or b"", case.d2t.dtype) if case.d2t is not None else None
    same = sum(values[i] == values[j] for i, j in rows.pairs if j < len(values)) if values else 0
    if values and len(set(values)) > 1 and same >= _NEARLY_ALL * len(rows.pairs):
        cause = "rows are alike where entries of d2t are: the head was gathered with offsets in place of token ids"
        verdict = Verdict.SILENT_GARBAGE
    elif len(apart) == 1 and apart != {1}:
        cause = f"all {apart.pop()} rows apart: a part of the head was copied twice, and stands for other tokens"
        verdict = Verdict.DEGRADED
    else:
        cause, verdict = "rows of a head that was trained or gathered by token ids differ", Verdict.DEGRADED
    remedy = "gather the head anew from the checkpoint it comes from, by target ids: d2t[i] + i"
    return Remark("head-rows-alike", verdict, name, f"{detail}; {cause}", remedy)


def _taken(case: Case, version: Version) -> Iterator[tuple[str, bool]]:
    """Tensors that the server takes, and whether it goes on using them; those of another kind than EAGLE-3 all."""
    if not case.recognised.kind.eagle3:
        yield from ((name, name.endswith("weight")) for name in case.tensors)
    elif case.draft is not None and case.builds(version):
        yield from ((filled.tensor.name, filled.slot.required) for filled in case.load(version).filled)


def _original(case: Case, name: str) -> str:
    return f"layers.0.{name.removeprefix('midlayer.')}" if case.folder.speculators else name


_WORDS = {
    "nan": ("payload-nan", "NaN or infinities", "never loaded or broken in training"),
    "zero": ("payload-zero", "only zeros", "a sparse or failed copy"),
    "hole": ("payload-zero", "stretches of zeros only", "a copy that was cut"),
}


def _finding(case: Case, kind: str, verdict: Verdict, found: list[tuple[str, Sample]]) -> Remark:
    check, what, cause = _WORDS[kind]
    name = found[0][0]
    read = sum(s.size for _, s in found)
    how = (
        f"all {read} bytes read"
        if case.folder.full or _whole(case, found)
        else f"by {read} sampled bytes; --full reads all"
    )
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    listed = ", ".join(n for n, _ in found[1:4])
    detail = f"{name}{more}: {what} ({how}), {cause}"
    if listed:
        detail += f"; also {listed}" + (", ..." if len(found) > 4 else "")
    shared = verdict is Verdict.NOTE
    return Remark(
        check,
        verdict,
        name,
        f"{detail}; the server replaces it by the target's" if shared else detail,
        "" if shared else "copy the weights again and compare digests; if the source is the same, it was never trained",
    )


def _whole(case: Case, found: list[tuple[str, Sample]]) -> bool:
    tensors = case.tensors
    return all(name in tensors and sample.size == tensors[name].end - tensors[name].start for name, sample in found)
