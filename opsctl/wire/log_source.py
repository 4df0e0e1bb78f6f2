"""Bytes of a log, wherever it is kept: plain, gzip or zstd, from an offset, while it grows."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import zlib
from io import BufferedReader
from typing import BinaryIO, Iterator

from opsctl.wire.protocol import AgentError

BLOCK = 4 << 20
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def packed(head: bytes) -> str:
    """How a file that begins with `head` is packed: 'gzip', 'zstd' or ''."""
    return "gzip" if head.startswith(_GZIP) else "zstd" if head.startswith(_ZSTD) else ""


def blocks(
    file: BufferedReader, path: str, offset: int = 0, limit: int = 0, block: int = BLOCK, once: bool = False
) -> Iterator[bytes]:
    """Give the unpacked bytes of an open file in blocks, from `offset` of them, at most `limit` where it is set.

    What a growing file gains while it is read is read as well; the end is where a read finds nothing more. A packed
    file that ends too early gives what it holds. once: leave nothing of it in the page cache, where a server's weights
    may be. path: its name, for errors. It is closed at the end. Raises AgentError missing-tool.
    """
    with file:
        kind = packed(file.peek(4)[:4])
        if kind == "gzip":
            source = _gunzip(file, block)
        elif kind == "zstd":
            source = _unzstd(path, file, block)
        else:
            if offset:
                file.seek(offset)
            source, offset = _plain(file, block, once), 0
        left = limit or -1
        for data in source:
            if offset:
                skip = min(offset, len(data))
                data, offset = data[skip:], offset - skip
            if left >= 0:
                data = data[:left]
                left -= len(data)
            if data:
                yield data
            if left == 0:
                return


def _plain(file: BinaryIO, block: int, once: bool) -> Iterator[bytes]:
    while True:
        data = file.read(block)
        if not data:
            return
        yield data
        if once and hasattr(os, "posix_fadvise"):
            end = file.tell()
            os.posix_fadvise(file.fileno(), end - len(data), len(data), os.POSIX_FADV_DONTNEED)


def _gunzip(file: BinaryIO, block: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=file) as unpacked:
        while True:
            try:
                data = unpacked.read1(block)
            except (EOFError, zlib.error, OSError):
                return  # cut short, or still being written
            if not data:
                return
            yield data


def _unzstd(path: str, file: BinaryIO, block: int) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        yield from _zstd_command(path, file, block)
        return
    reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
    while True:
        try:
            data = reader.read(block)
        except zstandard.ZstdError:
            return
        if not data:
            return
        yield data


def _zstd_command(path: str, file: BinaryIO, block: int) -> Iterator[bytes]:
    tool = shutil.which("zstd") or shutil.which("unzstd")
    if tool is None:
        raise AgentError(
            "missing-tool", "%s is packed with zstd, and this host has no zstd" % path, tool="zstd", path=path
        )
    os.lseek(file.fileno(), 0, os.SEEK_SET)  # its buffer has read from it
    process = subprocess.Popen(
        [tool, "-dcq"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        stdin=file,
    )
    assert process.stdout is not None
    try:
        while True:
            data = process.stdout.read(block)
            if not data:
                return
            yield data
    finally:
        process.stdout.close()
        process.kill()
        process.wait()
