"""Carry out a conversion: stream the tensors into a new folder, check it, and only then let it be seen."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from opsctl import __version__, this_machine
from opsctl.drafter.case import Case, Serving
from opsctl.drafter.convert_plan import Part, Plan, Refused, plan
from opsctl.drafter.embedding import compared
from opsctl.drafter.folder import Folder, open_folder
from opsctl.drafter.judge import Judgement, judge
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Verdict
from opsctl.drafter.versions import KNOWN
from opsctl.errors import Conflict, Exit, OpsctlError, UsageError
from opsctl.text import printable

PROVENANCE = "opsctl-provenance.json"
_CHUNK = 1 << 20
_LOCK = ".lock"  # held while an unfinished folder is written
_OURS = frozenset({"model.safetensors", "config.json", PROVENANCE, _LOCK})


@dataclass(frozen=True, slots=True)
class Converted:
    """A finished conversion, and what our own check says of the result."""

    source: str
    destination: str
    changes: tuple[str, ...]
    result: Judgement

    @property
    def exit_code(self) -> Exit:
        return self.result.exit_code

    def as_json(self) -> dict[str, Any]:
        return {
            "source": printable(self.source),
            "destination": printable(self.destination),
            "changes": [printable(change) for change in self.changes],
            "check": self.result.as_json(),
        }

    def lines(self) -> Iterator[str]:
        yield f"{printable(self.source)} -> {printable(self.destination)}"
        for change in self.changes:
            yield f"  {printable(change)}"
        grave = [f for f in self.result.findings if f.verdict not in (Verdict.OK, Verdict.NOTE)]
        yield f"result: {self.result.verdict.value if grave else 'ok'} on SGLang {self.result.versions[-1]}"
        for finding in grave:
            yield f"  {finding.verdict.value}  {printable(finding.subject)}: {printable(finding.detail)}"
            if finding.remedy:
                yield f"    → {printable(finding.remedy)}"


def convert_folder(
    source: str,
    destination: str,
    target: Settings | None = None,
    *,
    target_path: str | None = None,
    follow_links: bool = False,
) -> Converted:
    """Write `source` in the layout of SGLang into the new folder `destination`. The source is only read.

    target_path: the target's folder on this machine, with whose embedding that of `source` is compared.

    Raises Refused with the reason, UsageError when the destination cannot be used, Conflict when the source changes.
    """
    folder = open_folder(source, follow_links=follow_links)
    likeness = compared(folder, this_machine.call, target_path, this_machine.call)
    planned = plan(Case(folder, target, Serving(tp=1), likeness))
    final = Path(destination)
    partial = final.with_name(final.name + ".partial")
    _destination_free(folder, final, planned)
    try:
        lock = _claim(partial)
    except OSError as error:
        raise OpsctlError(f"writing failed: {error.strerror}", where=str(partial), hint="nothing was left") from None
    try:
        result = _write(folder, planned, partial, target)
        os.rename(partial, final)
        os.unlink(final / _LOCK)
        _sync(final)
        _sync(final.parent)
    except OSError as error:
        _discard(partial)
        raise OpsctlError(f"writing failed: {error.strerror}", where=str(partial), hint="nothing was left") from None
    except BaseException:
        _discard(partial)
        raise
    finally:
        os.close(lock)
    return Converted(source, destination, planned.changes, result)


def _claim(partial: Path) -> int:
    """Make the unfinished folder ours, whatever a crash has left in it. Raises Conflict when somebody writes there.

    The lock goes with the folder: when it gets its final name, and when it is removed.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(partial)
    if partial.is_symlink() or not partial.is_dir() or set(os.listdir(partial)) - _OURS:
        raise UsageError("this is in the way and not ours to remove", where=str(partial), hint="move it away")
    lock = os.open(partial / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in _OURS - {_LOCK}:
            (partial / name).unlink(missing_ok=True)
    except OSError as error:
        os.close(lock)
        if not isinstance(error, BlockingIOError):
            raise
        raise Conflict(
            "another conversion writes there", where=str(partial), hint="wait for it, or name another destination"
        ) from None
    return lock


def _destination_free(folder: Folder, final: Path, planned: Plan) -> None:
    if os.path.lexists(final):
        raise UsageError("the destination exists", where=str(final), hint="name a new folder; nothing is overwritten")
    if not final.parent.is_dir():
        raise UsageError("the folder above the destination does not exist", where=str(final.parent))
    if os.path.realpath(final.parent).startswith(os.path.realpath(folder.path) + os.sep) or os.path.realpath(
        final.parent
    ) == os.path.realpath(folder.path):
        raise UsageError("the destination lies inside the source", where=str(final), hint="name a folder beside it")
    need = sum(_length(part) for part in planned.parts)
    free = shutil.disk_usage(final.parent).free
    if free < need + (1 << 20):
        raise UsageError(
            f"{need} bytes are needed and {free} are free", where=str(final.parent), hint="free some space"
        )


def _write(folder: Folder, planned: Plan, partial: Path, target: Settings | None) -> Judgement:
    digests = {name: _digest_file(Path(folder.path) / name) for name in _sources(folder)}
    written = _write_weights(folder, planned.parts, partial / "model.safetensors")
    _unchanged(folder)
    provenance = {
        "tool": f"opsctl {__version__}",
        "source": os.path.abspath(folder.path),
        "source_sha256": digests,
        "result_sha256": {"model.safetensors": written},
        "changes": list(planned.changes),
    }
    _write_text(partial / PROVENANCE, provenance)
    _write_text(partial / "config.json", planned.config)
    _sync(partial)
    return _checked(partial, planned, target)


def _checked(partial: Path, planned: Plan, target: Settings | None) -> Judgement:
    """What our own check says of the result. Raises Refused when the result cannot even be read back."""
    result = open_folder(str(partial))
    problem = next((c.problem for c in result.containers if c.problem is not None), None)
    names = {t.name for c in result.containers for t in c.tensors}
    if problem is not None or names != {part.name for part in planned.parts}:
        why = problem.text if problem is not None else "tensors are missing"
        raise Refused(
            f"the result is not sound: {why}", where=str(partial), hint="this is a bug in opsctl: please report it"
        )
    return judge(Case(result, target, Serving(tp=1)), KNOWN[-1:])


def _sources(folder: Folder) -> list[str]:
    names = [container.file for container in folder.loaded()]
    return ["config.json", *(["model.safetensors.index.json"] if folder.weight_map is not None else []), *names]


def _write_weights(folder: Folder, parts: Sequence[Part], path: Path) -> str:
    """Write a safetensors file, tensor by tensor. Returns its SHA-256."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    # Widest elements first keeps every tensor aligned to its own element size.
    ordered = sorted(parts, key=lambda part: (-_width(part), part.name))
    for part in ordered:
        end = at + _length(part)
        header[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [at, end]}
        at = end
    head = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    head += b" " * (-len(head) % 8)
    digest = hashlib.sha256()
    with open(path, "xb") as out:
        for block in _blocks(folder, head, ordered):
            digest.update(block)
            out.write(block)
        out.flush()
        os.fsync(out.fileno())
    return digest.hexdigest()


def _blocks(folder: Folder, head: bytes, parts: Sequence[Part]) -> Iterator[bytes]:
    yield len(head).to_bytes(8, "little") + head
    files: dict[str, BinaryIO] = {}
    try:
        for part in parts:
            if part.source is None:
                yield part.data
                continue
            name = part.source.file
            if name not in files:
                files[name] = open(Path(folder.path) / name, "rb")  # noqa: SIM115  closed below, one for many tensors
            yield from _range(files[name], part.source.start, part.source.end, folder.path)
    finally:
        for file in files.values():
            file.close()


def _range(file: BinaryIO, start: int, end: int, where: str) -> Iterator[bytes]:
    file.seek(start)
    while start < end:
        block = file.read(min(_CHUNK, end - start))
        if not block:
            raise Conflict("the source became shorter while it was read", where=where)
        start += len(block)
        yield block


def _width(part: Part) -> int:
    count = 1
    for dim in part.shape:
        count *= dim
    return _length(part) // count if count else 1


def _length(part: Part) -> int:
    return len(part.data) if part.source is None else part.source.end - part.source.start


def _digest_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_CHUNK):
            digest.update(block)
    return digest.hexdigest()


def _unchanged(folder: Folder) -> None:
    known = {file.name: file for file in folder.files}
    for name in _sources(folder):
        info = os.stat(Path(folder.path) / name)
        before = known[name]
        if (info.st_size, info.st_mtime_ns, info.st_ino) != (before.size, before.mtime, before.inode):
            raise Conflict(f"{name} changed while it was read", where=folder.path, hint="run it again")


def _write_text(path: Path, value: Any) -> None:
    with open(path, "x", encoding="utf-8") as out:
        out.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        out.flush()
        os.fsync(out.fileno())


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(partial: Path) -> None:
    """Remove our own unfinished folder, under another name: this one may be claimed anew at once."""
    if not os.path.lexists(partial):
        return
    doomed = partial.with_name(f"{partial.name}.{os.urandom(4).hex()}")
    os.rename(partial, doomed)
    shutil.rmtree(doomed)
