"""Where releases of draft models lie on the host, what each says of itself, and which of them stay.

    ROOT/NAME/DIGEST/           a release; never changed once it is there
    ROOT/NAME/DIGEST/.release   what it holds: sizes, chunks with their digests, and by which stat they hold
    ROOT/NAME/DIGEST/.blocks    SHA-256 of each of its blocks, file by file as in `.release`
    ROOT/NAME/.partial-KEY/     one on its way; a later run continues it, best one of the same files
    ROOT/NAME/.partial-KEY/.expected    its digest and chunks, once they are known

A chunk is [start, end, digest], as in source_files. The digests in `.release` count as long as size, mtime and inode of
a file are as recorded, so that nothing needs to be read again to know what the host has.

A release in service, or that a rollback may bring back, always stays.
"""

from __future__ import annotations

import os
import shutil
import stat as st
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from opsctl.agent.core import durable
from opsctl.agent.files import safepath
from opsctl.agent.files.if_readable import names_in
from opsctl.agent.files.states import fingerprint
from opsctl.agent.process import pids
from opsctl.wire.chunking import DIGEST, MADE, SHORT, blocks_in, spans_of
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.stage import Chunk, Held

MANIFEST, BLOCKS = ".release", ".blocks"
EXPECTED = ".expected"
PARTIAL = ".partial-"
GONE = ".gone-"
LONGEST = 1 << 20  # bytes of a file that is looked through for names of releases
STALE = 7 * 86400  # seconds after which a partial that nobody continued is removed


class Damaged(Exception):
    """A `.release` that is none."""


def folder(root: str, name: str) -> str:
    """The folder of all releases of a name."""
    return os.path.join(os.path.abspath(os.path.expanduser(root)), plain(name))


def release(top: str, digest: str) -> str:
    """The folder of a release."""
    return os.path.join(top, _checked(digest)[:SHORT])


def partial(top: str, key: str) -> str:
    """The folder in which a release comes together. `key`: as of chunking."""
    return os.path.join(top, PARTIAL + _checked(key)[:SHORT])


def begun(top: str, key: str) -> str:
    """The partial folder to go on with: the one of `key`, or else the newest, as files may have been copied or touched.

    What is in another one than that of `key` has to prove that it is the same: it may be of another draft model.
    """
    own = partial(top, key)
    others = [os.path.join(top, entry) for entry in names_in(top) if entry.startswith(PARTIAL)]
    return own if own in others or not others else max(others, key=os.path.getmtime)


def _checked(digest: str) -> str:
    if not all(c in "0123456789abcdef" for c in digest) or len(digest) != 64:
        raise AgentError("invalid", "not a digest: %r" % digest)
    return digest


def plain(name: str) -> str:
    """The name, if it stays in its folder and is none of ours."""
    if os.sep in name or "\0" in name or name.startswith("."):
        raise AgentError("invalid", "not a plain name: %r" % name)
    return name


def there(top: str) -> Dict[str, str]:
    """What is there in the place of releases, by the names of their folders: the digest, "" where one was changed."""
    return {entry: whole(os.path.join(top, entry)) for entry in names_in(top) if not entry.startswith(".")}


def whole(path: str) -> str:
    """The digest of a release that is as it was made, else "" ."""
    try:
        told = _manifest(path)
    except Damaged:
        return ""
    if told is None:
        return ""
    intact = all(fingerprint(os.path.join(path, name)) == file["stat"] for name, file in told["files"].items())
    return str(told["digest"]) if intact and set(names_in(path)) == {MANIFEST, BLOCKS, *told["files"]} else ""


def listed(top: str) -> List[str]:
    """Releases of every name, the newest first; those in `top` before all others."""
    root = os.path.dirname(top)
    found = []
    for folder in (os.path.join(root, name) for name in names_in(root)):
        paths = (os.path.join(folder, entry) for entry in names_in(folder) if not entry.startswith("."))
        whole = (path for path in paths if not os.path.islink(path) and os.path.exists(os.path.join(path, MANIFEST)))
        found += [(folder == top, os.stat(path).st_mtime, path) for path in whole]
    return [path for _, _, path in sorted(found, reverse=True)]


def held(release: str) -> Optional[Held]:
    """The chunks of a release's files that are as they were recorded. Raises Damaged."""
    told = _manifest(release)
    if told is None:
        return None
    files = {
        name: file["chunks"]
        for name, file in told["files"].items()
        if fingerprint(os.path.join(release, name)) == file["stat"]
    }
    return {"path": release, "files": files}


