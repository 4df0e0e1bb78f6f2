"""Reading a folder that is to be staged: its files in chunks, each with its digest.

A chunk's digest is SHA-256 over the SHA-256 of its blocks, so that one reading tells which blocks of a chunk
that changed are still the same. Gigabytes are read once: what was found is remembered by size, mtime and inode.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple

from opsctl.agent import checkpoint, durable
from opsctl.agent.chunking import (
    BLOCK_DIGEST,
    block_digests,
    blocks_in,
    chunk_digest,
    file_ranges,
    release_digest,
    shortened,
)
from opsctl.agent.protocol import AgentError, Context

WORKERS = 8
_READ = 1 << 18  # bytes read at a time: a multiple of BLOCK
_FRESH = 2000000000  # ns: a file changed this recently may change again within the grain of its clock

Chunk = List[Any]  # start, end, digest
Stat = List[int]  # size, mtime in ns, inode


class Outline(NamedTuple):
    """A folder before it is read: its files, where they are cut, and chunks and digests of those that are known."""

    path: str
    stats: Dict[str, Stat]
    ranges: Dict[str, List[Tuple[int, int]]]
    known: Dict[str, Tuple[List[Chunk], bytes]]


class Found(NamedTuple):
    """A folder that was read. `blocks`: for each file the digests of its blocks, chunk by chunk."""

    path: str
    files: Dict[str, List[Chunk]]
    stats: Dict[str, Stat]
    blocks: Dict[str, bytes]

    def told(self) -> Dict[str, Any]:
        """{path, digest, files: {name: [chunk]}, stats: {name: [size, mtime, inode]}}."""
        digest = release_digest(self.files)
        return {"path": self.path, "digest": digest, "files": self.files, "stats": self.stats}


def read(call: Context, path: str, follow_links: bool = False) -> Found:
    """The files of a folder, hidden ones left out. As `outline` and `finish`."""
    return finish(call, outline(path, follow_links))


def outline(path: str, follow_links: bool = False) -> Outline:
    """The files of a folder, hidden ones left out, and what is remembered of them.

    Raises AgentError `invalid` for links that leave the folder and for an empty folder.
    """
    path = os.path.abspath(os.path.expanduser(path))
    files = _chosen(path, follow_links)
    stats = {file["name"]: [file["size"], file["mtime"], file["inode"]] for file in files}
    boundaries = checkpoint.boundaries(path, files, follow_links)
    ranges = {name: file_ranges(stat[0], boundaries.get(name, ())) for name, stat in stats.items()}
    return Outline(path, stats, ranges, _recalled(path, stats, ranges))


def finish(call: Context, folder: Outline) -> Found:
    """Read what is not remembered.

    Progress: {text, fraction}. Raises AgentError `invalid` for files that change while they are read.
    """
    path, stats, ranges, known = folder
    todo = [(name, start, end) for name in ranges if name not in known for start, end in ranges[name]]
    fresh = _digests(call, path, todo)
    for name in {name for name, _, _ in todo}:
        if _stat(os.path.join(path, name)) != stats[name]:
            raise AgentError("invalid", "%s was changed while it was being read" % name, path=path, changed=name)
    chunks, blocks = {}, {}
    for name in ranges:
        if name in known:
            chunks[name], blocks[name] = known[name]
        else:
            own = [(start, end, fresh[name, start, end]) for start, end in ranges[name]]
            chunks[name] = [[start, end, chunk_digest(digests)] for start, end, digests in own]
            blocks[name] = b"".join(shortened(digests) for _, _, digests in own)
    found = Found(path, chunks, stats, blocks)
    if todo:
        _remember(found)
    return found


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


def workers() -> int:
    """Threads that hash side by side: hashing gives way to other threads."""
    return min(WORKERS, os.cpu_count() or 1)


def _chosen(path: str, follow_links: bool) -> List[Dict[str, Any]]:
    files = [f for f in checkpoint.listing(path) if f["kind"] == "file" and not f["name"].startswith(".")]
    for file in files:
        if file["outside"] and not follow_links:
            message = "%s is a link that leaves the folder" % file["name"]
            raise AgentError("invalid", message, path=path, link=file["name"])
    if not files:
        raise AgentError("invalid", "there is nothing in the folder", path=path)
    return files


def _digests(call: Context, path: str, todo: List[Tuple[str, int, int]]) -> Dict[Tuple[str, int, int], List[bytes]]:
    total, done = sum(end - start for _, start, end in todo), 0
    found = {}
    with ThreadPoolExecutor(workers()) as pool:
        for part, told in zip(todo, pool.map(lambda part: _of(call, path, *part), todo)):
            found[part] = told
            done += part[2] - part[1]
            call.progress({"text": "reading", "fraction": done / total})
    return found


def _of(call: Context, path: str, name: str, start: int, end: int) -> List[bytes]:
    try:
        fd = os.open(os.path.join(path, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AgentError("permission", "cannot read %s: %s" % (name, error.strerror), path=path) from None
    with open(fd, "rb", buffering=0) as file:
        return digests(call, file, start, end)


def _fill(file: io.FileIO, memory: memoryview) -> int:
    """Read until the memory is full or the file ends. Gives how much was read."""
    done = 0
    while done < len(memory):
        count = file.readinto(memory[done:])
        if not count:
            break
        done += count
    return done


def _stat(path: str) -> Optional[Stat]:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _memory(path: str) -> str:
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(durable.folder("digests"), name)


def _recalled(
    path: str, stats: Dict[str, Stat], ranges: Dict[str, List[Tuple[int, int]]]
) -> Dict[str, Tuple[List[Chunk], bytes]]:
    """What is known of files that are as they were. Losing it costs time only."""
    try:
        told = durable.read_json(_memory(path) + ".json") or {}
        with open(_memory(path) + ".blocks", "rb") as stream:
            blob = stream.read()
        if hashlib.sha256(blob).hexdigest() != told.get("blocks"):
            return {}
    except (AgentError, OSError):
        return {}
    found, at = {}, 0
    for name, file in told["files"].items():
        size = _blocks_size(file["chunks"])
        same = file["stat"] == stats.get(name) and [(c[0], c[1]) for c in file["chunks"]] == ranges[name]
        if same:
            found[name] = file["chunks"], blob[at : at + size]
        at += size
    return found


def _remember(found: Found) -> None:
    settled = int(time.time() * 1e9) - _FRESH
    names = [name for name, stat in found.stats.items() if stat[1] < settled]
    blob = b"".join(found.blocks[name] for name in names)
    told = {
        "blocks": hashlib.sha256(blob).hexdigest(),
        "files": {name: {"stat": found.stats[name], "chunks": found.files[name]} for name in names},
    }
    with contextlib.suppress(AgentError, OSError):
        durable.write(_memory(found.path) + ".blocks", blob)
        durable.write(_memory(found.path) + ".json", durable.json_bytes(told))


def _blocks_size(chunks: Iterable[Chunk]) -> int:
    return BLOCK_DIGEST * sum(blocks_in(chunk[0], chunk[1]) for chunk in chunks)
