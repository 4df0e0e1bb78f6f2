"""Releases of draft models on the host: content-addressed folders that appear whole or not at all.

    ROOT/NAME/DIGEST/           a release; never changed once it is there
    ROOT/NAME/DIGEST/.release   what it holds: sizes, chunks with their digests, and by which stat they hold
    ROOT/NAME/DIGEST/.blocks    digests of its blocks, file by file as in `.release`
    ROOT/NAME/.partial-DIGEST/  one on its way; a later run continues it

A chunk is [start, end, digest], as in stagesource. The digests in `.release` count as long as size, mtime and inode of
a file are as recorded, so that nothing needs to be read again to know what the host has.
"""

from __future__ import annotations

import os
import shutil
import stat as st
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from opsctl.agent import arrival, durable, keep, stagesource
from opsctl.agent.oserrors import told
from opsctl.agent.protocol import AgentError, Context, Reply

MANIFEST, BLOCKS = ".release", ".blocks"
PARTIAL = ".partial-"
GONE = ".gone-"
SHORT = 16  # hex digits of the digest in a release's name; the manifest has all
MOST_RELEASES = 64  # looked at for what they have in common with a new one
BLOCK = 1 << 20
STALE = 7 * 86400  # seconds after which a partial that nobody continued is removed

Chunk = Sequence[Any]


def look(call: Context, root: str, name: str, digest: str = "", source: str = "", follow_links: bool = False) -> Reply:
    """What the host has: the release itself, others to take parts from (newest first), a partial one, free bytes.

    The release is the one with this digest, or the one that the host's folder `source` would make.
    {release, digest, state: absent | whole | changed, size: bytes of a release that is there,
    have: [{path, files: {name: [chunk]}}], partial: bytes, free: bytes, source: as of stagesource.read or None}
    Body: the digests of the blocks of the first of `have`, if it has the same name; else nothing.
    """
    told_source = stagesource.read(call, source, follow_links).told() if source else None
    if told_source:
        digest = told_source["digest"]
    top, release = _places(root, name, digest)
    state = _state(release, digest)
    have = [] if state == "whole" else [found for found in map(_held, _releases(top)) if found]
    similar = bool(have) and os.path.dirname(have[0]["path"]) == top
    result = {
        "release": release,
        "digest": digest,
        "size": sum(os.lstat(os.path.join(release, f)).st_size for f in _entries(release) if not f.startswith(".")),
        "state": state,
        "have": have[:MOST_RELEASES],
        "partial": _allocated(_partial(top, digest)),
        "free": _free(top),
        "source": told_source,
    }
    return Reply(result, _blocks(have[0]) if similar else b"")


def resume(call: Context, root: str, name: str, digest: str, files: Dict[str, List[Chunk]]) -> List[arrival.Span]:
    """What the partial folder has: [name, start, end], as noted on arrival, and whole chunks that prove it when read.

    Holes are not read: what was not written yet is not there.
    """
    path = _partial(_places(root, name, digest)[0], digest)
    arrived = [span for span in arrival.noted(path) if _size(os.path.join(path, span[0])) >= span[2]]
    wanted = [(name, c) for name, chunks in sorted(files.items()) for c in chunks if not _touched(arrived, name, c)]
    with ThreadPoolExecutor(stagesource.workers()) as pool:
        same = pool.map(lambda each: _is_there(call, os.path.join(path, _plain(each[0])), each[1]), wanted)
        return [*arrived, *((name, chunk[0], chunk[1]) for (name, chunk), good in zip(wanted, same) if good)]


