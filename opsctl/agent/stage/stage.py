"""Draft models as releases on the host: content-addressed folders that appear whole or not at all.

How they lie there: see releases. What the host has already is linked, as whole files, or copied, as ranges.
"""

from __future__ import annotations

import contextlib
import os
import stat as st
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from opsctl.agent.core import durable, undo_record
from opsctl.agent.files import changes, safepath
from opsctl.agent.files.if_readable import names_in
from opsctl.agent.files.safepath import told
from opsctl.agent.files.states import fingerprint
from opsctl.agent.stage import receive, releases, source_files
from opsctl.agent.stage.receive import Landed
from opsctl.agent.stage.releases import plain
from opsctl.wire.chunking import blocks_in, chunk_digest, has_release, shortened, spans_of
from opsctl.wire.chunking import key as key_of
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.stage import Chunk, Copied, Held, Placed, Prepared, Pruned, Removed, Span, Stage, Taken

MOST_RELEASES = 64  # looked at for what they have in common with a new one
_PIECE = 1 << 20


def look(
    call: Context,
    root: str,
    name: str,
    key: str = "",
    digest: str = "",
    source: str = "",
    follow_links: bool = False,
    old: int = 0,
) -> Reply[Stage]:
    """What the host has: releases of this name, those to take parts from (newest first), a partial one, free bytes.

    The release that is meant is that of `digest`, or of what the host's folder `source` would make; the partial one is
    as of releases.begun. `old`: how many of the newest releases of this name are never outdated.
    Body: the digests of the blocks of the first of `have`, if it has the same name; else nothing.
    """
    told_source = source_files.read(call, source, follow_links).result if source else None
    if told_source:
        key, digest = key_of(told_source["stats"]), told_source["digest"]
    top = releases.folder(root, name)
    there = releases.there(top)
    have: List[Held] = []
    damaged: List[str] = []
    for path in [] if has_release(there, digest) else releases.listed(top)[:MOST_RELEASES]:
        try:
            found = releases.held(path)
        except releases.Damaged:
            damaged.append(path)
        else:
            have += [found] if found else []
    similar = bool(have) and os.path.dirname(have[0]["path"]) == top
    partial = releases.begun(top, key)
    noted = partial == releases.partial(top, key) and os.path.exists(receive.notes(partial))
    result: Stage = {
        "top": top,
        "there": there,
        "have": have,
        "damaged": damaged,
        "partial": _allocated(partial),
        "foreign": partial if partial != releases.partial(top, key) else "",
        "noted": noted,
        "arrived": _arrived(partial) if noted else [],
        "free": _free(top),
        "outdated": releases.outdated(top, old, call),
        "source": told_source,
    }
    return Reply(result, shortened(releases.blocks(have[0])) if similar else b"")


