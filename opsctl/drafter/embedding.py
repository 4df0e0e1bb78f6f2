"""Whether the embedding that a draft model brings is the target's, which the server puts in its place.

The server shares the target's embedding with every draft model of its width (llama.py set_embed): one that was trained
with another then reads other numbers (vllm #27732: 1.32 in place of 2.49).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from opsctl.drafter.folder import Folder, Reader
from opsctl.errors import RemoteError, UsageError
from opsctl.wire.calls.checkpoint import checkpoint_embedding
from opsctl.wire.protocol import AgentError

_SAME = 0.99  # cosine of two roundings of one row is above it, that of two rows of other tokens near 0


@dataclass(frozen=True, slots=True)
class Likeness:
    """Rows of both embeddings that were compared, at the same tokens; `other` point elsewhere."""

    rows: int
    other: int
    cosine: float

    @property
    def same(self) -> bool:
        return self.other <= 0.1 * self.rows

    def __str__(self) -> str:
        if self.same:
            return f"{self.rows} sampled rows are the target's"
        return f"{self.other} of {self.rows} sampled rows are not the target's (mean cosine {self.cosine:.2f})"


def compared(folder: Folder, read: Reader, target: str | None, read_target: Reader) -> Likeness | None:
    """Compare the embedding of a draft model with that of the target at the path `target`.

    None where the draft model brings none that the server replaces, or where they cannot be compared: no weights
    there, another number of tokens, or numbers that are not plain floats.
    """
    draft = folder.settings
    if target is None or draft is None or draft.own_embedding or not _brings(folder):
        return None
    try:
        own, theirs = _rows(folder.path, read), _rows(target, read_target)
    except (AgentError, RemoteError, UsageError, OSError):  # of a folder that can be read no further
        return None
    return None if own is None or theirs is None else _likeness(own, theirs)


def _brings(folder: Folder) -> bool:
    """Whether it has an embedding, and `fc` beside it, as what drafts from the target's states."""
    names = [t.name for c in folder.loaded() for t in c.tensors]
    return all(any(name.endswith(f"{part}.weight") for name in names) for part in ("embed_tokens", "fc"))


@dataclass(frozen=True, slots=True)
class _Rows:
    shape: tuple[int, int]
    rows: list[list[float]]


def _rows(path: str, read: Reader) -> _Rows | None:
    reply = read(checkpoint_embedding(path))
    told: dict[str, Any] = reply.result
    try:
        size, shape, length = _SIZES.get(told["dtype"]), tuple(map(int, told["shape"])), int(told["length"])
    except (KeyError, TypeError, ValueError):
        raise RemoteError("the host's answer about an embedding is not understood", where=path) from None
    if size is None or len(shape) != 2 or length <= 0:
        return None
    body = reply.body
    return _Rows(
        (shape[0], shape[1]), [_floats(body[i : i + length], told["dtype"]) for i in range(0, len(body), length)]
    )


_SIZES = {"BF16": 2, "F16": 2, "F32": 4}


def _floats(data: bytes, dtype: str) -> list[float]:
    if dtype == "BF16":  # the upper half of a float32
        data, dtype = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data) - 1, 2)), "F32"
    count = len(data) // _SIZES[dtype]
    return list(struct.unpack(f"<{count}{'e' if dtype == 'F16' else 'f'}", data[: count * _SIZES[dtype]]))


def _likeness(own: _Rows, theirs: _Rows) -> Likeness | None:
    if own.shape != theirs.shape:
        return None
    found = [_cosine(a, b) for a, b in zip(own.rows, theirs.rows, strict=False)]
    cosines = [cosine for cosine in found if cosine is not None]
    if not cosines:
        return None
    return Likeness(len(cosines), sum(cosine < _SAME for cosine in cosines), sum(cosines) / len(cosines))


def _cosine(a: list[float], b: list[float]) -> float | None:
    """Of the part that both have; None for two rows of zeros, or for what is no number."""
    both = list(zip(a, b, strict=False))
    square_a, square_b = sum(x * x for x, _ in both), sum(y * y for _, y in both)
    if not (math.isfinite(square_a) and math.isfinite(square_b)) or square_a == square_b == 0:
        return None
    if square_a == 0 or square_b == 0:
        return 0.0
    return sum(x * y for x, y in both) / math.sqrt(square_a * square_b)