def prepare(
    call: Context,
    root: str,
    name: str,
    digest: str,
    sizes: Dict[str, int],
    links: Sequence[Sequence[str]] = (),
    copies: Sequence[Sequence[Any]] = (),
) -> Dict[str, Any]:
    """Make the partial folder, and put into it what the host has: whole files as links, ranges as copies.

    links: [source path, name]. copies: [source path, start, end, name, start there].
    """
    top, _ = _places(root, name, digest)
    partial = _partial(top, digest)
    with told("stage", partial):
        os.makedirs(partial, mode=0o755, exist_ok=True)
        for entry in os.listdir(partial):
            if entry not in sizes and entry != os.path.basename(arrival.notes(partial)):
                os.unlink(os.path.join(partial, entry))
        for source, target in links:
            _link(call, source, os.path.join(partial, _plain(target)))
        linked = {target for _, target in links}
        for target, size in sizes.items():
            if target not in linked:
                _sized(os.path.join(partial, _plain(target)), size)
        for done, (source, start, end, target, at) in enumerate(copies):
            call.progress({"text": "copying what the host has", "fraction": done / len(copies)})
            _copy(call, source, start, end, os.path.join(partial, _plain(target)), at)
    return {"partial": partial}


def place(
    call: Context,
    root: str,
    name: str,
    digest: str,
    files: Dict[str, List[Chunk]],
    old: int,
    keep_as: str,
) -> Dict[str, Any]:
    """Verify every byte of the partial folder, make it the release, and remove all but `old` earlier ones.

    Releases in service are never removed: those that a link beside them or a running command names.
    """
    top, release = _places(root, name, digest)
    partial = _partial(top, digest)
    with told("stage", partial):
        state = _state(release, digest)
        if state == "whole":
            return {"release": release, "made": False, "removed": []}
        _write_manifest(partial, digest, files, _verify(call, partial, files))
        if state == "changed":
            _set_aside(top, release)
        arrival.forget(partial)
        keep.save(call, keep_as, {"release": release, "inode": os.stat(partial).st_ino})
        os.rename(partial, release)
        durable.sync_folder(top)
        removed = _prune(top, release, old)
    return {"release": release, "made": True, "removed": removed}


def remove(call: Context, keep_as: str) -> Dict[str, Any]:
    """Undo of `place`: remove the release that it made, if it is still that one and nobody uses it."""
    record = keep.load(call, keep_as)
    if record is None:
        return {"removed": False}
    release = record["release"]
    with told("remove", release):
        try:
            if os.lstat(release).st_ino != record["inode"]:
                return {"removed": False}
        except FileNotFoundError:
            return {"removed": False}
        if release in in_service(os.path.dirname(release)):
            raise AgentError("conflict", "%s is in service" % release, path=release)
        _delete(release)
    return {"removed": True}


def in_service(top: str) -> Set[str]:
    """Releases in `top` that something names: a link in it or above it, or the command line of a process."""
    named = set()  # type: Set[str]
    for folder in (top, os.path.dirname(top)):
        for entry in _entries(folder):
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


def _paths_of(pid: str) -> List[str]:
    try:
        with open("/proc/%s/cmdline" % pid, "rb") as stream:
            words = os.fsdecode(stream.read(1 << 20)).split("\0")
    except OSError:
        return []
    paths = (word.rpartition("=")[2] for word in words)
    return [os.path.realpath(path) for path in paths if path.startswith("/")]


def _places(root: str, name: str, digest: str) -> Tuple[str, str]:
    if not all(c in "0123456789abcdef" for c in digest) or len(digest) != 64:
        raise AgentError("invalid", "not a digest: %r" % digest)
    top = os.path.join(os.path.abspath(os.path.expanduser(root)), _plain(name))
    return top, os.path.join(top, digest[:SHORT])


def _partial(top: str, digest: str) -> str:
    return os.path.join(top, PARTIAL + digest[:SHORT])


def _plain(name: str) -> str:
    """The name, if it stays in its folder and is none of ours."""
    if os.sep in name or "\0" in name or name.startswith("."):
        raise AgentError("invalid", "not a plain name: %r" % name)
    return name


