"""Open capture files: plain or compressed, folders and archives. Sizes are capped: an archive may be hostile."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opsctl.errors import Unreadable, UsageError
from opsctl.localfiles import opened

MAX_BYTES = 64 << 20
MAX_MEMBERS = 2000


@dataclass(frozen=True, slots=True)
class Member:
    """A text. origin: the file the user named; packed: it lies inside a folder or an archive."""

    name: str
    text: str
    origin: str
    folder: str = ""
    packed: bool = False


def members(paths: Iterable[Path]) -> Iterator[Member]:
    """The texts in `paths`. Raises UsageError for a missing file, Unreadable for a damaged or too large one."""
    for path in paths:
        if path.is_dir():
            files = sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())[:MAX_MEMBERS]
            for file in files:
                inner = str(file.relative_to(path))
                yield from _open(inner, _bytes(file), str(path), str(file.parent.relative_to(path)), True)
        elif path.exists():
            yield from _open(str(path), _bytes(path), str(path), "", False)
        else:
            raise UsageError("no such file", where=str(path))


def _bytes(path: Path) -> bytes:
    try:
        with opened(path, piped=True) as stream:
            data = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return _capped(data, str(path))


def _open(name: str, data: bytes, origin: str, folder: str, packed: bool) -> Iterator[Member]:
    data = _unpacked(data, name)
    archive = _zip if data[:4] == b"PK\x03\x04" else _tar if data[257:262] == b"ustar" else None
    if archive:
        # An archive inside an archive is left alone.
        if not packed:
            yield from archive(data, name)
    else:
        yield Member(name, data.decode(_encoding(data), "replace"), origin, folder, packed)


def _encoding(data: bytes) -> str:
    """Windows tools write UTF-16, not always with a mark; every other byte of ASCII in it is zero."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    start = data[:512]
    zeros = max(len(start) // 3, 1)
    if start[1::2].count(0) >= zeros:
        return "utf-16-le"
    return "utf-16-be" if start[::2].count(0) >= zeros else "utf-8"


def _unpacked(data: bytes, name: str) -> bytes:
    try:
        for mark, module in ((b"BZh", bz2), (b"\xfd7zXZ\0", lzma)):
            if data.startswith(mark):
                with module.open(io.BytesIO(data)) as stream:
                    return _capped(stream.read(MAX_BYTES + 1), name)
        if data[:2] == b"\x1f\x8b":
            with gzip.open(io.BytesIO(data)) as stream:
                return _capped(stream.read(MAX_BYTES + 1), name)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise Unreadable(f"damaged archive: {error}", where=name) from error
    return _unzstd(data, name) if data[:4] == b"\x28\xb5\x2f\xfd" else data


def _unzstd(data: bytes, name: str) -> bytes:
    import zstandard

    try:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return _capped(reader.read(MAX_BYTES + 1), name)
    except zstandard.ZstdError as error:
        raise Unreadable(f"damaged archive: {error}", where=name) from error


def _tar(data: bytes, name: str) -> Iterator[Member]:
    left = MAX_BYTES
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for entry in archive.getmembers()[:MAX_MEMBERS]:
                if not entry.isfile() or (stream := archive.extractfile(entry)) is None:
                    continue
                content = _capped(stream.read(left + 1), name, left)
                left -= len(content)
                yield from _open(entry.name, content, name, entry.name.rpartition("/")[0], True)
    except tarfile.TarError as error:
        raise Unreadable(f"damaged archive: {error}", where=name) from error


def _zip(data: bytes, name: str) -> Iterator[Member]:
    left = MAX_BYTES
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for entry in archive.infolist()[:MAX_MEMBERS]:
                if entry.is_dir():
                    continue
                with archive.open(entry) as stream:
                    content = _capped(stream.read(left + 1), name, left)
                left -= len(content)
                yield from _open(entry.filename, content, name, entry.filename.rpartition("/")[0], True)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, zlib.error) as error:
        raise Unreadable(f"damaged archive: {error}", where=name) from error


def _capped(data: bytes, name: str, limit: int = MAX_BYTES) -> bytes:
    if len(data) > limit:
        raise Unreadable(f"more than {MAX_BYTES >> 20} MiB", where=name)
    return data
