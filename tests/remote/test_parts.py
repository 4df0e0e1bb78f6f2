"""How ranges are sent, and what of them is known to have arrived."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from opsctl.agent.stage import receive
from opsctl.drafter.chunks import Range
from opsctl.drafter.staging import Source
from opsctl.remote.parts import loads
from opsctl.wire.chunking import BLOCK, BLOCK_DIGEST
from opsctl.wire.host import Part
from opsctl.wire.protocol import Context

MIB = 1 << 20


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9 * BLOCK)), max_size=20), st.integers(1, 6))
def test_loads_hold_every_byte_once_and_are_divided_at_blocks(spans: list[tuple[int, int]], most: int) -> None:
    parts = [Part("s", f"f{n}", start, start + size) for n, (start, size) in enumerate(spans)]
    made = list(loads(parts, most * BLOCK))
    assert all(0 < sum(part.size for part in load) <= most * BLOCK for load in made)
    for part in parts:
        pieces = [piece for load in made for piece in load if piece.name == part.name]
        assert all((piece.start - part.start) % BLOCK == 0 for piece in pieces)
        assert [part.start, *(p.end for p in pieces)] == [*(p.start for p in pieces), part.end]


def test_what_arrives_is_in_its_place_and_proven_until_somebody_else_writes_there(tmp_path: Path) -> None:
    call = Context()
    call.body = b"bbbcccccaa"
    receive.receive(call, str(tmp_path), [["f", 2, 5], ["f", 5, 10], ["g", 4, 6]])
    call.body = b"aa"
    receive.receive(call, str(tmp_path), [["f", 0, 2]])
    assert (tmp_path / "f").read_bytes() == b"aabbbccccc"
    assert (tmp_path / "g").read_bytes() == b"\0\0\0\0aa"
    with open(receive.notes(str(tmp_path)), "a") as notes:
        notes.write('\n["g", 0')  # cut while it was written
    assert receive.noted(str(tmp_path)) == [("f", 0, 10), ("g", 4, 6)]
    os.utime(tmp_path / "g")
    proven = receive.proven(str(tmp_path))
    assert {name: sorted(blocks) for name, blocks in proven.items()} == {"f": [(0, 2), (2, 5), (5, 10)]}
    assert proven["f"][2, 5] == hashlib.sha256(b"bbb").digest()
    receive.forget(str(tmp_path))
    assert receive.noted(str(tmp_path)) == []


@given(st.lists(st.integers(0, 3 * MIB), min_size=2, max_size=12, unique=True))
def test_only_what_has_not_arrived_is_sent(at: list[int]) -> None:
    """Of a file in three chunks; spans between each two of the rising offsets have arrived."""
    bounds = sorted(at)
    done = [("f", start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=False)]
    chunks = tuple((n * MIB, (n + 1) * MIB, f"{n}") for n in range(3))
    source = Source(
        "/s", "0" * 64, {"f": chunks}, {"f": (3 * MIB, 0, 0)}, {"f": os.urandom(BLOCK_DIGEST * MIB // BLOCK * 3)}
    )
    sends = source.plan([], done=done).sends
    assert sum(part.size for part in sends) == 3 * MIB - sum(end - start for _, start, end in done)
    assert not any(_overlap(part, start, end) for part in sends for _, start, end in done)


def _overlap(part: Range, start: int, end: int) -> bool:
    return part.start < end and start < part.end
