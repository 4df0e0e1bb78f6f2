"""Read an SGLang server log where it lies: one pass, bounded memory, only what matters is kept.

Most lines of a long log are Decode, Prefill and access lines. They are told by twelve bytes behind the prefix and
never looked at singly; Decode lines are summed in bulk. What is left is matched against `logpatterns`.

    scanner = Scanner(); scanner.feed(block) ...; scanner.finish() -> plain data, see `Scanner.finish`

Marks are in the order of the log; texts in them are redacted. What they mean together (which start was ready, which
error came first) is judged by `opsctl.sglang.logs.timeline`.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections import deque
from typing import TYPE_CHECKING, Deque, Dict, Iterable, List, Optional, Sequence, Tuple

from opsctl.agent.logs import logpatterns as patterns
from opsctl.agent.logs.decodestats import DecodeStats, seconds
from opsctl.agent.logs.logsource import blocks
from opsctl.agent.logs.traces import Traces
from opsctl.agent.logs.wrappers import Zone, unwrap
from opsctl.agent.process import service
from opsctl.wire.protocol import Context
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import FileScan, Mark, Scan

MOST_MARKS = 4000  # the first half and the last half of what there is
MOST_TEXT = 600
MOST_ARGS = 64 << 10
MOST_LINE = 4 << 20
_JUMP = 5  # seconds back that are not the jostling of several processes
_ROUTINE = {b"Prefill batc", b"Receive: obj", b"Receive Open", b"Finish: obj="}
_DECODE = b"Decode batch"
_SAMPLES = (
    b"Decode batch",
    b"Prefill batch",
    b"Load weight end",
    b"KV Cache is allocated",
    b"Capture ",
    b"Init ",
    b"Engine startup timings",
)
_QUIET = (b"  ", b"\t", b"INFO:     1", b"Loading ", b"Multi-thread", b"Capturing")


class Scanner:
    """Reads one log, in blocks of any size."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._redactor = Redactor(secrets)
        self._zone = Zone()
        self._rest = b""
        self._decode = DecodeStats()
        self._first: List[Mark] = []
        self._last: Deque[Mark] = deque(maxlen=MOST_MARKS // 2)
        self._traces = Traces(self._keep, lambda text: self._safe(text, MOST_TEXT))
        self._ranks: Dict[str, Tuple[int, str, bytes]] = {}  # count of lines; time and text of the last
        self._samples: Dict[str, str] = {}
        self._stamp = b""  # of the last line that had one
        self._first_stamp = b""
        self._routine: Optional[bytes] = None  # the last routine line, newer than _stamp
        self._before = b""  # of the line before the one under way
        self._head = b""  # message of the last prefixed line
        self.bytes = self.lines = self.marks = 0

    def feed(self, data: bytes) -> None:
        data = self._rest + data
        end = data.rfind(b"\n")
        if end < 0:
            self._rest = data[:MOST_LINE]
            return
        self._rest = data[end + 1 :][:MOST_LINE]
        self._take(data[:end].split(b"\n"))
        self.bytes += end + 1

    def finish(self) -> Scan:
        """What was seen, as wire/calls/logs.py tells it."""
        offset = self.bytes
        if self._rest:
            self._take([self._rest])
        self._note_routine()
        kept = self._first + list(self._last)
        return {
            "marks": kept,
            "dropped_marks": self.marks - len(kept),
            "decode": self._decode.result(),
            "samples": self._samples,
            "ranks": {
                rank: {"lines": lines, "last_at": at, "last": self._safe(last, 160)}
                for rank, (lines, at, last) in self._ranks.items()
            },
            "first_at": self._first_stamp.decode("ascii", "replace") or None,
            "last_at": self._stamp.decode("ascii", "replace") or None,
            "lines": self.lines,
            "bytes": offset,
        }

    def _take(self, lines: List[bytes]) -> None:
        self.lines += len(lines)
        decodes: List[bytes] = []
        routine = self._routine
        for line in lines:
            at = line.find(b"] ", 20, 64)
            key = line[at + 2 : at + 14]
            if key == _DECODE and line[0] == 91:
                decodes.append(line)
                routine = line
            elif (key in _ROUTINE and line[0] == 91) or (key[:10] == b"INFO:     " and key[10:11].isdigit()):
                routine = line
            elif line:
                self._routine = routine
                self._other(line)
                routine = self._routine
        self._routine = routine
        if decodes:
            if "Decode batch" not in self._samples:
                self._samples["Decode batch"] = decodes[0][:MOST_TEXT].decode("utf-8", "replace")
            self._decode.add(decodes)
            self._see_jump(decodes[0])

    def _other(self, line: bytes) -> None:
        """A line that is not routine as it stands: unwrap it, then look at each line inside."""
        if line.startswith(_QUIET) and b"\r" not in line and b"\x1b" not in line:
            self._bare(line, b"")
            return
        for entry in unwrap(line, self._zone):
            found = patterns.PREFIX.match(entry.text)
            if found:
                self._prefixed(found.group(1), found.group(2).strip(), entry.text[found.end() :], entry.text)
            else:
                self._bare(entry.text, entry.at)

    def _prefixed(self, stamp: bytes, rank: bytes, message: bytes, line: bytes) -> None:
        self._note_routine()
        self._before = self._stamp
        self._tick(stamp)
        key = message[:12]
        if key == _DECODE:
            self._decode.add([line])
            self._sample(message)
            return
        if key in _ROUTINE or (key[:6] == b"INFO: " and message[6:].lstrip()[:1].isdigit()):
            self._sample(message)
            return
        self._traces.interrupted()
        if rank:
            self._see_rank(rank, stamp, message)
        if message.rstrip().endswith(patterns.TRACEBACK):
            head = message.rstrip()[: -len(patterns.TRACEBACK)].strip(b" :")
            self._traces.begin(_text(stamp), rank.decode(), head)
            self._head = b""
            return
        self._head = message
        self._message(message, stamp, rank)

    def _bare(self, text: bytes, at: bytes) -> None:
        """A line without prefix: part of a traceback, or of what another program says."""
        if text[:4] in patterns.BY_HEAD and self._known(text, at, b""):
            return
        head, self._head = self._head, b"" if text.strip() else self._head
        if not self._traces.line(text, self._at(at), head):
            self._message(text, at, b"")

    def _message(self, message: bytes, stamp: bytes, rank: bytes) -> None:
        self._sample(message)
        if self._known(message, stamp, rank) or not patterns.GATE.search(message):
            return
        watchdog = patterns.MARKS["watchdog"].pattern.match(message)
        if watchdog:
            self._mark("watchdog", stamp, rank, watchdog.groupdict())
            return
        kind = patterns.problem(message)
        if kind:
            self._mark("problem", stamp, rank, {"kind": kind.encode(), "text": message})

    def _known(self, message: bytes, stamp: bytes, rank: bytes) -> bool:
        for mark in patterns.BY_HEAD.get(message[:4], ()):
            found = mark.pattern.match(message)
            if found:
                self._mark(mark.name, stamp, rank, found.groupdict())
                return True
        return False

    def _mark(self, name: str, stamp: bytes, rank: bytes, fields: Dict[str, Optional[bytes]]) -> None:
        mark: Mark = {"name": name, "at": self._at(stamp), "rank": rank.decode() or None}
        for key, value in fields.items():
            if value is not None:  # the groups of the patterns are the fields of a mark
                mark[key] = self._safe(value, MOST_ARGS if key == "args" else MOST_TEXT)  # type: ignore[literal-required]
        if not stamp:
            mark["loose"] = True  # no time of its own
        if name == "start":
            mark["before"] = _text(self._before) or None
        self._keep(mark)

    def _keep(self, mark: Mark) -> None:
        self.marks += 1
        if len(self._first) < MOST_MARKS // 2:
            self._first.append(mark)
        else:
            self._last.append(mark)

    def _safe(self, value: bytes, limit: int) -> str:
        redactor = self._redactor
        clean = redactor.feed(value.replace(b"\n", b" ") + b"\n")
        return clean.decode("utf-8", "replace").rstrip("\n")[:limit]

    def _see_rank(self, rank: bytes, stamp: bytes, message: bytes) -> None:
        name = rank.decode()
        if name in self._ranks or len(self._ranks) < 1024:
            lines = self._ranks[name][0] if name in self._ranks else 0
            self._ranks[name] = (lines + 1, _text(stamp), message[:MOST_TEXT])

    def _sample(self, message: bytes) -> None:
        for start in _SAMPLES:
            if message.startswith(start):
                self._samples.setdefault(start.decode().strip(), self._safe(message, MOST_TEXT))

    def _at(self, stamp: bytes) -> Optional[str]:
        if not stamp:
            self._note_routine()
        return _text(stamp or self._stamp) or None

    def _note_routine(self) -> None:
        """Take the time of the last routine line."""
        line, self._routine = self._routine, None
        if line is not None:
            found = patterns.PREFIX.match(line)
            if found:
                self._tick(found.group(1))

    def _tick(self, stamp: bytes) -> None:
        if stamp < self._stamp:
            self._jumped(stamp)
        self._stamp = stamp
        if not self._first_stamp:
            self._first_stamp = stamp

    def _see_jump(self, line: bytes) -> None:
        found = patterns.PREFIX.match(line)
        if found and not self._first_stamp:
            self._first_stamp = found.group(1)

    def _jumped(self, stamp: bytes) -> None:
        before, after = seconds(self._stamp), seconds(stamp)
        if before is not None and after is not None and before - after > _JUMP:
            self._keep({"name": "clock_jump", "at": _text(stamp), "rank": None, "seconds": after - before})


def _text(stamp: bytes) -> str:
    return stamp.decode("ascii", "replace").replace(",", ".")


def scan_files(paths: Iterable[str], offset: int = 0, limit: int = 0, secrets: Iterable[str] = ()) -> Scan:
    """Scan the files in order, oldest first, as one log."""
    scanner = Scanner(secrets)
    for path in paths:
        for data in blocks(path, offset, limit):
            scanner.feed(data)
        offset = 0
    return scanner.finish()


def scan(call: Context, path: str, offset: int = 0, limit: int = 0, older: Sequence[str] = ()) -> FileScan:
    """Agent call `serverlog.scan`: the log at `path` from `offset`, as `Scanner.finish` gives it, and what file it was.

    older: files to read before it, oldest first. The body may be a JSON list of secrets to mask in what is quoted.
    `bytes` of the answer plus `offset` is where to go on; `file` tells whether it is still the same file then.
    """
    scanner = Scanner(json.loads(call.body.decode()) if call.body else ())
    for name in (*older, path):
        for data in blocks(name, offset if name == path else 0, limit):
            scanner.feed(data)
            call.progress({"bytes": scanner.bytes})
            if call.cancelled():
                break
    status = os.stat(path)
    return {**scanner.finish(), "file": [status.st_dev, status.st_ino], "offset": offset}


def scan_unit(call: Context, unit: str, user: bool = False) -> Scan:
    """Agent call `serverlog.scan_unit`: what a unit has said since its last start, as `Scanner.finish` gives it."""
    scanner = Scanner(json.loads(call.body.decode()) if call.body else ())
    whose = (["--user"] if user else []) + service.this_start(unit, user, service.show(call, unit, user))
    argv = ["journalctl", "-o", "short-iso", "--no-pager"] + whose
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True)
    call.started(child.pid)
    assert child.stdout is not None
    with child.stdout:
        for data in iter(lambda: child.stdout.read(1 << 20), b""):  # type: ignore[union-attr]  # it is a pipe, see above
            scanner.feed(data)
            call.progress({"bytes": scanner.bytes})
            if call.cancelled():
                child.kill()
    child.wait()
    call.ended(child.pid)
    return scanner.finish()


CALLS = {"scan": scan, "scan_unit": scan_unit}
