"""What was read of folders before, so that gigabytes are read once.

    STATE/digests/NAME    a line of JSON for each chunk: [file, [size, mtime, inode], start, end, digest, blocks]

A line counts as long as the file has that size, mtime and inode. Lines are written while the folder is read, so that a
run that is killed has not read for nothing. Losing any of it costs time only.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import Dict, Iterable, Mapping, NamedTuple, Sequence

from opsctl.agent.core import durable
from opsctl.wire.chunking import BLOCK_DIGEST, blocks_in
from opsctl.wire.protocol import AgentError

_KEPT = 90 * 24 * 3600  # seconds since a folder was last read
_FRESH = 2000000000  # ns: a file changed this recently may change again within the grain of its clock


class Span(NamedTuple):
    """A chunk of a file."""

    name: str
    start: int
    end: int


class Reading(NamedTuple):
    """What a chunk holds: its digest, and those of its blocks as they travel."""

    digest: str
    blocks: bytes


def settled(stats: Mapping[str, Sequence[int]]) -> Dict[str, Sequence[int]]:
    """Those whose size and mtime would show any later change; to be asked before they are read."""
    latest = time.time_ns() - _FRESH
    return {name: stat for name, stat in stats.items() if stat[1] < latest}


def recall(folder: str, stats: Mapping[str, Sequence[int]]) -> Dict[Span, Reading]:
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


def note(folder: str, stat: Sequence[int], span: Span, reading: Reading) -> None:
    """Remember one more chunk."""
    with contextlib.suppress(AgentError, OSError):
        fd = os.open(_memory(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, b"\n" + _line(stat, span, reading))  # a line of its own, whatever a killed run has left
        finally:
            os.close(fd)


def keep(folder: str, stats: Mapping[str, Sequence[int]], readings: Mapping[Span, Reading]) -> None:
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
