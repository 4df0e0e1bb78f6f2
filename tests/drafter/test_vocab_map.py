"""The d2t decision: offsets, ids, or broken; and never the wrong one with certainty."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opsctl.drafter.vocab_map import Decision, TableKind, decide, decode


def mask(ids: list[int], vocab: int) -> bytes:
    return bytes(i in set(ids) for i in range(vocab))


def offsets(ids: list[int]) -> list[int]:
    return [target - i for i, target in enumerate(ids)]


@st.composite
def mappings(draw: st.DrawFn) -> tuple[list[int], int]:
    """A rising list of target ids and the size of the vocabulary."""
    vocab = draw(st.integers(8, 400))
    size = draw(st.integers(2, vocab - 1))
    rng = random.Random(draw(st.integers(0, 1 << 30)))
    return sorted(rng.sample(range(vocab), size)), vocab


@given(mappings())
def test_offsets_with_a_witness_are_certain(case: tuple[list[int], int]) -> None:
    ids, vocab = case
    found = decide(offsets(ids), vocab, mask(ids, vocab))
    assert (found.kind, found.certain, found.wrong) == (TableKind.OFFSET, True, 0)
    assert found.ids == found.served == tuple(ids)


@given(mappings())
def test_ids_with_a_witness_are_certain(case: tuple[list[int], int]) -> None:
    ids, vocab = case
    found = decide(ids, vocab, mask(ids, vocab))
    assert (found.kind, found.certain, found.ids) == (TableKind.ABSOLUTE, True, tuple(ids))


@given(mappings(), st.randoms(use_true_random=False))
def test_never_certain_of_the_wrong_reading(case: tuple[list[int], int], rng: random.Random) -> None:
    ids, vocab = case
    rng.shuffle(ids)
    as_offsets = decide(offsets(ids), vocab)
    assert not (as_offsets.certain and as_offsets.kind is TableKind.ABSOLUTE)
    as_ids = decide(ids, vocab)
    assert as_ids.kind is not TableKind.OFFSET or ids == list(range(len(ids)))


@given(mappings(), st.integers(0, 1 << 30))
def test_a_row_out_of_place_is_seen_by_the_witness(case: tuple[list[int], int], seed: int) -> None:
    ids, vocab = case
    moved = ids[:]
    i, j = random.Random(seed).sample(range(len(ids)), 2)
    moved[i], moved[j] = moved[j], moved[i]
    if sorted(offsets(moved)) != ids:  # or it would be a list of ids by chance
        found = decide(offsets(moved), vocab, mask(ids, vocab))
        assert (found.kind, found.wrong) == (TableKind.ROW_ORDER, 2)


def full_size(seed: int) -> list[int]:
    """32000 of 163840 ids, the special tokens at the end of the vocabulary among them."""
    rng = random.Random(seed)
    special = range(163_584, 163_684)
    return sorted([*rng.sample(range(163_584), 32_000 - len(special)), *special])


def facts(found: Decision) -> tuple[TableKind, bool]:
    return found.kind, found.certain


def test_real_sizes_need_no_witness() -> None:
    ids = full_size(1)
    assert facts(decide(offsets(ids), 163_840)) == (TableKind.OFFSET, True)
    assert facts(decide(ids, 163_840)) == (TableKind.ABSOLUTE, True)
    shuffled = random.Random(2).sample(ids, len(ids))
    assert facts(decide(offsets(shuffled), 163_840)) == (TableKind.OFFSET, True)
    assert decide(shuffled, 163_840).kind is TableKind.ABSOLUTE


@pytest.mark.parametrize(
    ("table", "vocab", "witness", "kind", "certain"),
    [
        ([0] * 8, 8, None, TableKind.IDENTITY, True),
        ([0] * 8, 32, None, TableKind.NEVER_FILLED, True),
        ([0] * 8, 32, b"\x01" * 32, TableKind.NEVER_FILLED, True),
        (list(range(8)), 32, None, TableKind.ARANGE, True),
        ([], 32, None, TableKind.INVALID, True),
        ([4, 2, -1, 9], 20, None, TableKind.OFFSET, True),
        ([3, 3, 3, 99], 20, None, TableKind.INVALID, True),
        ([2, 4, 6, 19], 20, None, TableKind.ABSOLUTE, True),
        ([9, 2, 6, 19], 20, None, TableKind.ABSOLUTE, False),
        ([9, 2, 6, 1], 20, None, TableKind.AMBIGUOUS, False),
        # Three sparse ids of a large vocabulary: no neighbours are to be expected, so rising offsets prove nothing.
        ([10, 20, 30], 1000, None, TableKind.AMBIGUOUS, False),
        ([1, 1, 2, 2], 20, mask([1, 2, 4, 7], 20), TableKind.OTHER_RUN, True),
        ([1, 1, 2, 2], 20, mask([1, 2, 4], 20), TableKind.OFFSET, True),
    ],
)
def test_decision_table(table: list[int], vocab: int, witness: bytes | None, kind: TableKind, certain: bool) -> None:
    assert facts(decide(table, vocab, witness)) == (kind, certain)


def test_counts_speak_of_what_the_server_reads() -> None:
    found = decide([5, 4, 3, -9, 99], 20)
    assert (found.outside, found.duplicates) == (2, 2)
    assert found.served == (5, 5, 5, -6, 103)


def test_decode() -> None:
    assert list(decode(b"\xff\xff\xff\xff\x02\x00\x00\x00", "I32") or []) == [-1, 2]
    assert decode(b"\x00\x00\x80?", "F32") is None
