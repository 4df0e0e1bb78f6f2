"""Reading a folder that is to be staged: its files in chunks, each with its digest.

Gigabytes are read once: digests are remembered by size, mtime and inode of each file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Tuple

from opsctl.agent import checkpoint, durable
from opsctl.agent.chunking import file_ranges, release_digest
from opsctl.agent.protocol import AgentError, Context

BLOCK = 1 << 20
WORKERS = 8
_FRESH = 2000000000  # ns: a file changed this recently may change again within the grain of its clock

Chunk = List[Any]  # start, end, SHA-256
Stat = List[int]  # size, mtime in ns, inode


def read(call: Context, path: str, follow_links: bool = False) -> Dict[str, Any]:
    """{path, digest, files: {name: [chunk]}, stats: {name: [size, mtime, inode]}}; hidden files are left out.

    Progress: {text, fraction}. Raises AgentError `invalid` for links that leave the folder, an empty folder, and files
    that change while they are read.
    """
    path = os.path.abspath(os.path.expanduser(path))
    files = _chosen(path, follow_links)
    stats = {file["name"]: [file["size"], file["mtime"], file["inode"]] for file in files}
    memory = _memory(path)
    boundaries = checkpoint.boundaries(path, files, follow_links)
    chunks = {}  # type: Dict[str, List[Chunk]]
    todo = []  # type: List[Tuple[str, Chunk]]
    for name, stat in stats.items():
        ranges = file_ranges(stat[0], boundaries.get(name, ()))
        known = memory.get(name, {})
        told = {(c[0], c[1]): c[2] for c in known.get("chunks", ())} if known.get("stat") == stat else {}
        chunks[name] = [[start, end, told.get((start, end))] for start, end in ranges]
        todo += [(name, chunk) for chunk in chunks[name] if chunk[2] is None]
    _fill(call, path, todo)
    for name in {name for name, _ in todo}:
        if _stat(os.path.join(path, name)) != stats[name]:
            raise AgentError("invalid", "%s was changed while it was being read" % name, path=path, changed=name)
    if todo:
        _remember(path, stats, chunks)
    return {"path": path, "digest": release_digest(chunks), "files": chunks, "stats": stats}


def digest(call: Context, fd: int, start: int, end: int) -> str:
    """SHA-256 of a range of an open file; of what there is of it, if the file is shorter."""
    found = hashlib.sha256()
    while start < end:
        if call.cancelled():
            raise AgentError("failed", "cancelled")
        data = os.pread(fd, min(BLOCK, end - start), start)
        if not data:
            break
        found.update(data)
        start += len(data)
    return found.hexdigest()


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


def _fill(call: Context, path: str, todo: List[Tuple[str, Chunk]]) -> None:
    """Put in the digests that are not known yet."""
    total, done = sum(chunk[1] - chunk[0] for _, chunk in todo), 0
    with ThreadPoolExecutor(workers()) as pool:
        for (_, chunk), told in zip(todo, pool.map(lambda each: _of(call, path, *each), todo)):
            chunk[2] = told
            done += chunk[1] - chunk[0]
            call.progress({"text": "reading", "fraction": done / total})


def _of(call: Context, path: str, name: str, chunk: Chunk) -> str:
    try:
        fd = os.open(os.path.join(path, name), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AgentError("permission", "cannot read %s: %s" % (name, error.strerror), path=path) from None
    try:
        return digest(call, fd, chunk[0], chunk[1])
    finally:
        os.close(fd)


def _stat(path: str) -> Optional[Stat]:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ino]


def _memory_file(path: str) -> str:
    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:32]
    return os.path.join(durable.folder("digests"), name + ".json")


def _memory(path: str) -> Dict[str, Any]:
    """Losing it costs time only."""
    try:
        return durable.read_json(_memory_file(path)) or {}
    except (AgentError, OSError):
        return {}


def _remember(path: str, stats: Dict[str, Stat], chunks: Dict[str, List[Chunk]]) -> None:
    settled = int(time.time() * 1e9) - _FRESH
    told = {name: {"stat": stat, "chunks": chunks[name]} for name, stat in stats.items() if stat[1] < settled}
    with contextlib.suppress(AgentError, OSError):
        durable.write(_memory_file(path), durable.json_bytes(told))


CALLS = {"read": read}
