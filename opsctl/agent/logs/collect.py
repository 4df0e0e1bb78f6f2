"""Gather the parts of a log bundle on the host, side by side, redacted before they travel.

A part is told what it is by the fields it has: wire/calls/logs.py.

Each part travels as zlib-compressed pieces in progress messages `{"part": name, "last": bool}`, and between them, every
second, {"read": bytes, "done": parts, "of": parts}; the result is the manifest. One failed part never fails the others.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import threading
import time
import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

from opsctl.agent.core import dispatch, rights
from opsctl.agent.git import ownership
from opsctl.agent.logs import logfiles
from opsctl.agent.logs.logtail import begin_of, file_of
from opsctl.wire.protocol import AgentError, Context
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
        "source": redactor.text(named(part)),
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
        for data in read(call, part, entry, deadline, root, texts):
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


# What the first line of a crash holds, in any release of SGLang, in the kernel's log and in systemd's.
TROUBLE = (
    b"hit an exception: Traceback",
    b"atchdog timeout (",
    b"sigquit from a child",
    b"SIGQUIT received",
    b"NVRM: Xid",
    b"Out of memory: Kill",
    b"out of memory",
    b"code=killed",
)
BEFORE = 256 << 10  # bytes kept before the first trouble
_LONGEST = max(len(word) for word in TROUBLE)


class Clip:
    """Takes a stream, keeps at most about head + 2 * BEFORE + window + tail bytes of it.

    Args:
        head: bytes of the beginning.
        window: bytes from the first trouble on, 0 not to look for it.
        tail: bytes of the end.
    """

    def __init__(self, head: int, window: int, tail: int) -> None:
        self._head_size, self._window_size, self._tail_size = head, window, tail
        self._head: List[bytes] = []
        self._window: List[bytes] = []
        self._window_at = -1  # offset of the window in the stream
        self._kept_window = 0
        self._tail: Deque[bytes] = deque()
        self._tail_bytes = 0
        self._seam = b""
        self._cut = False
        self.total = 0

    def feed(self, data: bytes) -> None:
        if not data:
            return
        if self._window_size and self._window_at < 0:
            self._look(data)
        elif self._window_at >= 0 and self._kept_window < self._window_size:
            part = data[: self._window_size - self._kept_window]
            self._window.append(part)
            self._kept_window += len(part)
        if self.total < self._head_size:
            self._head.append(data[: self._head_size - self.total])
        self.total += len(data)
        self._tail.append(data)
        self._tail_bytes += len(data)
        spare = max(self._tail_size, BEFORE)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= spare:
            self._tail_bytes -= len(self._tail.popleft())

    def pieces(self) -> List[bytes]:
        """What is kept, in order, whole lines, with a line between that says how much is left out."""
        spans = [(0, b"".join(self._head)), (self._window_at, b"".join(self._window)), self._end()]
        out: List[bytes] = []
        at = 0
        for start, data in sorted((s for s in spans if s[0] >= 0), key=lambda span: span[0]):
            if start > at:
                line = data.find(b"\n") + 1 if start else 0
                start, data = start + line, data[line:]
                out.append(b"\n[opsctl: %d bytes left out]\n" % (start - at))
                self._cut = True
            if start + len(data) > at:
                out.append(data[max(0, at - start) :])
                at = start + len(data)
        return out

    @property
    def truncated(self) -> bool:
        """Whether anything was left out."""
        return self._cut

    def _look(self, data: bytes) -> None:
        text = self._seam + data
        found = [at for at in (text.find(word) for word in TROUBLE) if at >= 0]
        if not found:
            self._seam = text[-_LONGEST:]
            return
        at = self.total - len(self._seam) + min(found)  # in the stream
        before = (b"".join(self._tail) + data)[: self._tail_bytes + max(0, at - self.total)][-BEFORE:]
        self._window_at = max(0, at - len(before)) if at >= self.total else self.total - len(before)
        after = data[max(0, at - self.total) :][: self._window_size]
        self._window = [before, after]
        self._kept_window = len(after)

    def _end(self) -> "tuple[int, bytes]":
        data = b"".join(self._tail)[-self._tail_size :] if self._tail_size else b""
        return self.total - len(data), data


if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Entry, Part

_GRACE = 2.0  # seconds for a killed command to go; one in state D stays, and is left behind


def read(call: Context, part: Part, entry: Entry, deadline: float, root: str, texts: Redactor) -> Iterator[bytes]:
    """The bytes of a part as they come; what went wrong is noted in `entry`. Raises AgentError, OSError."""
    if "argv" in part:
        environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "PAGER": "cat"}
        yield from _command(call, part["argv"], environment, None, entry, deadline)
        return
    if "python" in part:
        who = rights.of_program(part["python"])
        argv = [*rights.words(who), os.path.expanduser(part["python"]), "-c", part["script"]]
        yield from _command(call, argv, dict(rights.environment(who), LC_ALL="C"), "/", entry, deadline)
        return
    if "git" in part:
        command = ownership.command(part["tree"], part["git"])
        yield from _command(call, command.argv, dict(command.env, PAGER="cat"), "/", entry, deadline)
        return
    if "call" in part:
        yield from _answer(call, part["call"], part.get("args", {}), texts)
        return
    for path, offset in _files(part, root):
        for data in logfiles.blocks(path, offset, block=PIECE, once=True):
            yield data
            if time.monotonic() > deadline:
                entry["error"] = "time limit"
                return


def named(part: Part) -> str:
    """Where a part comes from, for the manifest."""
    if "argv" in part:
        return " ".join(part["argv"])
    if "python" in part:
        return " ".join([part["python"], "-c", part["script"]])
    if "git" in part:
        return " ".join(["git", "-C", part["tree"], *part["git"]])
    if "call" in part:
        return str(part["call"])
    return ", ".join(part.get("logs") or [part["path"]])


def _files(part: Part, root: str) -> Iterator[Tuple[str, int]]:
    paths = [os.path.join(root, path.lstrip("/")) for path in part.get("logs") or [part["path"]]]
    since, begun = part.get("since"), part.get("begun")
    if begun is not None:
        known = [number for number, path in enumerate(paths) if begun["file"] and file_of(path) == begun["file"]]
        if known:
            first = paths[known[-1]]
            yield first, begin_of(first, begun["file"], begun["offset"])
            yield from ((path, 0) for path in paths[known[-1] + 1 :])
            return
        # Made since, or packed by a rotation since: told by its times.
        since = max(0.0, time.time() - begun["at"])
        if begun["file"] is None and begun["log"] in part.get("logs", ()):
            yield from ((path, 0) for path in logfiles.recent(paths, since))
            return
    if since is None:
        yield from ((path, 0) for path in paths)
        return
    for path in logfiles.recent(paths, since):
        yield path, logfiles.offset_of(path, since) if os.path.isfile(path) else 0


def _answer(call: Context, name: str, args: Dict[str, Any], texts: Redactor) -> Iterator[bytes]:
    """What another call of the agent gives, as JSON with an element a line, so that names stay beside their values.

    Texts inside are redacted line by line before they become one JSON line.
    """
    inner = _Inner(call)
    for line in _rows(_clean(dispatch.invoke(name, args, inner).result, texts)):
        yield line.encode("utf-8", "surrogateescape")


class _Inner(Context):
    """A call within a call: its progress is of no interest, the rest is passed on."""

    def __init__(self, outer: Context) -> None:
        self._outer = outer

    def cancelled(self) -> bool:
        return self._outer.cancelled()

    def started(self, group: int) -> None:
        self._outer.started(group)

    def ended(self, group: int) -> None:
        self._outer.ended(group)


def _clean(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, list):
        return [_clean(element, redactor) for element in value]
    if isinstance(value, dict):
        return {key: _clean(element, redactor) for key, element in value.items()}
    return value


def _rows(value: Any, depth: int = 2) -> Iterator[str]:
    """JSON text in rows: containers are taken apart `depth` levels deep."""
    if not depth or not isinstance(value, (dict, list)) or not value:
        yield json.dumps(value, ensure_ascii=False)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    items = (
        [(json.dumps(k) + ": ", v) for k, v in value.items()] if isinstance(value, dict) else [("", v) for v in value]
    )
    yield opening + "\n"
    for number, (name, element) in enumerate(items):
        yield name
        # A list of words is a command line: a flag and its value stay together.
        plain = isinstance(element, list) and not any(isinstance(word, (dict, list)) for word in element)
        yield from _rows(element, 0 if plain else depth - 1)
        yield ",\n" if number < len(items) - 1 else "\n"
    yield closing


def _command(
    call: Context,
    argv: List[str],
    environment: Dict[str, str],
    cwd: Optional[str],
    entry: Entry,
    deadline: float,
) -> Iterator[bytes]:
    """The output of a command as it comes. The command has a session of its own, so all of it can be ended."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
    except FileNotFoundError:
        raise AgentError("missing-tool", "no such command: %s" % argv[0]) from None
    call.started(child.pid)
    assert child.stdout is not None
    handle = child.stdout.fileno()
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                entry["error"] = "time limit"
                return
            data = os.read(handle, PIECE)
            if not data:
                break
            yield data
        entry["exit"] = _wait(child, max(_GRACE, deadline - time.monotonic()))
    finally:
        child.stdout.close()
        if child.poll() is None:
            _kill(child)
            entry["exit"] = _wait(child, _GRACE)
        call.ended(child.pid)


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> Optional[int]:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()


CALLS = {"bundle": bundle}