def blocks(release: Held) -> List[bytes]:
    """Digests of blocks, of all files that `release` (as `held` gave it) tells of; none if not all are there."""
    told = _manifest(release["path"])
    if told is None or list(told["files"]) != list(release["files"]):
        return []
    try:
        with safepath.opened(os.path.join(release["path"], BLOCKS)) as stream:
            data = stream.read()
    except (OSError, AgentError):
        return []
    ranges = [chunk[:2] for chunks in release["files"].values() for chunk in chunks]
    if len(data) != DIGEST * sum(blocks_in(start, end) for start, end in ranges):
        return []
    return [data[at : at + DIGEST] for at in range(0, len(data), DIGEST)]


def recorded(release: str) -> Dict[str, Dict[Tuple[int, int], bytes]]:
    """Digests of the blocks of files that are as they were recorded, by where they lie; nothing if it is no release."""
    try:
        found = held(release)
    except Damaged:
        return {}
    told = iter(blocks(found) if found else ())
    files = found["files"] if found else {}
    return {
        name: {span: digest for start, end, _ in chunks for span, digest in zip(spans_of(start, end), told)}
        for name, chunks in files.items()
    }


def describe(folder: str, digest: str, files: Dict[str, List[Chunk]], digests: Iterable[bytes]) -> None:
    """Write what a folder that is to be a release holds. `digests`: of its blocks."""
    told = {name: {"stat": fingerprint(os.path.join(folder, name)), "chunks": chunks} for name, chunks in files.items()}
    for name, data in ((BLOCKS, b"".join(digests)), (MANIFEST, durable.json_bytes({"digest": digest, "files": told}))):
        durable.write(os.path.join(folder, name), data)
        os.chmod(os.path.join(folder, name), 0o644)


def _manifest(release: str) -> Optional[Dict[str, Any]]:
    """What the release says it holds; None if it says nothing. Raises Damaged."""
    path = os.path.join(release, MANIFEST)
    if not os.path.lexists(path):
        return None
    told = durable.read_json(path)
    if told is None or not isinstance(told.get("digest"), str) or not isinstance(told.get("files"), dict):
        raise Damaged(path)
    if not all(_is_file(name, file) for name, file in told["files"].items()):
        raise Damaged(path)
    return told


def _is_file(name: str, told: Any) -> bool:
    if os.sep in name or name.startswith(".") or not isinstance(told, dict):
        return False
    chunks, was = told.get("chunks"), told.get("stat")
    return isinstance(was, list) and isinstance(chunks, list) and all(map(_is_chunk, chunks))


def _is_chunk(told: Any) -> bool:
    if not isinstance(told, list) or len(told) != 3:
        return False
    start, end, digest = told
    return isinstance(start, int) and isinstance(end, int) and isinstance(digest, str) and 0 <= start < end


def expect(partial: str, digest: str, files: Dict[str, List[Chunk]]) -> None:
    """Note what a folder that is to be a release is to hold."""
    durable.write(os.path.join(partial, EXPECTED), durable.json_bytes({"digest": _checked(digest), "files": files}))


def expected(partial: str) -> Tuple[str, Dict[str, List[Chunk]]]:
    """The digest, and the chunks of every file, that were noted."""
    told = durable.read_json(os.path.join(partial, EXPECTED))
    if told is None:
        raise AgentError("failed", "nothing of this has been staged", path=partial)
    return told["digest"], {plain(name): chunks for name, chunks in told["files"].items()}


def in_service(top: str) -> Set[str]:
    """Releases in `top` that something names: a link in it or above it, or the command line of a process."""
    named = set()  # type: Set[str]
    for folder in (top, os.path.dirname(top)):
        for entry in names_in(folder):
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
    found = {entry: os.path.join(top, entry) for entry in names_in(top) if not entry.startswith(".")}
    needed = set()  # type: Set[str]
    runs = durable.folder("runs")
    for run in (os.path.join(runs, entry) for entry in names_in(runs)):
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
    beyond = [path for path in listed(top) if os.path.dirname(path) == top][old:]
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
        for entry in names_in(held):
            path = os.path.join(held, entry)
            stale = entry.startswith(PARTIAL) and os.lstat(path).st_mtime < time.time() - STALE
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