def _state(release: str, digest: str) -> str:
    if not os.path.lexists(release):
        return "absent"
    manifest = durable.read_json(os.path.join(release, MANIFEST))
    if manifest is None or manifest.get("digest") != digest:
        return "changed"
    intact = all(_stat(os.path.join(release, name)) == file["stat"] for name, file in manifest["files"].items())
    return "whole" if intact and set(os.listdir(release)) == {MANIFEST, BLOCKS, *manifest["files"]} else "changed"


def _stat(path: str) -> Optional[List[int]]:
    """What tells whether a file is still as it was: size, mtime, inode."""
    try:
        info = os.lstat(path)
    except OSError:
        return None
    return [info.st_size, info.st_mtime_ns, info.st_ino] if st.S_ISREG(info.st_mode) else None


def _releases(top: str) -> List[str]:
    """Releases of every name, the newest first; those in `top` before all others."""
    root = os.path.dirname(top)
    found = []
    for folder in (os.path.join(root, name) for name in _entries(root)):
        paths = (os.path.join(folder, entry) for entry in _entries(folder) if not entry.startswith("."))
        whole = (path for path in paths if not os.path.islink(path) and os.path.exists(os.path.join(path, MANIFEST)))
        found += [(folder == top, os.stat(path).st_mtime, path) for path in whole]
    return [path for _, _, path in sorted(found, reverse=True)]


