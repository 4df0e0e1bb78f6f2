"""Reading a folder that is to be staged: its files in chunks, each with its digest.

A chunk's digest is SHA-256 over the SHA-256 of its blocks, so that one reading tells which blocks of a chunk
that changed are still the same. Gigabytes are read once:

    STATE/digests/NAME    a line of JSON for each chunk: [file, [size, mtime, inode], start, end, digest, blocks]

A line counts as long as the file has that size, mtime and inode. Lines are written while the folder is read, so that a
run that is killed has not read for nothing. Losing any of it costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Union

from opsctl.agent.checkpoint import reading
from opsctl.agent.core import durable
from opsctl.agent.files import safepath
from opsctl.wire.chunking import (
    BLOCK_DIGEST,
    block_digests,
    blocks_in,
    chunk_digest,
    file_ranges,
    release_digest,
    shortened,
)
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.checkpoint import Entry
    from opsctl.wire.calls.stage import Chunk, SourceFound, Stat

WORKERS = 8
_READ = 1 << 18  # bytes read at a time: a multiple of BLOCK
_KEPT = 90 * 24 * 3600  # seconds since a folder was last read
_FRESH = 2000000000  # ns: a file changed this recently may change again within the grain of its clock


class Outline(NamedTuple):
    """A folder before it is read: its files, the chunks they are cut into, and what is known of those.

    `settled`: those of `stats` that would show a change from here on.
    """

    path: str
    stats: Dict[str, Stat]
    settled: Mapping[str, Sequence[int]]
    chunks: List[Span]
    known: Dict[Span, Reading]

    @property
    def unknown(self) -> List[Span]:
        return [span for span in self.chunks if span not in self.known]


def outline(call: Context, path: str, follow_links: bool = False) -> Reply[SourceFound]:
    """As `read`, without reading anything: the digests are empty unless all of them are remembered."""
    folder = outlined(path, follow_links)
    if not folder.unknown:
        return finish(call, folder)
    files: Dict[str, List[Chunk]] = {name: [] for name in folder.stats}
    for name, start, end in folder.chunks:
        files[name].append((start, end, ""))
    return Reply({"path": folder.path, "digest": "", "files": files, "stats": folder.stats})


def read(call: Context, path: str, follow_links: bool = False) -> Reply[SourceFound]:
    """The files of a folder, hidden ones left out. Body: the digests of their blocks as they travel, file by file.

    Progress: {text, fraction}. Raises AgentError `invalid` for links that leave the folder, for an empty folder, and
    for files that change while they are read.
    """
    return finish(call, outlined(path, follow_links))


def outlined(path: str, follow_links: bool = False) -> Outline:
    """The files of a folder, and what is remembered of them."""
    path = os.path.abspath(os.path.expanduser(path))
    files = _chosen(path, follow_links)
    stats = {file["name"]: (file["size"], file["mtime"], file["inode"]) for file in files}
    settled = _settled(stats)
    boundaries = reading.boundaries(path, files, follow_links)
    chunks = [
        Span(name, start, end)
        for name, stat in stats.items()
        for start, end in file_ranges(stat[0], boundaries.get(name, ()))
    ]
    return Outline(path, stats, settled, chunks, _recall(path, stats))


def finish(call: Context, folder: Outline) -> Reply[SourceFound]:
    """Read what is not remembered."""
    path, stats = folder.path, folder.stats
    todo = folder.unknown
    known = {**folder.known, **_read(call, folder, todo)}
    for name in {span.name for span in todo}:
        if _stat(os.path.join(path, name)) != stats[name]:
            raise _changed(path, name)
    own = {span: known[span] for span in folder.chunks}
    if todo:
        _keep(path, folder.settled, own)
    files: Dict[str, List[Chunk]] = {name: [] for name in stats}
    for span, known_span in own.items():
        files[span.name].append((span.start, span.end, known_span.digest))
    told: SourceFound = {"path": path, "digest": release_digest(files), "files": files, "stats": stats}
    return Reply(told, b"".join(known_span.blocks for known_span in own.values()))


def digests(call: Context, file: io.FileIO, start: int, end: int) -> List[bytes]:
    """The digests of the blocks of a range; of what there is, if the file is shorter. `file` is not buffered."""
    blocks = []  # type: List[bytes]
    # The same memory over and over: new memory for each reading takes as long as to hash what is read.
    memory = memoryview(bytearray(min(_READ, end - start)))
    file.seek(start)
    while start < end:
        if call.cancelled():
            raise AgentError("failed", "cancelled")
        count = _fill(file, memory[: end - start])
        if not count:
            break
        blocks += block_digests(memory[:count])
        start += count
    return blocks


def shown(path: str) -> io.FileIO:
    """A file that is to be part of a release, which everybody may read; never one that a link's owner may not read."""
    return io.FileIO(safepath.descriptor(path))


