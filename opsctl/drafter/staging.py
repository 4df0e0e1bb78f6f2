"""What is staged, what of it the host has, and so what must travel. Pure but for reading the local folder."""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from opsctl import this_machine
from opsctl.drafter.chunks import Chunk, Copy, Plan, Range, joined, plan
from opsctl.errors import UsageError
from opsctl.wire.calls.stage import Held, SourceFound, Span, stagesource_outline, stagesource_read
from opsctl.wire.chunking import BLOCK_DIGEST, blocks_in, key, spans_of
from opsctl.wire.protocol import AgentError, Call

RESERVE = 64 << 20  # bytes left free on the host's disk


@dataclass(frozen=True, slots=True)
class Source:
    """A folder cut into chunks. `digest` names the release. `stats`: size, mtime and inode of each file when read.

    Of one that was not read yet, the digest and those of its chunks are empty.
    """

    path: str
    digest: str
    files: Mapping[str, Sequence[tuple[int, int, str]]]
    stats: Mapping[str, tuple[int, int, int]]
    blocks: Mapping[str, bytes]  # digests of the blocks of each file, chunk by chunk; empty for a folder of a host

    @property
    def key(self) -> str:
        """What a release on its way is found again by."""
        return key(self.stats)

    @property
    def sizes(self) -> dict[str, int]:
        return {name: stat[0] for name, stat in self.stats.items()}

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    @classmethod
    def of(cls, told: SourceFound, blocks: bytes = b"") -> Source:
        """From what the agent tells of a folder that it has read, and the digests of all its blocks."""
        files = {name: tuple((c[0], c[1], c[2]) for c in chunks) for name, chunks in told["files"].items()}
        stats = {name: (stat[0], stat[1], stat[2]) for name, stat in told["stats"].items()}
        shares = _shares(files) if blocks else ()
        return cls(told["path"], told["digest"], files, stats, {name: blocks[start:end] for name, start, end in shares})

    def plan(self, have: Sequence[Held], similar: bytes = b"", done: Sequence[Span] = ()) -> Plan:
        """How the release comes together.

        Args:
            have: folders of the host with the chunks of their files, as stage.look tells.
            similar: digests of the blocks of the first of them, or nothing.
            done: [name, start, end] that are in place, from any part of a chunk to whole files; none overlap.
        """
        held = {one["path"]: _chunks(one["files"]) for one in have}
        chunks, arrived = _chunks(self.files), _by_file(done)
        whole = [chunk.range for chunk in chunks if not list(_left(chunk.range, arrived))]
        found = plan(chunks, held, whole)
        shares = list(_shares(have[0]["files"])) if similar else []
        if self.blocks and found.sends and shares and shares[-1][2] == len(similar):
            theirs = _by_chunk(have[0]["files"], {name: similar[start:end] for name, start, end in shares})
            found = _refined(found, have[0]["path"], _by_chunk(self.files, self.blocks), theirs)
        sends = [part for sent in found.sends for part in _left(sent, arrived)]
        copies = [copy.part(part) for copy in found.copies for part in _left(copy.target, arrived)]
        return replace(found, copies=tuple(copies), sends=tuple(sends))

    def pieces(self, part: Range) -> Iterator[Range]:
        """A range, cut where chunks meet."""
        chunks = self.files[part.file]
        for start, end, _ in chunks[bisect_right(chunks, part.start, key=_end) :]:
            if start >= part.end:
                break
            yield Range(part.file, max(start, part.start), min(end, part.end))


def _end(chunk: Sequence[Any]) -> int:
    return int(chunk[1])


def _by_file(spans: Sequence[Span]) -> dict[str, list[tuple[int, int]]]:
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, end in sorted((one[0], one[1], one[2]) for one in spans):
        found.setdefault(name, []).append((start, end))
    return found


def _left(part: Range, arrived: Mapping[str, Sequence[tuple[int, int]]]) -> Iterator[Range]:
    """What of a range has not arrived."""
    at = part.start
    for start, end in arrived.get(part.file, ()):
        if end <= at:
            continue
        if start >= part.end:
            break
        if start > at:
            yield Range(part.file, at, start)
        at = end
    if at < part.end:
        yield Range(part.file, at, part.end)