def _entries(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _held(release: str) -> Optional[Dict[str, Any]]:
    """The chunks of a release's files that are as they were recorded."""
    manifest = durable.read_json(os.path.join(release, MANIFEST))
    if manifest is None:
        return None
    files = {
        name: file["chunks"]
        for name, file in manifest["files"].items()
        if _stat(os.path.join(release, name)) == file["stat"]
    }
    return {"path": release, "files": files}


def _blocks(release: Dict[str, Any]) -> bytes:
    """Digests of blocks, of all files that `release` tells of; nothing if they are not all there."""
    manifest = durable.read_json(os.path.join(release["path"], MANIFEST))
    if manifest is None or list(manifest["files"]) != list(release["files"]):
        return b""
    try:
        with open(os.path.join(release["path"], BLOCKS), "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _allocated(folder: str) -> int:
    total = 0
    for entry in _entries(folder):
        info = os.lstat(os.path.join(folder, entry))
        total += 0 if info.st_nlink > 1 else info.st_blocks * 512
    return total


def _free(top: str) -> int:
    while not os.path.isdir(top):
        top = os.path.dirname(top)
    info = os.statvfs(top)
    return info.f_bavail * info.f_frsize


def _size(path: str) -> int:
    found = _stat(path)
    return found[0] if found else 0


def _touched(spans: Sequence[arrival.Span], name: str, chunk: Chunk) -> bool:
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
        return bool(digest == stagesource.digest(call, fd, start, end)[0])
    except OSError:
        return False
    finally:
        os.close(fd)


def _link(call: Context, source: str, target: str) -> None:
    if os.path.lexists(target):
        os.unlink(target)
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:  # another file system, or not allowed: a copy does as well
        size = os.stat(source).st_size
        _sized(target, size)
        _copy(call, source, 0, size, target, 0)


def _sized(path: str, size: int) -> None:
    """A file of our own of this size."""
    if os.path.lexists(path):
        info = os.lstat(path)
        if not st.S_ISREG(info.st_mode) or info.st_nlink > 1:
            os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, size)
    finally:
        os.close(fd)


def _copy(call: Context, source: str, start: int, end: int, target: str, at: int) -> None:
    """Copy a range, by the file system itself where it can."""
    with open(source, "rb", buffering=0) as taken, open(target, "r+b", buffering=0) as given:
        shared = hasattr(os, "copy_file_range")
        while start < end:
            if call.cancelled():
                raise AgentError("failed", "cancelled")
            want = min(64 * BLOCK if shared else BLOCK, end - start)
            done = 0
            if shared:
                try:
                    done = os.copy_file_range(taken.fileno(), given.fileno(), want, start, at)
                except OSError:
                    shared = False
                    continue
            else:
                done = os.pwrite(given.fileno(), os.pread(taken.fileno(), want, start), at)
            if not done:
                raise AgentError("failed", "%s became shorter while it was read" % source, path=source)
            start, at = start + done, at + done


def _verify(call: Context, partial: str, files: Dict[str, List[Chunk]]) -> bytes:
    """Read every byte of every file, on disk. Gives the digests of all blocks.

    Raises AgentError that names the ranges that are wrong.
    """
    total = sum(chunk[1] - chunk[0] for chunks in files.values() for chunk in chunks)
    wanted = [(name, chunk) for name, chunks in files.items() for chunk in chunks]
    for name, chunks in files.items():
        path = os.path.join(partial, _plain(name))
        size = chunks[-1][1] if chunks else 0
        if not os.path.lexists(path) or os.lstat(path).st_size != size:
            raise AgentError("failed", "%s did not arrive whole" % name, path=path, wrong=[[name, 0, size]])
    wrong, blocks = [], []
    done = 0
    with ThreadPoolExecutor(stagesource.workers()) as pool:
        syncs = [pool.submit(_synced, os.path.join(partial, name)) for name in files]
        reading = pool.map(lambda each: _read(call, os.path.join(partial, each[0]), each[1]), wanted)
        for (name, chunk), (digest, own) in zip(wanted, reading):
            done += chunk[1] - chunk[0]
            blocks.append(own)
            call.progress({"text": "verifying", "fraction": done / total if total else 1.0})
            if digest != chunk[2]:
                wrong.append([name, chunk[0], chunk[1]])
        for sync in syncs:
            sync.result()
    if wrong:
        arrival.forget(partial)  # so that the next run reads what is there, and sends again what is wrong
        message = "%s is not what was sent: bytes %d to %d differ" % tuple(wrong[0])
        raise AgentError("failed", message, path=os.path.join(partial, wrong[0][0]), wrong=wrong)
    return b"".join(blocks)


def _read(call: Context, path: str, chunk: Chunk) -> Tuple[str, bytes]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return stagesource.digest(call, fd, chunk[0], chunk[1])
    finally:
        os.close(fd)


def _synced(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if st.S_IMODE(os.fstat(fd).st_mode) != 0o644:
            os.fchmod(fd, 0o644)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_manifest(partial: str, digest: str, files: Dict[str, List[Chunk]], blocks: bytes) -> None:
    told_files = {
        name: {"stat": _stat(os.path.join(partial, name)), "chunks": chunks} for name, chunks in files.items()
    }
    for name, data in ((BLOCKS, blocks), (MANIFEST, durable.json_bytes({"digest": digest, "files": told_files}))):
        durable.write(os.path.join(partial, name), data)
        os.chmod(os.path.join(partial, name), 0o644)


def _set_aside(top: str, release: str) -> None:
    """A release that is not what its name says makes room, unless it serves."""
    if release in in_service(top):
        raise AgentError("conflict", "%s was changed since it was staged, and is in service" % release, path=release)
    _delete(release)


def _prune(top: str, new: str, old: int) -> List[str]:
    """Remove earlier releases beyond the `old` newest ones, and partial ones that nobody continued."""
    serving = in_service(top)
    earlier = [path for path in _releases(top) if os.path.dirname(path) == top and path != new]
    removed = [path for path in earlier[old:] if path not in serving]
    for path in removed:
        _delete(path)
    for entry in _entries(top):
        path = os.path.join(top, entry)
        stale = entry.startswith(PARTIAL) and os.lstat(path).st_mtime < time.time() - STALE
        if stale or entry.startswith(GONE):
            shutil.rmtree(path, ignore_errors=True)
    return removed


def _delete(release: str) -> None:
    """Remove a release in one step: nobody ever sees half of it."""
    top, name = os.path.split(release)
    gone = os.path.join(top, GONE + name)
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(release, gone)
    durable.sync_folder(top)
    shutil.rmtree(gone, ignore_errors=True)


CALLS = {"look": look, "resume": resume, "prepare": prepare, "place": place, "remove": remove}
