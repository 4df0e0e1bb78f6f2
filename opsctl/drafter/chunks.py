"""Which bytes of a new release must travel. Pure: from lists of chunks to a plan.

A fine-tuned drafter usually keeps `embed_tokens`, more than half of its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from opsctl.drafter.folder import Folder
from opsctl.wire.chunking import CHUNK, file_ranges


class Range(NamedTuple):
    """Bytes start to end of one file."""

    file: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Chunk(NamedTuple):
    """A range and the SHA-256 of its bytes."""

    range: Range
    digest: str


@dataclass(frozen=True, slots=True)
class Copy:
    """Bytes that are on the host already: `source` in the release `release`, wanted at `target`."""

    release: str
    source: Range
    target: Range

    def part(self, target: Range) -> Copy:
        """As much of it as goes to `target`."""
        by = self.source.start - self.target.start
        return Copy(self.release, Range(self.source.file, target.start + by, target.end + by), target)


@dataclass(frozen=True, slots=True)
class Link:
    """A whole file that is on the host already."""

    release: str
    source: str
    target: str
    size: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How a new release comes together: files to link, ranges to copy on the host, ranges to send."""

    links: tuple[Link, ...]
    copies: tuple[Copy, ...]
    sends: tuple[Range, ...]

    @property
    def sent(self) -> int:
        """Bytes that travel."""
        return sum(part.size for part in self.sends)

    @property
    def kept(self) -> int:
        """Bytes that are on the host already."""
        return sum(link.size for link in self.links) + sum(copy.target.size for copy in self.copies)

    @property
    def written(self) -> int:
        """Bytes of disk the release takes: links take none."""
        return self.sent + sum(copy.target.size for copy in self.copies)


def ranges(folder: Folder, size: int = CHUNK) -> list[Range]:
    """Chunks of every regular file of the folder, weight files cut at tensor boundaries and then by `size`."""
    tensors = {container.file: container.tensors for container in folder.containers if container.problem is None}
    found: list[Range] = []
    for file in folder.files:
        if file.kind == "file":
            bounds = [at for t in tensors.get(file.name, ()) for at in (t.start, t.end)]
            found += [Range(file.name, start, end) for start, end in file_ranges(file.size, bounds, size)]
    return found


def plan(wanted: Sequence[Chunk], releases: Mapping[str, Sequence[Chunk]], done: Iterable[Range] = ()) -> Plan:
    """Plan a release of `wanted`.

    Args:
        wanted: chunks of the source, file by file in order.
        releases: what each earlier release on the host holds, the most similar first.
        done: ranges an interrupted run has already put in place.
    """
    files: dict[str, list[Chunk]] = {}
    for chunk in wanted:
        files.setdefault(chunk.range.file, []).append(chunk)
    whole = _whole_files(releases)
    held = _held(releases)
    placed = set(done)
    links, copies, sends = [], [], []
    for file, chunks in files.items():
        if any(chunk.range in placed for chunk in chunks):
            same = None  # half of it is there: go on with that
        else:
            same = whole.get(tuple((chunk.range.size, chunk.digest) for chunk in chunks))
        if same is not None:
            links.append(Link(same[0], same[1], file, sum(chunk.range.size for chunk in chunks)))
            continue
        for chunk in chunks:
            if chunk.range in placed:
                continue
            have = held.get((chunk.range.size, chunk.digest))
            if have is not None:
                copies.append(Copy(have[0], have[1], chunk.range))
            else:
                sends.append(chunk.range)
    return Plan(tuple(links), tuple(_joined_copies(copies)), tuple(joined(sends)))


def _whole_files(releases: Mapping[str, Sequence[Chunk]]) -> dict[tuple[tuple[int, str], ...], tuple[str, str]]:
    found: dict[tuple[tuple[int, str], ...], tuple[str, str]] = {}
    for release, chunks in releases.items():
        files: dict[str, list[tuple[int, str]]] = {}
        for chunk in chunks:
            files.setdefault(chunk.range.file, []).append((chunk.range.size, chunk.digest))
        for file, content in files.items():
            found.setdefault(tuple(content), (release, file))
    return found


def _held(releases: Mapping[str, Sequence[Chunk]]) -> dict[tuple[int, str], tuple[str, Range]]:
    found: dict[tuple[int, str], tuple[str, Range]] = {}
    for release, chunks in releases.items():
        for chunk in chunks:
            found.setdefault((chunk.range.size, chunk.digest), (release, chunk.range))
    return found


def joined(sends: Iterable[Range]) -> list[Range]:
    """Neighbours as one range."""
    found: list[Range] = []
    for part in sends:
        if found and found[-1].file == part.file and found[-1].end == part.start:
            found[-1] = Range(part.file, found[-1].start, part.end)
        else:
            found.append(part)
    return found


def _joined_copies(copies: Iterable[Copy]) -> list[Copy]:
    found: list[Copy] = []
    for copy in copies:
        last = found[-1] if found else None
        if (
            last is not None
            and last.release == copy.release
            and _follows(last.source, copy.source)
            and _follows(last.target, copy.target)
        ):
            source = Range(copy.source.file, last.source.start, copy.source.end)
            found[-1] = Copy(copy.release, source, Range(copy.target.file, last.target.start, copy.target.end))
        else:
            found.append(copy)
    return found


def _follows(before: Range, after: Range) -> bool:
    return before.file == after.file and before.end == after.start
