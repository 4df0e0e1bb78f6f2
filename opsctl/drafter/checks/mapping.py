"""Checks of the draft vocabulary: d2t, t2d, and the head they belong to."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.drafter import loader
from opsctl.drafter.case import Case
from opsctl.drafter.folder import Tensor
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version
from opsctl.drafter.vocab_map import INTEGERS, Decision, TableKind, fingerprint

_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_UNSIGNED = frozenset({"U16", "U32", "U64"})
_OWN_D2T = "get d2t of the run that trained this head"
_EFFECT = {
    TableKind.ABSOLUTE: "absolute target ids, but SGLang adds arange to them",
    TableKind.ROW_ORDER: "rows of lm_head were trained in rising id order: a row out of place drafts a wrong token",
    TableKind.OTHER_RUN: "the table belongs to another run than t2d and the head",
    TableKind.NEVER_FILLED: "the mapping was never filled: draft ids are taken for target ids",
    TableKind.ARANGE: "the mapping was never filled",
    TableKind.INVALID: "SGLang reads it as offsets, and the ids so counted draft a wrong token or none",
}


def mapping(case: Case, version: Version) -> Iterator[Remark]:
    """Row 11: what d2t is, and whether it fits the head."""
    draft, d2t = case.draft, case.d2t
    if draft is None:
        return
    size = _head_rows(draft)
    if d2t is None:
        lost = any(loader.mapping_name(name, draft.mla) == "d2t" for name in case.lost)
        if size and case.vocab and size < case.vocab and not lost:
            yield Remark(
                "d2t-missing",
                Verdict.SILENT_GARBAGE,
                "d2t",
                f"no d2t although only {size} of {case.vocab} ids are drafted: draft ids are taken for target ids",
                "add d2t from training (it may be in a side file); without it the head cannot be used",
            )
        return
    if case.mapping is None:
        yield from _not_a_table(case)
        return
    if d2t.dtype in _UNSIGNED:
        yield _unaddable(d2t)
    yield from _judged(case, case.mapping, size)


def _head_rows(draft: Settings) -> int:
    # A tied head is a fault of its own: the mapping is judged against the head that was trained.
    return draft.integer("draft_vocab_size") or draft.draft_vocab if draft.tied else draft.draft_vocab


def _not_a_table(case: Case) -> Iterator[Remark]:
    d2t = case.d2t
    assert d2t is not None
    if d2t.dtype in _FLOATS:
        yield Remark(
            "d2t-dtype",
            Verdict.RUNTIME_ERROR,
            d2t.name,
            f"dtype {d2t.dtype}: hot_token_id becomes a float and cannot be an index, IndexError"
            " at the first draft step",
            "store d2t as I64 (a blanket .to(dtype) must skip it)",
        )
    elif d2t.dtype not in INTEGERS:
        yield _unaddable(d2t)
    elif not d2t.shape:
        detail = "a single number: its length is asked for, IndexError when it is loaded"
        yield Remark("d2t-shape", Verdict.LOAD_ERROR, d2t.name, detail, "store d2t in one dimension")
    elif len(d2t.shape) != 1:
        detail = f"shape {list(d2t.shape)}: adding arange to it broadcasts, the indices have the wrong shape"
        yield Remark("d2t-shape", Verdict.RUNTIME_ERROR, d2t.name, detail, "store d2t in one dimension")
    elif case.table(d2t) is None:
        detail = f"shape {list(d2t.shape)}: too large for a mapping"
        yield Remark("d2t-shape", Verdict.CUDA_ERROR, d2t.name, detail, _OWN_D2T)


def _unaddable(d2t: Tensor) -> Remark:
    detail = f"dtype {d2t.dtype}: torch cannot add it to arange, RuntimeError when it is loaded"
    return Remark("d2t-dtype", Verdict.LOAD_ERROR, d2t.name, detail, "store d2t as I64")


def _judged(case: Case, found: Decision, size: int) -> Iterator[Remark]:
    d2t = case.d2t
    assert d2t is not None
    entries = len(found.served)
    certain = "certain" if found.certain else "near-certain"
    if found.kind is TableKind.AMBIGUOUS:
        remedy = "compare with a checkpoint that has t2d: opsctl drafter compare"
        yield Remark("d2t-kind", Verdict.NOTE, d2t.name, f"offsets or ids, not decidable: {found.proof}", remedy)
    elif found.sound:
        detail = f"{found.kind.value} ({certain}): {found.proof}; fingerprint {fingerprint(found.served)}"
        yield Remark("d2t-kind", Verdict.NOTE, d2t.name, detail)
    elif found.kind is not TableKind.INVALID or found.duplicates or not found.outside:  # else told by the range alone
        remedy = _OWN_D2T
        if found.kind is TableKind.ABSOLUTE:
            remedy = f"{case.folder.convert_command}  (turns the ids into offsets)"
        yield Remark(
            "d2t-kind",
            _share(found.wrong, entries),
            d2t.name,
            f"{found.kind.value} ({certain}): {found.proof}; {_EFFECT[found.kind]}",
            remedy,
        )
    # Of an absolute table the range is a consequence; it only matters where it kills the process.
    if found.outside and (found.kind is not TableKind.ABSOLUTE or case.serving.tp == 1):
        yield _outside(case, found, entries)
    if size and entries < size:
        yield Remark(
            "d2t-length",
            Verdict.CUDA_ERROR,
            d2t.name,
            f"{entries} entries for {size} head rows: draft id {entries} and above index past the table",
            _OWN_D2T,
        )
    elif size and entries > size:
        detail = f"{entries} entries for {size} head rows: the table belongs to another head"
        yield Remark("d2t-length", Verdict.DEGRADED, d2t.name, detail, _OWN_D2T)


def _outside(case: Case, found: Decision, entries: int) -> Remark:
    """Row 12: ids no embedding row has."""
    if case.serving.tp == 1:
        verdict, effect = Verdict.CUDA_ERROR, "at tp 1 looking one up is a device-side assert"
    else:
        verdict, effect = _share(found.outside, entries), "at tp > 1 each is masked to a zero embedding, silently"
    assert case.d2t is not None
    detail = f"{found.outside} of {entries} target ids lie outside 0..{case.vocab - 1}: {effect}"
    return Remark("d2t-range", verdict, case.d2t.name, detail, _OWN_D2T)


def _share(wrong: int, of: int) -> Verdict:
    # A head with most rows wrong proposes almost nothing that is accepted; with few wrong it loses those tokens.
    return Verdict.SILENT_GARBAGE if 2 * wrong >= of else Verdict.DEGRADED


def witness(case: Case, version: Version) -> Iterator[Remark]:
    """t2d against d2t and the head. SGLang ignores t2d, so this alone changes nothing."""
    draft, t2d = case.draft, case.t2d
    if draft is None or t2d is None:
        return
    mask = case.mask
    if mask is None:
        detail = f"{t2d.dtype} {list(t2d.shape)}: no mask over the target vocabulary; SGLang ignores it"
        yield Remark("t2d-sum", Verdict.NOTE, t2d.name, detail)
        return
    if draft.vocab and len(mask) != draft.vocab:
        detail = f"{len(mask)} entries for a vocabulary of {draft.vocab}"
        yield Remark("t2d-length", Verdict.NOTE, t2d.name, detail, "the mapping was made for another tokenizer")
    total, rows = len(mask) - mask.count(0), _head_rows(draft)
    if rows and total != rows:
        detail = f"t2d keeps {total} ids, the head has {rows} rows; SGLang ignores t2d, but it should agree"
        yield Remark("t2d-sum", Verdict.NOTE, t2d.name, detail)
