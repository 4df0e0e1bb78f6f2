"""Ranges of files that arrive in a folder on its way to be a release, in any order, from several agents at once.

What has arrived is noted beside the files, so that a later run goes on without reading it:

    PARTIAL/.arrived-BOOT    a line of JSON for each range: [name, start, end]

The notes only tell what need not be sent again: whoever makes the release reads every byte. After a restart of the
machine they do not count, as what was only in its memory may be lost.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any, Dict, List, Sequence, Tuple

from opsctl.agent.protocol import AgentError, Context

Span = Tuple[str, int, int]  # name, start, end


def receive(call: Context, folder: str, parts: Sequence[Sequence[Any]]) -> Dict[str, Any]:
    """Write the ranges whose bytes follow each other in the body. parts: [name, start, end, whether it is noted]."""
    body, at = memoryview(call.body), 0
    for name, start, end, _ in parts:
        _write(os.path.join(folder, name), body[at : at + end - start], start)
        at += end - start
    if at != len(body):
        raise AgentError("invalid", "%d bytes came for ranges of %d" % (len(body), at))
    note(folder, [(name, start, end) for name, start, end, noted in parts if noted])
    return {"written": at}


def nothing(call: Context) -> None:
    """Answered at once: says how far away the host is."""


def note(folder: str, spans: Sequence[Span]) -> None:
    """Note ranges that are in place."""
    lines = "".join(json.dumps(span) + "\n" for span in spans).encode()
    if lines:
        # One write to the end of the file: notes of several agents do not mix.
        fd = os.open(notes(folder), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, lines)
        finally:
            os.close(fd)


def noted(folder: str) -> List[Span]:
    """The ranges that were noted, in rising order, neighbours as one."""
    found = []
    with contextlib.suppress(OSError), open(notes(folder), "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):  # the last line of a cut run may be half a line
                name, start, end = json.loads(line)
                found.append((str(name), int(start), int(end)))
    joined = []  # type: List[Span]
    for name, start, end in sorted(found):
        if joined and joined[-1][0] == name and start <= joined[-1][2]:
            joined[-1] = (name, joined[-1][1], max(joined[-1][2], end))
        else:
            joined.append((name, start, end))
    return joined


def forget(folder: str) -> None:
    """Remove the notes."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(notes(folder))


def notes(folder: str) -> str:
    """Where the notes of this boot are."""
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return os.path.join(folder, ".arrived-" + file.read().strip()[:8])
    return os.path.join(folder, ".arrived")


def _write(path: str, data: memoryview, offset: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written
    finally:
        os.close(fd)


CALLS = {"receive": receive, "nothing": nothing}
