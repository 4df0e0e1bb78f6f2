"""Ranges of files that arrive in a folder of our own, in any order, from several agents at once.

What has arrived is noted beside the files, so that a later run goes on without reading it:

    PARTIAL/.arrived-BOOT    a line of JSON for each range: [name, start, end, mtime, digests of its blocks]

Ranges are digested while they are in memory. A file whose mtime is the one that its last writer saw holds what was
noted of it, by the same rule as a release: it need not be read again. After a restart of the machine the notes do not
count, as what was only in its memory may be lost.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Sequence, Tuple

from opsctl.agent.files import safepath
from opsctl.agent.files.safepath import told
from opsctl.wire.chunking import DIGEST, block_digests, spans_of
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.stage import Arrived, Dropped, Received, Span


class Landed(NamedTuple):
    """A range that is in place. `mtime`: of the file, after it was written; `digests`: of its blocks."""

    name: str
    start: int
    end: int
    mtime: int
    digests: Sequence[bytes]

    @classmethod
    def of(cls, name: str, start: int, data: memoryview, mtime: int) -> Landed:
        """`start` is where a block of a chunk starts, and the end where one ends."""
        return cls(name, start, start + len(data), mtime, block_digests(data))

    def line(self) -> str:
        return json.dumps([self.name, self.start, self.end, self.mtime, b"".join(self.digests).hex()])


def begin(call: Context, folder: str, sizes: Dict[str, int]) -> Arrived:
    """Make a hidden folder in which files of these sizes are to arrive; refuse what would not fit.

    Gives what an earlier run has brought. What was begun for other content in the place of this one is removed.
    """
    with told("receive files in", folder), safepath.place(folder) as at:
        for name in os.listdir("/proc/self/fd/%d" % at.folder):
            if name != at.name and name.rpartition("-")[0] == at.name.rpartition("-")[0]:
                _drop(at.beside(name))
        if not at.exists():
            os.mkdir(at.name, 0o700, dir_fd=at.folder)
        with ours(folder) as fd:
            arrived = [span for span in noted(folder) if span[0] in sizes and _size(fd, span[0]) >= span[2]]
            needed = sum(sizes.values()) - sum(end - start for _, start, end in arrived)
            info = os.fstatvfs(fd)
            if needed > info.f_bavail * info.f_frsize:
                text = "%d bytes are still to come, and there is room for %d in %s"
                values = (needed, info.f_bavail * info.f_frsize, os.path.dirname(folder))
                raise AgentError("no-space", text % values, path=folder)
    return {"arrived": arrived}


def drop(call: Context, folder: str) -> Dropped:
    """Remove a folder made by `begin`, with what has arrived. Gives how many bytes of disk that were."""
    with told("remove", folder), safepath.there(folder) as at:
        return {"removed": _drop(at) if at else 0}


def _drop(at: safepath.Place) -> int:
    if not at.exists() or safepath.changeable_by_others(at.stat()):
        return 0
    with at.entered() as fd:
        freed = 0
        for name in os.listdir(fd):
            freed += 512 * os.stat(name, dir_fd=fd, follow_symlinks=False).st_blocks
            os.unlink(name, dir_fd=fd)
    os.rmdir(at.name, dir_fd=at.folder)
    at.sync()
    return freed


def receive(call: Context, folder: str, parts: Sequence[Span]) -> Received:
    """Write the ranges whose bytes follow each other in the body. parts: [name, start, end], as in Landed.of."""
    body, at = memoryview(call.body), 0
    landed = []
    with told("write into", folder), ours(folder) as fd:
        for name, start, end in parts:
            data = body[at : at + end - start]
            landed.append(Landed.of(name, start, data, _write(fd, name, data, start)))
            at += end - start
        if at != len(body):
            raise AgentError("invalid", "%d bytes came for ranges of %d" % (len(body), at))
        note(folder, landed)
    return {"written": at}


@contextlib.contextmanager
def ours(folder: str) -> Iterator[int]:
    """A descriptor of a folder in which nobody else can put anything. Raises AgentError where somebody can."""
    with safepath.folder(folder) as fd:
        safepath.demand_ours(fd, folder)
        yield fd


def nothing(call: Context) -> None:
    """Answered at once: says how far away the host is."""


def note(folder: str, landed: Sequence[Landed]) -> None:
    """Note ranges that are in place."""
    # A line of its own, whatever a cut run has left. One write to the end: notes of several agents do not mix.
    lines = "".join("\n" + one.line() for one in landed).encode()
    if lines:
        with ours(folder) as fd:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            file = os.open(os.path.basename(notes(folder)), flags, 0o600, dir_fd=fd)
            try:
                os.write(file, lines)
            finally:
                os.close(file)


def noted(folder: str) -> List[Span]:
    """The ranges that were noted, in rising order, neighbours as one."""
    joined = []  # type: List[Span]
    for name, start, end in sorted((one.name, one.start, one.end) for one in _noted(folder)):
        if joined and joined[-1][0] == name and start <= joined[-1][2]:
            joined[-1] = (name, joined[-1][1], max(joined[-1][2], end))
        else:
            joined.append((name, start, end))
    return joined


def proven(folder: str) -> Dict[str, Dict[Tuple[int, int], bytes]]:
    """Digests of the blocks that were noted, by where they lie, of files that nobody else has written to since."""
    latest, found = {}, {}  # type: Dict[str, int], Dict[str, Dict[Tuple[int, int], bytes]]
    for one in _noted(folder):
        latest[one.name] = max(latest.get(one.name, 0), one.mtime)
        found.setdefault(one.name, {}).update(zip(spans_of(one.start, one.end), one.digests))
    return {name: blocks for name, blocks in found.items() if _mtime(os.path.join(folder, name)) == latest[name]}


def forget(folder: str) -> None:
    """Remove the notes."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(notes(folder))


def notes(folder: str) -> str:
    """Where the notes of this boot are."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return os.path.join(folder, ".arrived-" + file.read().strip()[:8])
    return os.path.join(folder, ".arrived")


def _noted(folder: str) -> Iterator[Landed]:
    with contextlib.suppress(OSError, AgentError), os.fdopen(safepath.descriptor(notes(folder)), "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, TypeError):  # a cut run may leave half a line
                name, start, end, mtime, digests = json.loads(line)
                raw = bytes.fromhex(digests)
                blocks = [raw[at : at + DIGEST] for at in range(0, len(raw), DIGEST)]
                yield Landed(str(name), int(start), int(end), int(mtime), blocks)


def _mtime(path: str) -> int:
    try:
        return os.lstat(path).st_mtime_ns
    except OSError:
        return -1


def _size(folder: int, name: str) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_size
    except OSError:
        return -1


def _write(folder: int, name: str, data: memoryview, offset: int) -> int:
    """Write at an offset. Gives the mtime that the file has then."""
    if os.sep in name:
        raise AgentError("invalid", "not a plain name: %r" % name)
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written
        return os.fstat(fd).st_mtime_ns
    finally:
        os.close(fd)


CALLS = {"begin": begin, "drop": drop, "receive": receive, "nothing": nothing}
