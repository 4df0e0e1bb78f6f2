"""Gather the parts of a log bundle on the host, side by side, redacted before they travel.

A part is told what it is by the fields it has: wire/calls/logs.py.

Each part travels as zlib-compressed pieces in progress messages `{"part": name, "last": bool}`, and between them, every
second, {"read": bytes, "done": parts, "of": parts}; the result is the manifest. One failed part never fails the others.
"""

from __future__ import annotations

import json
import os
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Iterable, List

from opsctl.agent.core import dispatch
from opsctl.agent.logs import partsource
from opsctl.agent.logs.clip import Clip
from opsctl.wire.protocol import Context
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Entry, Manifest, Part

SIDE_BY_SIDE = 6
SECONDS = 30.0
LOG_SECONDS = 600.0
HEAD, WINDOW, TAIL = 1 << 20, 4 << 20, 4 << 20
LOG_TAIL = 24 << 20
PIECE = 1 << 20
TICK = 1.0
_NICE = 15  # the server on this host comes first


class _Out:
    """Where parts go: one message at a time, whichever thread it comes from."""

    def __init__(self, call: Context, of: int) -> None:
        self._call, self._of = call, of
        self._lock = threading.Lock()
        self.read = self.done = 0

    def send(self, name: str, data: bytes, last: bool) -> int:
        packed = zlib.compress(data, 6)
        with self._lock:
            self.done += last
            self._call.progress({"part": name, "last": last}, packed)
        return len(packed)

    def tick(self) -> None:
        with self._lock:
            self._call.progress({"read": self.read, "done": self.done, "of": self._of})


def bundle(
    call: Context,
    parts: List[Part],
    more: bool = False,
    hosts: Iterable[str] = (),
    keep_prompts: bool = False,
    root: str = "/",
) -> Manifest:
    """Agent call `collect.bundle`: the manifest, in the order of `parts`.

    The body of the call is a JSON list of secrets known by value: there and not in the arguments, which are logged.
    """
    secrets = json.loads(call.body.decode()) if call.body else []
    out = _Out(call, len(parts))

    def one(part: Part) -> Entry:
        _be_nice()
        texts = Redactor(secrets, more=more, hosts=hosts, keep_prompts=keep_prompts)
        # Our own calls name things `text` and `content` that no user wrote: prompts are looked for inside those only.
        redactor = Redactor(secrets, more=more, hosts=hosts, keep_prompts=True) if "call" in part else texts
        return _part(call, part, redactor, texts, out, root)

    cpu = time.process_time()
    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
        futures = [pool.submit(one, part) for part in parts]
        while wait(futures, TICK).not_done:
            out.tick()
    return {"parts": [future.result() for future in futures], "cpu_seconds": round(time.process_time() - cpu, 3)}


def _part(call: Context, part: Part, redactor: Redactor, texts: Redactor, out: _Out, root: str) -> Entry:
    begun = time.monotonic()
    is_log = "logs" in part
    clip = Clip(
        part.get("head", HEAD),
        part.get("window", WINDOW if is_log else 0),
        part.get("tail", LOG_TAIL if is_log else TAIL),
    )
    entry: Entry = {
        "name": part["name"],
        "source": redactor.text(partsource.named(part)),
        "exit": None,
        "error": None,
        "sent": 0,
        "bytes": 0,
        "kept": 0,
        "masked": 0,
        "truncated": False,
        "seconds": 0.0,
    }
    deadline = begun + part.get("seconds", LOG_SECONDS if is_log else SECONDS)
    try:
        for data in partsource.read(call, part, entry, deadline, root, texts):
            clip.feed(data)
            out.read += len(data)
            if call.cancelled():
                entry["error"] = "cancelled"
                break
    except Exception as error:  # noqa: BLE001  one part must not take the others with it; it is told in the manifest
        entry["error"] = dispatch.describe(error)["message"]
    pieces = clip.pieces()
    kept = sum(len(piece) for piece in pieces)
    entry["sent"] = _send(out, part, pieces, redactor)
    entry["bytes"], entry["kept"] = clip.total, min(kept, clip.total)
    entry["masked"] = redactor.masked + (texts.masked if texts is not redactor else 0)
    entry["truncated"] = clip.truncated or entry["error"] is not None
    entry["seconds"] = round(time.monotonic() - begun, 3)
    entry["error"] = entry["error"] and redactor.text(entry["error"])
    return entry


def _send(out: _Out, part: Part, pieces: List[bytes], redactor: Redactor) -> int:
    """Redact, then send. What is separated by NULs becomes lines only afterwards: a flag and its value are one line."""
    between = b"\n" if part.get("nul") else b"\0"
    sent = 0
    for piece in pieces:
        for start in range(0, len(piece), PIECE):
            clean = redactor.feed(piece[start : start + PIECE])
            if clean:
                sent += out.send(part["name"], clean.replace(b"\0", between), last=False)
    return sent + out.send(part["name"], redactor.close().replace(b"\0", between), last=True)


def _be_nice() -> None:
    """Give way to the server: niceness is per thread on Linux."""
    try:
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < _NICE:
            os.setpriority(os.PRIO_PROCESS, thread, _NICE)
    except OSError:
        return


CALLS = {"bundle": bundle}