def resume(call: Context, root: str, name: str, key: str, files: Dict[str, List[Chunk]]) -> List[Span]:
    """What the partial folder has: [name, start, end], as noted on arrival, and whole chunks that prove it when read.

    Holes are not read: what was not written yet is not there. Chunks without a digest cannot prove it. Of a folder
    that was begun for other files, the notes do not count; it is made the one of these if half of it is the same, and
    else left for those.
    """
    with contextlib.ExitStack() as stack:
        try:
            top = stack.enter_context(safepath.pinned(releases.folder(root, name)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return _resumed(call, top, key, files)


def _resumed(call: Context, top: str, key: str, files: Dict[str, List[Chunk]]) -> List[Span]:
    begun, path = releases.begun(top, key), releases.partial(top, key)
    arrived = _arrived(path) if begun == path else []
    chunks = [(name, chunk) for name, each in sorted(files.items()) for chunk in each if chunk[2]]
    wanted = [(name, chunk) for name, chunk in chunks if not _touched(arrived, name, chunk)]
    with ThreadPoolExecutor(source_files.workers()) as pool:
        same = pool.map(lambda each: _is_there(call, os.path.join(begun, plain(each[0])), each[1]), wanted)
        proven = [(name, chunk[0], chunk[1]) for (name, chunk), good in zip(wanted, same) if good]
    if begun != path:
        if 2 * sum(end - start for _, start, end in proven) < _allocated(begun):
            return []
        with told("stage", begun):
            receive.forget(begun)
            os.rename(begun, path)
    return [*arrived, *proven]


def prepare(
    call: Context, root: str, name: str, key: str, sizes: Dict[str, int], links: Sequence[Sequence[str]] = ()
) -> Prepared:
    """Make the partial folder with files of these sizes, those of `links` ([source path, name]) as links."""
    top = releases.folder(root, name)
    with told("stage", top), contextlib.ExitStack() as stack:
        if not os.path.lexists(top):
            changes.mkdir(call, top)
        held = stack.enter_context(safepath.pinned(top))
        partial = releases.partial(held, key)
        if not os.path.lexists(partial):
            os.mkdir(partial, 0o700)
        for entry in os.listdir(partial):
            if entry not in sizes and entry != os.path.basename(receive.notes(partial)):
                os.unlink(os.path.join(partial, entry))
        for source, target in links:
            link(call, source, os.path.join(partial, plain(target)))
        linked = {target for _, target in links}
        for target, size in sizes.items():
            if target not in linked:
                sized(os.path.join(partial, plain(target)), size)
    return {"partial": releases.partial(top, key)}


def expect(call: Context, root: str, name: str, key: str, digest: str, files: Dict[str, List[Chunk]]) -> None:
    """Say what the release is to hold. By then much may have arrived: the source is read while it is sent."""
    top = releases.folder(root, name)
    with told("stage", top), safepath.pinned(top) as held:
        releases.expect(releases.partial(held, key), digest, files)


def copy(call: Context, root: str, name: str, key: str, copies: Sequence[Taken]) -> Copied:
    """Put ranges that the host has into the partial folder.

    copies: [source path, start there, name, start, end], from one block of a chunk to the end of another.
    """
    top = releases.folder(root, name)
    known = _known({one[0] for one in copies})
    total, done = sum(end - start for _, _, _, start, end in copies), 0
    percent = -1
    with told("stage", top), safepath.pinned(top) as held, ThreadPoolExecutor(source_files.workers()) as pool:
        partial = releases.partial(held, key)
        for landed in pool.map(lambda each: copied(call, partial, known[each[0]], *each), copies):
            receive.note(partial, [landed])
            done += landed.end - landed.start
            if 100 * done // total > percent:  # changes all over a file make thousands of ranges
                percent = 100 * done // total
                call.progress({"text": "copying what the host has", "fraction": done / total})
    return {"copied": done}


def place(call: Context, root: str, name: str, key: str, keep_as: str) -> Placed:
    """Verify every byte of the partial folder, and make it the release."""
    top = releases.folder(root, name)
    with told("stage", top), safepath.pinned(top) as held:
        partial = releases.partial(held, key)
        digest, files = releases.expected(partial)
        release = releases.release(top, digest)
        if releases.whole(release) == digest:
            return {"release": release, "digest": digest, "made": False}
        releases.describe(partial, digest, files, _verify(call, partial, files))
        if os.path.lexists(release):
            releases.set_aside(top, release)
        receive.forget(partial)
        os.unlink(os.path.join(partial, releases.EXPECTED))
        undo_record.save(call, keep_as, {"release": release, "inode": os.stat(partial).st_ino})
        os.chmod(partial, 0o755)
        os.rename(partial, os.path.join(held, os.path.basename(release)))
        durable.sync_folder(held)
    return {"release": release, "digest": digest, "made": True}


def prune(call: Context, root: str, name: str, paths: Sequence[str]) -> Pruned:
    """Remove those of the releases `paths` that are still neither in service nor needed to take a run back."""
    top = releases.folder(root, name)
    with told("prune", top):
        return {"removed": releases.prune(top, paths, call)}


def remove(call: Context, keep_as: str) -> Removed:
    """Undo of `place`: remove the release that it made, if it is still that one and nobody uses it or may need it."""
    record = undo_record.load(call, keep_as)
    if record is None:
        return {"removed": False}
    release = record["release"]
    with told("remove", release):
        try:
            if os.lstat(release).st_ino != record["inode"]:
                return {"removed": False}
        except FileNotFoundError:
            return {"removed": False}
        if release in releases.in_service(os.path.dirname(release)):
            raise AgentError("conflict", "%s is in service" % release, path=release)
        if release in releases.recoverable(os.path.dirname(release), call):
            return {"removed": False}  # another run was put in its place, and may be taken back
        releases.delete(release)
    return {"removed": True}


def _known(sources: Iterable[str]) -> Dict[str, Known]:
    """What files hold that were recorded when they became part of a release."""
    stats = {path: fingerprint(path) for path in sources}  # first: a change in between shows
    folders = {folder: releases.recorded(folder) for folder in {os.path.dirname(path) for path in stats}}
    return {
        path: Known(stat, folders[os.path.dirname(path)].get(os.path.basename(path), {}))
        for path, stat in stats.items()
    }


def _arrived(partial: str) -> List[Span]:
    """What was noted and is still there."""
    return [span for span in receive.noted(partial) if _size(os.path.join(partial, span[0])) >= span[2]]


def _allocated(folder: str) -> int:
    total = 0
    for entry in names_in(folder):
        info = os.lstat(os.path.join(folder, entry))
        total += 0 if info.st_nlink > 1 else info.st_blocks * 512
    return total


def _free(top: str) -> int:
    while not os.path.isdir(top):
        top = os.path.dirname(top)
    info = os.statvfs(top)
    return info.f_bavail * info.f_frsize


def _size(path: str) -> int:
    """Of a file of our own: a link is made anew."""
    try:
        info = os.lstat(path)
    except OSError:
        return 0
    return info.st_size if st.S_ISREG(info.st_mode) and info.st_nlink == 1 else 0


def _touched(spans: Sequence[Span], name: str, chunk: Chunk) -> bool:
    """Whether any part of the chunk was noted; what is left of it is then sent."""
    return any(span[0] == name and span[1] < chunk[1] and chunk[0] < span[2] for span in spans)


def _is_there(call: Context, path: str, chunk: Chunk) -> bool:
    start, end, digest = chunk
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        info = os.fstat(fd)
        if info.st_nlink > 1:  # a link is made anew: it must not be written through
            return False
        if info.st_size < end or os.lseek(fd, start, os.SEEK_HOLE) < end:
            return False
        with open(fd, "rb", buffering=0, closefd=False) as file:
            return bool(digest == chunk_digest(source_files.digests(call, file, start, end)))
    except OSError:
        return False
    finally:
        os.close(fd)


def _verify(call: Context, partial: str, files: Dict[str, List[Chunk]]) -> List[bytes]:
    """Compare the digest of every chunk with what lies there. Gives the digests of all blocks.

    Chunks that are not known from their arrival are read. Raises AgentError that names the ranges that are wrong.
    """
    total = sum(chunk[1] - chunk[0] for chunks in files.values() for chunk in chunks)
    wanted = [(name, chunk) for name, chunks in files.items() for chunk in chunks]
    for name, chunks in files.items():
        path = os.path.join(partial, plain(name))
        size = chunks[-1][1] if chunks else 0
        if not os.path.lexists(path) or os.lstat(path).st_size != size:
            raise AgentError("failed", "%s did not arrive whole" % name, path=path, wrong=[[name, 0, size]])
    proven = receive.proven(partial)
    wrong: List[Span] = []
    blocks = []  # type: List[bytes]
    done = 0
    with ThreadPoolExecutor(source_files.workers()) as pool:
        syncs = [pool.submit(_synced, os.path.join(partial, name)) for name in files]
        checking = pool.map(lambda each: _digests(call, partial, proven.get(each[0], {}), *each), wanted)
        for (name, chunk), own in zip(wanted, checking):
            done += chunk[1] - chunk[0]
            blocks += own
            call.progress({"text": "verifying", "fraction": done / total if total else 1.0})
            if chunk_digest(own) != chunk[2]:
                wrong.append((name, chunk[0], chunk[1]))
        for sync in syncs:
            sync.result()
    if wrong:
        receive.forget(partial)  # so that the next run reads what is there, and sends again what is wrong
        message = "%s is not what was sent: bytes %d to %d differ; the next run sends them again" % wrong[0]
        raise AgentError("failed", message, path=os.path.join(partial, wrong[0][0]), wrong=wrong)
    return blocks


def _digests(call: Context, partial: str, known: Dict[Tuple[int, int], bytes], name: str, chunk: Chunk) -> List[bytes]:
    """The digests of the blocks of a chunk; read, unless what is known of them is right."""
    blocks = [known[span] for span in spans_of(chunk[0], chunk[1]) if span in known]
    if chunk_digest(blocks) == chunk[2]:
        return blocks
    fd = os.open(os.path.join(partial, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with open(fd, "rb", buffering=0) as file:
        return source_files.digests(call, file, chunk[0], chunk[1])


def _synced(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if st.S_IMODE(os.fstat(fd).st_mode) != 0o644:
            os.fchmod(fd, 0o644)
        os.fsync(fd)
    finally:
        os.close(fd)


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
        if len(digests) < blocks_in(start, end) or fingerprint(source) != known.stat:
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


CALLS = {
    "look": look,
    "resume": resume,
    "prepare": prepare,
    "expect": expect,
    "copy": copy,
    "place": place,
    "prune": prune,
    "remove": remove,
}
