"""Files our servers leave behind: shared memory and ipc sockets. A file is ours to remove only with proof."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Sources: NCCL shm transport (linux.cc), python multiprocessing, SGLang's NamedTemporaryFile(delete=False) for ZMQ ipc.
_SHARED = re.compile(r"^(?:nccl-|psm_|sem\.(?:mp-|nccl)|mp-|torch_)[\w.-]+$")
_IPC = re.compile(r"^tmp[a-z0-9_]{8}$")


@dataclass(frozen=True, slots=True)
class File:
    """A candidate. in_use: some process maps or opens it; None when that could not be seen (not root)."""

    path: str
    folder: str  # shm | tmp
    uid: int
    size: int
    modified: float
    socket: bool = False
    in_use: bool | None = None


@dataclass(frozen=True, slots=True)
class Leftover:
    file: File
    removable: bool
    proof: str


def judge(files: Iterable[File], *, server_uids: frozenset[int], before: float) -> tuple[Leftover, ...]:
    """What each file is. before: when our last server stopped, or the living one started (epoch seconds)."""
    return tuple(
        sorted((found for f in files if (found := _judge(f, server_uids, before))), key=lambda found: found.file.path)
    )


def _judge(file: File, server_uids: frozenset[int], before: float) -> Leftover | None:
    name = file.path.rpartition("/")[2]
    if not (_SHARED.match(name) if file.folder == "shm" else file.socket and _IPC.match(name)):
        return None
    if file.uid not in server_uids:
        return Leftover(file, False, f"belongs to user {file.uid}; no server of ours is known to run as that")
    if file.modified >= before:
        return Leftover(file, False, "younger than the last stop of our server")
    if file.in_use is None:
        return Leftover(file, False, "whether a process uses it cannot be seen")
    if file.in_use:
        return Leftover(file, False, "a process uses it")
    return Leftover(file, True, f"our server runs as user {file.uid}, older than its stop, no process uses it")
