"""Putting into a folder that is to be a release what the host has already: whole files as links, ranges as copies."""

from __future__ import annotations

import os
import stat as st
from typing import List, Mapping, NamedTuple, Optional, Tuple

from opsctl.agent.stage import releases, source_files
from opsctl.agent.stage.receive import Landed
from opsctl.agent.stage.releases import plain
from opsctl.wire.chunking import blocks_in, spans_of
from opsctl.wire.protocol import AgentError, Context

_PIECE = 1 << 20


def link(call: Context, source: str, target: str) -> None:
    """The same file under another name, or a copy of it."""
    if os.path.lexists(target):
        os.unlink(target)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or not allowed: a copy does as well
        size = os.stat(source).st_size
        sized(target, size)
        with source_files.shown(source) as taken, open(target, "r+b", buffering=0) as given:
            _copy(call, taken.fileno(), 0, given.fileno(), 0, size)


def sized(path: str, size: int) -> None:
    """A file of our own of this size. One that has it is not touched."""
    if os.path.lexists(path):
        info = os.lstat(path)
        if not st.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size != size:
            os.ftruncate(fd, size)
    finally:
        os.close(fd)


class Known(NamedTuple):
    """What a file is known to hold: digests of its blocks, by where they lie, as long as its stat is this one."""

    stat: Optional[List[int]]
    blocks: Mapping[Tuple[int, int], bytes]


def copied(call: Context, folder: str, known: Known, source: str, at: int, name: str, start: int, end: int) -> Landed:
    """Copy a range of `source`, from `at` on, to its place in a file of the folder.

    Digested as it lies there, unless it is known what `source` holds.
    """
    with source_files.shown(source) as taken, open(os.path.join(folder, plain(name)), "r+b", buffering=0) as given:
        _copy(call, taken.fileno(), at, given.fileno(), start, end)
        mtime = os.fstat(given.fileno()).st_mtime_ns
        digests = [known.blocks[span] for span in spans_of(at, at + end - start) if span in known.blocks]
        if len(digests) < blocks_in(start, end) or releases.stat(source) != known.stat:
            digests = source_files.digests(call, given, start, end)
    return Landed(name, start, end, mtime, digests)


def _copy(call: Context, source: int, at: int, target: int, start: int, end: int) -> None:
    """Copy to start..end of `target`, by the file system itself where it can."""
    shared = hasattr(os, "copy_file_range")
    while start < end:
        if call.cancelled():
            raise AgentError("failed", "cancelled")
        done = 0
        if shared:
            try:
                done = os.copy_file_range(source, target, end - start, at, start)
            except OSError:
                shared = False
                continue
        else:
            done = os.pwrite(target, os.pread(source, min(_PIECE, end - start), at), start)
        if not done:
            raise AgentError("failed", "a file became shorter while it was copied")
        at, start = at + done, start + done