def _refined(found: Plan, release: str, ours: Mapping[Range, bytes], theirs: Mapping[Range, bytes]) -> Plan:
    """Of chunks that lie at the same place of a similar file, send only the blocks that differ, and copy the others."""
    copies, sends = list(found.copies), list[Range]()
    wanted = {part for part in ours if any(_inside(part, sent) for sent in found.sends)}
    for part in sorted(wanted):
        known = theirs.get(part, b"")
        same, differ = list[Range](), list[Range]()
        for n, (start, end) in enumerate(spans_of(part.start, part.end)):
            alike = _at(known, n) == _at(ours[part], n)
            (same if alike else differ).append(Range(part.file, start, end))
        copies += [Copy(release, kept, kept) for kept in joined(same)]
        sends += differ
    return replace(found, copies=tuple(copies), sends=tuple(joined(sends)))


def _inside(part: Range, whole: Range) -> bool:
    return part.file == whole.file and whole.start <= part.start and part.end <= whole.end


def _at(blocks: bytes, n: int) -> bytes:
    return blocks[n * BLOCK_DIGEST : (n + 1) * BLOCK_DIGEST]


def _by_chunk(files: Mapping[str, Sequence[Sequence[Any]]], blocks: Mapping[str, bytes]) -> dict[Range, bytes]:
    found = {}
    for name, chunks in files.items():
        at = 0
        for start, end, _ in chunks:
            size = BLOCK_DIGEST * blocks_in(start, end)
            found[Range(name, start, end)] = blocks[name][at : at + size]
            at += size
    return found


def _shares(files: Mapping[str, Sequence[Sequence[Any]]]) -> Iterator[tuple[str, int, int]]:
    """Which part of the digests of all blocks is that of each file."""
    at = 0
    for name, chunks in files.items():
        size = BLOCK_DIGEST * sum(blocks_in(start, end) for start, end, _ in chunks)
        yield name, at, at + size
        at += size


def _chunks(files: Mapping[str, Sequence[Sequence[Any]]]) -> list[Chunk]:
    return [Chunk(Range(name, c[0], c[1]), c[2]) for name, chunks in files.items() for c in chunks]


def outline_source(path: Path, *, follow_links: bool = False) -> Source:
    """A local folder without reading it, unless all of it is remembered. Raises UsageError as `read_source`."""
    with _told(path):
        return _source(stagesource_outline(str(path), follow_links))


def read_source(path: Path, *, follow_links: bool = False, cancelled: Callable[[], bool] = lambda: False) -> Source:
    """Read a local folder, once for all hosts.

    Raises UsageError: no folder, nothing in it, links that leave it, changed while read.
    """
    with _told(path), _turn(cancelled):  # a second host waits for what the first one has begun
        outlined = _source(stagesource_outline(str(path), follow_links))
        known = outlined if outlined.digest else _read.get(outlined.path)
        if known is None or known.stats != outlined.stats:
            known = _source(stagesource_read(str(path), follow_links), cancelled)
        _read[outlined.path] = known
        return known


_LOOK = 0.1  # seconds between looks whether the run is to stop
_read: dict[str, Source] = {}
_reading = threading.Lock()


def _source(call: Call[SourceFound], cancelled: Callable[[], bool] = lambda: False) -> Source:
    reply = this_machine.call(call, cancelled=cancelled)
    return Source.of(reply.result, reply.body)


@contextlib.contextmanager
def _turn(cancelled: Callable[[], bool]) -> Iterator[None]:
    """Read while nobody else does."""
    while not _reading.acquire(timeout=_LOOK):
        if cancelled():
            raise AgentError("failed", "cancelled")
    try:
        yield
    finally:
        _reading.release()


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """What is wrong with a local folder, as the user's mistake."""
    try:
        yield
    except AgentError as error:
        hint = "stage it again when it is complete" if "changed" in error.fields else None
        if "link" in error.fields:
            hint = "follow_links (--follow-links) takes what it points at, as in a Hugging Face cache"
        raise UsageError(error.message, where=str(path), hint=hint) from None


def demand_unchanged(source: Source, now: Mapping[str, tuple[int, int, int]]) -> None:
    """Raise UsageError if the files are no longer those that they were when it was decided what to stage."""
    for name in sorted({*source.stats, *now}):
        if now.get(name) != source.stats.get(name):
            raise UsageError(
                f"{name} was changed while it was being staged",
                where=source.path,
                hint="run it again when the folder is complete; what has arrived is not sent twice",
            )
