"""What `opsctl clean` may remove on a host, with the proof for each; and the calls that do it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from opsctl.gpu import ownership
from opsctl.gpu.model import Evidence
from opsctl.gpu.ownership import Class, Owned
from opsctl.wire.calls.gpu import Files, Removed, gpuclean_remove
from opsctl.wire.protocol import Call

GRACE = 60.0  # seconds: a file this young may belong to a server that is just starting


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything worth telling about one host; only what is removable may be touched."""

    processes: tuple[Owned, ...]
    files: tuple[Leftover, ...]
    inodes: Mapping[str, int]

    @property
    def removable_processes(self) -> tuple[Owned, ...]:
        return ownership.removable(self.processes)

    @property
    def removable_files(self) -> tuple[Leftover, ...]:
        return tuple(f for f in self.files if f.removable)

    @property
    def anything(self) -> bool:
        return bool(self.removable_processes or self.removable_files)


def findings(evidence: Evidence, listed: Files, server_uid: int | None) -> Findings:
    """listed: the answer of gpuclean.files. server_uid: whose our server's processes are, where a unit says so."""
    owned = ownership.classify(evidence.table) if evidence.table else ()
    ours = [o.process for o in owned if o.server is not None and o.process is not None]
    alive = [o.process.started for o in owned if o.klass is Class.OWN_LIVE and o.process is not None]
    files = judge(
        (
            File(f["path"], f["folder"], f["uid"], f["size"], f["modified"], f["socket"], f["in_use"])
            for f in listed["files"]
        ),
        server_uids=frozenset({p.uid for p in ours} | ({server_uid} if server_uid is not None else set())),
        before=min([*alive, listed["now"] - GRACE]),
    )
    return Findings(owned, files, {f["path"]: f["inode"] for f in listed["files"]})


def removal(found: Findings, processes: Sequence[Owned], files: Sequence[Leftover]) -> Call[Removed]:
    """The call that removes them; the host looks at each again first."""
    return gpuclean_remove(
        [
            {"pid": p.pid, "ticks": p.ticks, "sid": p.sid, "cgroup": p.cgroup, "uid": p.uid}
            for o in processes
            if (p := o.process) is not None
        ],
        [{"path": f.file.path, "inode": found.inodes[f.file.path], "modified": f.file.modified} for f in files],
    )


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
