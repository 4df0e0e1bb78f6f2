"""Receiving large files: verified chunks at offsets of a partial file, in any order, from several agents at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import Any, Dict

from opsctl.agent.protocol import AgentError, Context, Reply
from opsctl.agent.regular import opened

DIGEST = 16  # bytes of BLAKE2b per chunk


def digest(data: bytes) -> bytes:
    """What a chunk is compared and verified by."""
    return hashlib.blake2b(data, digest_size=DIGEST).digest()


def scan(call: Context, path: str, chunk: int, size: int) -> Reply:
    """The digests of the whole chunks of a partial file that is to get `size` bytes; none if it does not exist.

    Body: digests one after the other; the last chunk of the file may be shorter. Progress: {"scanned": bytes}.
    """
    found = bytearray()
    done = 0
    if not size:
        return Reply({"scanned": 0})
    with contextlib.suppress(FileNotFoundError), opened(path, os.O_NOFOLLOW) as file:
        while done < size and not call.cancelled():
            want = min(chunk, size - done)
            data = _read(file.fileno(), want)
            if len(data) < want:
                break
            found += digest(data)
            done += want
            call.progress({"scanned": done})
    return Reply({"scanned": done}, bytes(found))


def write(call: Context, path: str, offset: int, expected: str = "") -> Dict[str, Any]:
    """Put the body at `offset`, if it is what was sent (`expected`: its digest in hex; "": verified later)."""
    if expected and digest(call.body).hex() != expected:
        raise AgentError("failed", "%s: what arrived for offset %d is not what was sent" % (path, offset), path=path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        view = memoryview(call.body)
        while view:
            written = os.pwrite(fd, view, offset)
            view, offset = view[written:], offset + written
    finally:
        os.close(fd)
    return {"written": len(call.body)}


def finish(call: Context, path: str, size: int) -> Dict[str, Any]:
    """Cut a partial file to its size and have it on disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)
    return {"size": size}


def _read(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, count)
        if not part:
            break
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


CALLS = {"scan": scan, "write": write, "finish": finish}