def workers() -> int:
    """Threads that hash side by side: hashing gives way to other threads."""
    return min(WORKERS, os.cpu_count() or 1)


def _chosen(path: str, follow_links: bool) -> List[Entry]:
    files = [f for f in reading.listing(path) if f["kind"] == "file" and not f["name"].startswith(".")]
    for file in files:
        if file["outside"] and not follow_links:
            message = "%s is a link that leaves the folder" % file["name"]
            raise AgentError("invalid", message, path=path, link=file["name"])
    if not files:
        raise AgentError("invalid", "there is nothing in the folder", path=path)
    return files


def _read(call: Context, folder: Outline, todo: List[Span]) -> Dict[Span, Reading]:
    total, done = sum(span.end - span.start for span in todo), 0
    found = {}
    with ThreadPoolExecutor(workers()) as pool:
        for span, told in zip(todo, pool.map(lambda span: _of(call, folder, span), todo)):
            found[span] = told
            if span.name in folder.settled:
                _note(folder.path, folder.stats[span.name], span, told)
            done += span.end - span.start
            call.progress({"text": "reading", "fraction": done / total})
    return found


def _of(call: Context, folder: Outline, span: Span) -> Reading:
    path = os.path.join(folder.path, span.name)
    try:
        with shown(path) as file:
            fd = file.fileno()
            # What is remembered is remembered of this very file: the one that was looked at, before and after.
            same = _stat(fd) == folder.stats[span.name]
            blocks = digests(call, file, span.start, span.end) if same else []
            if _stat(fd) != folder.stats[span.name] or len(blocks) != blocks_in(span.start, span.end):
                raise _changed(folder.path, span.name)
    except FileNotFoundError:
        raise _changed(folder.path, span.name) from None
    except OSError as error:
        kind = "permission" if isinstance(error, PermissionError) else "failed"
        raise AgentError(kind, "cannot read %s: %s" % (span.name, error.strerror), path=folder.path) from None
    return Reading(chunk_digest(blocks), shortened(blocks))


def _changed(path: str, name: str) -> AgentError:
    return AgentError("invalid", "%s was changed while it was being read" % name, path=path, changed=name)


def _fill(file: io.FileIO, memory: memoryview) -> int:
    """Read until the memory is full or the file ends. Gives how much was read."""
    done = 0
    while done < len(memory):
        count = file.readinto(memory[done:])
        if not count:
            break
        done += count
    return done


def _stat(path: Union[str, int]) -> Optional[Stat]:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_size, info.st_mtime_ns, info.st_ino


class Span(NamedTuple):
    """A chunk of a file."""

    name: str
    start: int
    end: int


class Reading(NamedTuple):
    """What a chunk holds: its digest, and those of its blocks as they travel."""

    digest: str
    blocks: bytes


def _settled(stats: Mapping[str, Sequence[int]]) -> Dict[str, Sequence[int]]:
    """Those whose size and mtime would show any later change; to be asked before they are read."""
    latest = time.time_ns() - _FRESH
    return {name: stat for name, stat in stats.items() if stat[1] < latest}


def _recall(folder: str, stats: Mapping[str, Sequence[int]]) -> Dict[Span, Reading]:
    """What is known of files that are as they were."""
    found = {}
    with contextlib.suppress(AgentError, OSError), open(_memory(folder), "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError):  # a killed run may leave half a line
                name, stat, start, end, digest, told = json.loads(line)
                blocks = bytes.fromhex(told)
                if tuple(stat) == stats.get(name) and len(blocks) == BLOCK_DIGEST * blocks_in(start, end):
                    found[Span(name, start, end)] = Reading(digest, blocks)
    return found


def _note(folder: str, stat: Sequence[int], span: Span, reading: Reading) -> None:
    """Remember one more chunk."""
    with contextlib.suppress(AgentError, OSError):
        fd = os.open(_memory(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"\n" + _line(stat, span, reading))  # a line of its own, whatever a killed run has left
        finally:
            os.close(fd)


def _keep(folder: str, stats: Mapping[str, Sequence[int]], readings: Mapping[Span, Reading]) -> None:
    """Remember this and nothing else of the folder, and forget folders that were not read for long."""
    lines: Iterable[bytes] = (
        _line(stats[span.name], span, one) for span, one in readings.items() if span.name in stats
    )
    with contextlib.suppress(AgentError, OSError):
        durable.write(_memory(folder), b"\n".join(lines))
        with os.scandir(durable.folder("digests")) as remembered:
            for other in remembered:
                if other.stat().st_mtime < time.time() - _KEPT:
                    os.unlink(other.path)


def _line(stat: Sequence[int], span: Span, reading: Reading) -> bytes:
    return json.dumps([span.name, stat, span.start, span.end, reading.digest, reading.blocks.hex()]).encode()


def _memory(folder: str) -> str:
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:32]
    return os.path.join(durable.folder("digests"), name)


CALLS = {"outline": outline, "read": read}
