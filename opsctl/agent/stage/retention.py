"""Which releases of draft models stay on the host. One in service, or that a rollback may bring back, always does."""

from __future__ import annotations

import os
import shutil
import stat as st
import time
from typing import Iterable, Iterator, List, Set

from opsctl.agent.core import durable
from opsctl.agent.files import safepath
from opsctl.agent.process import pids
from opsctl.agent.stage import releases
from opsctl.wire.protocol import AgentError, Context

GONE = ".gone-"
MADE = "release"  # under this name a staging keeps which release it has made
LONGEST = 1 << 20  # bytes of a file that is looked through for names of releases
STALE = 7 * 86400  # seconds after which a partial that nobody continued is removed


def in_service(top: str) -> Set[str]:
    """Releases in `top` that something names: a link in it or above it, or the command line of a process."""
    named = set()  # type: Set[str]
    for folder in (top, os.path.dirname(top)):
        for entry in releases.entries(folder):
            path = os.path.join(folder, entry)
            if os.path.islink(path):
                named.add(os.path.realpath(path))
    for pid in pids.numbers():
        named.update(_paths_of(pid))
    real = os.path.realpath(top)
    # A path inside a release counts as the release.
    inside = (os.path.relpath(path, real).split(os.sep)[0] for path in named if path.startswith(real + os.sep))
    return {os.path.join(top, entry) for entry in inside}


def recoverable(top: str, call: Context) -> Set[str]:
    """Releases in `top` that taking back a run may need, as what it keeps names them. Not the call's own run."""
    own = os.path.dirname(os.path.dirname(call.blobs)) if call.blobs else None
    found = {entry: os.path.join(top, entry) for entry in releases.entries(top) if not entry.startswith(".")}
    needed = set()  # type: Set[str]
    runs = durable.folder("runs")
    for run in (os.path.join(runs, entry) for entry in releases.entries(runs)):
        for path in () if run == own else _kept(run):
            text = _text(path)
            needed.update(found[entry] for entry in found if entry.encode() in text)
    return needed


def _kept(run: str) -> Iterator[str]:
    """Files in which a run keeps what it needs to be taken back; of a release that it made it needs nothing."""
    yield os.path.join(run, "undo")
    for folder, _, names in os.walk(os.path.join(run, "steps")):
        yield from (os.path.join(folder, name) for name in names if name != MADE + ".json")


def _text(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with open(descriptor, "rb") as stream:
        info = os.fstat(descriptor)
        return stream.read() if st.S_ISREG(info.st_mode) and info.st_size <= LONGEST else b""


def set_aside(top: str, release: str) -> None:
    """A release that is not what its name says makes room, unless it serves."""
    if release in in_service(top):
        raise AgentError("conflict", "%s was changed since it was staged, and is in service" % release, path=release)
    delete(release)


def outdated(top: str, old: int, call: Context) -> List[str]:
    """Releases beyond the `old` newest ones that neither serve nor may be brought back by a rollback."""
    beyond = [path for path in releases.listed(top) if os.path.dirname(path) == top][old:]
    if not beyond:
        return []
    stay = in_service(top) | recoverable(top, call)
    return [path for path in beyond if path not in stay]


def prune(top: str, paths: Iterable[str], call: Context) -> List[str]:
    """Remove those of the releases `paths` of which nobody has need now, and partial ones that nobody continued."""
    removed = [path for path in outdated(top, 0, call) if path in paths]
    for path in removed:
        delete(path)
    with safepath.pinned(top) as held:
        for entry in releases.entries(held):
            path = os.path.join(held, entry)
            stale = entry.startswith(releases.PARTIAL) and os.lstat(path).st_mtime < time.time() - STALE
            if stale or entry.startswith(GONE):
                shutil.rmtree(path, ignore_errors=True)
    return removed


def delete(release: str) -> None:
    """Remove a release in one step: nobody ever sees half of it."""
    top, name = os.path.split(release)
    with safepath.pinned(top) as held:
        gone = os.path.join(held, GONE + name)
        shutil.rmtree(gone, ignore_errors=True)
        os.rename(os.path.join(held, name), gone)
        durable.sync_folder(held)
        shutil.rmtree(gone, ignore_errors=True)


def _paths_of(pid: int) -> List[str]:
    paths = (word.rpartition("=")[2] for word in pids.argv(pid))
    return [os.path.realpath(path) for path in paths if path.startswith("/")]
