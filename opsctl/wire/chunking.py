"""How the files of a release are cut into chunks, and what names a release. Pure, and the same on both sides.

Chunks are aligned to tensor boundaries, so that a tensor that did not change keeps its chunks wherever it moved in the
file.
"""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, Iterator, List, Mapping, Sequence, Tuple

CHUNK = 8 << 20  # small enough that a cut loses little, large enough that digests weigh nothing
BLOCK = 32 << 10  # the least that travels of a chunk that changed
DIGEST = 32  # bytes of a block's SHA-256
SHORT = 16  # hex digits of the digest in a release's name; its manifest has all
MADE = "release"  # under this name a staging keeps which release it has made
BLOCK_DIGEST = 16  # bytes of it that travel: they find what is the same, and prove nothing


def block_digests(data: memoryview) -> List[bytes]:
    """SHA-256 of each block of `data`, which starts where a block does."""
    return [hashlib.sha256(data[at : at + BLOCK]).digest() for at in range(0, len(data), BLOCK)]


def chunk_digest(blocks: Iterable[bytes]) -> str:
    """The digest of a chunk, from those of its blocks."""
    return hashlib.sha256(b"".join(blocks)).hexdigest()


def shortened(blocks: Iterable[bytes]) -> bytes:
    """What travels of the digests of blocks."""
    return b"".join(block[:BLOCK_DIGEST] for block in blocks)


def spans_of(start: int, end: int) -> Iterator[Tuple[int, int]]:
    """Where each block of a range lies; the last may be shorter."""
    for at in range(start, end, BLOCK):
        yield at, min(at + BLOCK, end)


def blocks_in(start: int, end: int) -> int:
    """How many blocks a chunk has; the last may be shorter."""
    return -(-(end - start) // BLOCK)


def cut(bounds: Sequence[int], size: int = CHUNK) -> Iterator[Tuple[int, int]]:
    """Ranges between rising `bounds`: long ones are split, short neighbours joined up to `size`."""
    start = bounds[0]
    end = start
    for bound in bounds[1:]:
        if bound - start <= size:
            end = bound
            continue
        if end > start:
            yield start, end
            start = end
            if bound - start <= size:
                end = bound
                continue
        while start < bound:
            yield start, min(start + size, bound)
            start += size
        start = end = bound
    if end > start:
        yield start, end


def file_ranges(size: int, boundaries: Sequence[int], chunk: int = CHUNK) -> List[Tuple[int, int]]:
    """The chunks of a file of `size` bytes with tensors at these boundaries."""
    return list(cut(sorted({0, size, *(at for at in boundaries if 0 <= at <= size)}), chunk))


def release_digest(files: Mapping[str, Sequence[Sequence[Any]]]) -> str:
    """The digest of a release: SHA-256 over the names of its files and their chunks [start, end, digest]."""
    digest = hashlib.sha256(b"opsctl release 1\n")
    for name in sorted(files):
        digest.update(("file %s\n" % ascii(name)).encode())
        for start, end, told in files[name]:
            digest.update(("%d %d %s\n" % (start, end, told)).encode())
    return digest.hexdigest()


def has_release(there: Mapping[str, str], digest: str) -> bool:
    """Whether the release of this digest is among those that are `there`, as stage.look tells."""
    return bool(digest) and there.get(digest[:SHORT]) == digest


def key(stats: Mapping[str, Sequence[int]]) -> str:
    """What a release on its way is found again by: names of its files, and size, mtime and inode of each."""
    digest = hashlib.sha256(b"opsctl partial 1\n")
    for name in sorted(stats):
        digest.update(("%s %s\n" % (ascii(name), list(stats[name]))).encode())
    return digest.hexdigest()
