"""Which releases of draft models stay on the host. One in service always does."""

from __future__ import annotations

import os
import shutil
import time
from typing import List, Set

from opsctl.agent import durable, releases
from opsctl.agent.protocol import AgentError

GONE = ".gone-"
STALE = 7 * 86400  # seconds after which a partial that nobody continued is removed


def in_service(top: str) -> Set[str]:
    """Releases in `top` that something names: a link in it or above it, or the command line of a process."""
    named = set()  # type: Set[str]
    for folder in (top, os.path.dirname(top)):
        for entry in releases.entries(folder):
            path = os.path.join(folder, entry)
            if os.path.islink(path):
                named.add(os.path.realpath(path))
    for pid in os.listdir("/proc"):
        if pid.isdigit():
            named.update(_paths_of(pid))
    real = os.path.realpath(top)
    # A path inside a release counts as the release.
    inside = (os.path.relpath(path, real).split(os.sep)[0] for path in named if path.startswith(real + os.sep))
    return {os.path.join(top, entry) for entry in inside}


def set_aside(top: str, release: str) -> None:
    """A release that is not what its name says makes room, unless it serves."""
    if release in in_service(top):
        raise AgentError("conflict", "%s was changed since it was staged, and is in service" % release, path=release)
    delete(release)


def prune(top: str, new: str, old: int) -> List[str]:
    """Remove earlier releases beyond the `old` newest ones, and partial ones that nobody continued."""
    serving = in_service(top)
    earlier = [path for path in releases.listed(top) if os.path.dirname(path) == top and path != new]
    removed = [path for path in earlier[old:] if path not in serving]
    for path in removed:
        delete(path)
    for entry in releases.entries(top):
        path = os.path.join(top, entry)
        stale = entry.startswith(releases.PARTIAL) and os.lstat(path).st_mtime < time.time() - STALE
        if stale or entry.startswith(GONE):
            shutil.rmtree(path, ignore_errors=True)
    return removed


def delete(release: str) -> None:
    """Remove a release in one step: nobody ever sees half of it."""
    top, name = os.path.split(release)
    gone = os.path.join(top, GONE + name)
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(release, gone)
    durable.sync_folder(top)
    shutil.rmtree(gone, ignore_errors=True)


def _paths_of(pid: str) -> List[str]:
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as stream:
            words = os.fsdecode(stream.read(1 << 20)).split("\0")
    except OSError:
        return []
    paths = (word.rpartition("=")[2] for word in words)
    return [os.path.realpath(path) for path in paths if path.startswith("/")]
