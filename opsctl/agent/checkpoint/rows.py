"""Rows of a matrix in a weight file, by samples: which of them are alike, and some to compare with another file's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Dict, List, Tuple

from opsctl.agent.checkpoint.safetensors import Damaged, Entry

if TYPE_CHECKING:
    from opsctl.wire.calls.checkpoint import Rows

_PLACES = 240  # evenly spread, so that halves and thirds fall on each other; and as many scattered
_SCATTER = 2654435761  # Knuth's multiplicative hash
_BEGIN = 64  # bytes that tell rows of trained numbers apart
_MOST_PAIRS = 64


def alike(handle: BinaryIO, entry: Entry) -> Rows:
    """Read rows and tell which begin as another does.

    Each place is read with the row after it. Rows filled with one number, as those of padding, do not count as alike.
    """
    count = entry.shape[0]
    places = {at for k in range(_PLACES) for at in (k * count // _PLACES, k * _SCATTER % count)}
    if count <= 2 * _PLACES:
        places = set(range(count))
    found: Dict[bytes, List[int]] = {}
    rows = sorted({row for place in places for row in (place, place + 1) if row < count})
    for row in rows:
        found.setdefault(_row(handle, entry, row, _BEGIN), []).append(row)
    groups = [same for begin, same in found.items() if len(same) > 1 and not _filled(begin)]
    pairs: List[Tuple[int, int]] = [(same[k - 1], same[k]) for same in groups for k in range(1, len(same))]
    return {"read": len(rows), "alike": sum(map(len, groups)), "pairs": pairs[:_MOST_PAIRS]}


def spread(handle: BinaryIO, entry: Entry, places: int, length: int) -> bytes:
    """The first `length` bytes of `places` rows, evenly spread."""
    count = entry.shape[0]
    return b"".join(_row(handle, entry, k * count // places, length) for k in range(places))


def is_matrix(entry: Entry) -> bool:
    return len(entry.shape) == 2 and entry.end > entry.start


def _filled(begin: bytes) -> bool:
    """Whether one number, of at most four bytes, is all there is."""
    return all(len(set(begin[k::4])) <= 1 for k in range(4))


def _row(handle: BinaryIO, entry: Entry, row: int, length: int) -> bytes:
    width = (entry.end - entry.start) // entry.shape[0]
    wanted = min(length, width)
    found = os.pread(handle.fileno(), wanted, entry.start + row * width)
    if len(found) < wanted:
        raise Damaged("truncated", "the file ended while it was read")
    return found
