"""Is a `d2t` table what SGLang takes it for?

SGLang computes `hot_token_id = d2t + arange(len(d2t))`: it takes every table for offsets (llama_eagle3.py).
`t2d`, a mask over the target vocabulary, is ignored by the server; here it is the witness.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

INTEGERS = {"I64": "q", "I32": "i", "I16": "h", "I8": "b", "U8": "B", "U16": "H", "U32": "I", "U64": "Q", "BOOL": "B"}
NEAR_CERTAIN = 1e-3


class TableKind(Enum):
    OFFSET = "offset"
    IDENTITY = "identity"
    ABSOLUTE = "absolute"
    ROW_ORDER = "row order"
    OTHER_RUN = "mapping of another run"
    NEVER_FILLED = "never filled"
    ARANGE = "arange default"
    AMBIGUOUS = "ambiguous"
    INVALID = "invalid"


@dataclass(frozen=True, slots=True)
class Decision:
    """What a table is.

    Args:
        kind: what it is.
        certain: whether the bytes prove it.
        proof: the evidence, in numbers.
        ids: the target id of each draft id as the table means it; None when that is unknown.
        served: the target id of each draft id as SGLang reads it.
        wrong: how many draft ids SGLang maps wrongly, as far as the bytes show.
        outside: how many ids, as SGLang reads them, lie outside the target vocabulary.
        duplicates: how many ids, as SGLang reads them, occur before.
    """

    kind: TableKind
    certain: bool
    proof: str
    ids: tuple[int, ...] | None
    served: tuple[int, ...]
    wrong: int
    outside: int
    duplicates: int

    @property
    def sound(self) -> bool:
        return self.kind in (TableKind.OFFSET, TableKind.IDENTITY)


def fingerprint(ids: Sequence[int]) -> str:
    """A short name of a mapping: equal for equal target ids in equal order, however they are stored."""
    return hashlib.sha256(struct.pack(f"<{len(ids)}q", *ids)).hexdigest()[:16]


def decode(data: bytes, dtype: str) -> array[int] | None:
    """The integers of a table, None when its dtype is no integer one."""
    code = INTEGERS.get(dtype)
    if code is None:
        return None
    values = array(code)
    values.frombytes(data)
    return values


def decide(d2t: Sequence[int], vocab: int, mask: bytes | None = None) -> Decision:
    """Judge a `d2t` of `len(d2t)` draft ids into `vocab` target ids. `mask`: the bytes of `t2d`, one per target id."""
    served = tuple(value + i for i, value in enumerate(d2t))
    judged = _judge(d2t, served, vocab, mask)
    return Decision(
        kind=judged.kind,
        certain=judged.certain,
        proof=judged.proof,
        ids=tuple(judged.ids) if judged.ids is not None else None,
        served=served,
        wrong=judged.wrong,
        outside=_outside(served, vocab),
        duplicates=_repeats(served),
    )


class _Judged(NamedTuple):
    kind: TableKind
    certain: bool
    proof: str
    ids: Sequence[int] | None
    wrong: int


def _judge(d2t: Sequence[int], served: Sequence[int], vocab: int, mask: bytes | None) -> _Judged:
    size = len(d2t)
    if not size:
        return _Judged(TableKind.INVALID, True, "the table is empty", None, 0)
    if not any(d2t) and size == vocab:
        proof = f"all {size} entries are 0 and both vocabularies have {vocab} ids"
        return _Judged(TableKind.IDENTITY, True, proof, served, 0)
    kept = _kept(mask, size)
    seen = _with_witness(d2t, served, kept) if kept is not None else None
    if seen is not None and seen.kind in (TableKind.OFFSET, TableKind.ABSOLUTE):
        return seen
    if not any(d2t):
        proof = f"all {size} entries are 0 although only {size} of {vocab} ids are drafted{_default_mask(mask, vocab)}"
        return _Judged(TableKind.NEVER_FILLED, True, proof, None, size)
    if size < vocab and all(value == i for i, value in enumerate(d2t)):
        proof = f"entry i is i for all {size}: the default that was never replaced, read as token 2*i"
        return _Judged(TableKind.ARANGE, True, proof, None, size - 1)
    return seen if seen is not None else _without_witness(d2t, served, vocab)


def _outside(ids: Sequence[int], vocab: int) -> int:
    return sum(not 0 <= value < vocab for value in ids)


def _repeats(ids: Sequence[int]) -> int:
    return len(ids) - len(set(ids))


def _rising(ids: Sequence[int]) -> bool:
    return all(a < b for a, b in pairwise(ids))


def _kept(mask: bytes | None, size: int) -> list[int] | None:
    """The target ids a usable mask keeps: exactly as many as there are draft ids."""
    if mask is None or len(mask) - mask.count(0) != size:
        return None
    return [i for i, flag in enumerate(mask) if flag]


def _default_mask(mask: bytes | None, vocab: int) -> str:
    if mask is None:
        return ""
    total = len(mask) - mask.count(0)
    producer = {vocab: " (SpecForge default)", 0: " (EAGLE and speculators default)"}.get(total, "")
    return f"; t2d sum is {total}{producer}"


def _with_witness(d2t: Sequence[int], served: Sequence[int], kept: Sequence[int]) -> _Judged:
    size = len(kept)
    wrong = sum(a != b for a, b in zip(served, kept, strict=True))
    if not wrong:
        return _Judged(TableKind.OFFSET, True, f"d2t + arange equals the {size} ids that t2d keeps", kept, 0)
    as_ids = sum(a != b for a, b in zip(d2t, kept, strict=True))
    if not as_ids:
        return _Judged(TableKind.ABSOLUTE, True, f"d2t itself equals the {size} ids that t2d keeps", kept, wrong)
    if sorted(served) == kept:
        proof = f"d2t + arange has the ids of t2d, but {wrong} of {size} in another order"
        return _Judged(TableKind.ROW_ORDER, True, proof, served, wrong)
    if sorted(d2t) == kept:
        proof = f"d2t itself has the ids of t2d, {as_ids} of {size} in another order"
        return _Judged(TableKind.ABSOLUTE, True, proof, d2t, wrong)
    missing = len(set(kept) - set(served))
    proof = f"{wrong} of {size} ids differ from those t2d keeps; {missing} of t2d's are not in d2t at all"
    return _Judged(TableKind.OTHER_RUN, True, proof, served, wrong)


def _without_witness(d2t: Sequence[int], served: Sequence[int], vocab: int) -> _Judged:
    size = len(d2t)
    negative, repeated, too_large = sum(v < 0 for v in d2t), _repeats(d2t), sum(v >= vocab for v in d2t)
    outside, duplicates = _outside(served, vocab), _repeats(served)
    offsets_fit, ids_fit = not outside and not duplicates, not (negative or repeated or too_large)
    misfit = f"as offsets {outside} ids lie outside 0..{vocab - 1} and {duplicates} are duplicates"
    if not ids_fit:
        if offsets_fit:
            proof = f"{negative} negative and {repeated} repeated entries: no list of ids; as offsets all ids are valid"
            return _Judged(TableKind.OFFSET, True, proof, served, 0)
        proof = f"{misfit}; as ids {negative} entries are negative, {repeated} repeated, {too_large} too large"
        return _Judged(TableKind.INVALID, True, proof, None, min(size, outside + duplicates))
    if _rising(d2t) and served[-1] >= vocab:
        proof = f"strictly increasing, and as offsets the last id would be {served[-1]}, outside 0..{vocab - 1}"
        return _Judged(TableKind.ABSOLUTE, True, proof, d2t, size - 1)
    if not offsets_fit:
        return _Judged(TableKind.ABSOLUTE, False, f"all entries are valid ids, and {misfit}", d2t, size - 1)
    chance = (1 - size / vocab) ** (size - 1) if size < vocab else 0.0
    if _rising(d2t) and chance < NEAR_CERTAIN:
        # Offsets of a sorted mapping repeat wherever two neighbouring target ids were both kept.
        proof = f"strictly increasing without a repeat; offsets would repeat somewhere but for a chance of {chance:.0e}"
        return _Judged(TableKind.ABSOLUTE, False, proof, d2t, size - 1)
    return _Judged(TableKind.AMBIGUOUS, False, "valid both as offsets and as ids, and there is no t2d to tell", None, 0)
