"""Take off what is wrapped around a line of a server log, and put tracebacks together again.

Colour codes, progress bars that end in a carriage return, journald (`-o json`, `short`, `short-iso`), docker's
json-file, the names that compose and kubernetes put in front, the kernel's own time.

Several processes write to one log, so a traceback can be interrupted by other lines and by another traceback. Each open
one takes lines until its exception has come; then a link ("The above exception was the direct cause ...") may open it
again. `errors` of the result holds the exceptions of the chain with the root first.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Match, NamedTuple, Optional, Pattern

from opsctl.wire.log_patterns import ANSI, EXCEPTION, FRAME, LINK, NOT_CAPTURED, PREFIX, TRACEBACK, problem


class Entry(NamedTuple):
    """One line: its text, and the time its wrapper gives (b'YYYY-mm-dd HH:MM:SS', or empty)."""

    text: bytes
    at: bytes


class Learnt:
    """What a log tells of what is wrapped around its lines.

    offset: seconds of the server's clock from UTC, from entries that have both times.
    prefixes: what stands before SGLang's own time stamp, whoever put it there; numbers in it vary. None are learnt once
    lines have begun with the stamp: what then stands before one is text.
    """

    __slots__ = ("offset", "prefixes", "stamped")

    def __init__(self) -> None:
        self.offset = 0
        self.prefixes: List[Pattern[bytes]] = []
        self.stamped = False

    def prefix(self, text: bytes) -> None:
        """Learn what stood before a time stamp."""
        if not self.stamped and len(self.prefixes) < _MOST_PREFIXES and len(text) <= _MOST_PREFIX:
            self.prefixes.append(re.compile(rb"\d+".join(re.escape(part) for part in re.split(rb"\d+", text))))


_SHORT = re.compile(rb"(?P<at>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)(?:\.\d+)? \S+ (?P<who>[\w./@:+-]+?)(?:\[\d+\])?: ")
_ISO = re.compile(
    rb"(?P<day>\d{4}-\d\d-\d\d)T(?P<time>\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)? (?:std(?:out"
    rb"|err) [FP] |\S+ [\w./@:+-]+?(?:\[\d+\])?: )?"
)
_DMESG = re.compile(
    rb"\[[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) (?P<day>[ \d]\d) (?P<time>\d\d:\d\d:\d\d) (?P<year>\d{4})\] "
)
_UPTIME = re.compile(rb"\[ *\d+\.\d{6}\] (?:kernel: )?")
_COMPOSE = re.compile(rb"[\w.-]+ +\| ?")
_OUTER = (_SHORT, _ISO, _DMESG, _UPTIME, _COMPOSE)
_MOST_WRAPPERS = 8  # around one another: journald around kubernetes around compose is three
_MONTHS = b"Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_MOST_PREFIXES = 64  # one for each process that a launcher names
_MOST_PREFIX = 200  # bytes
_QUARTER = 900  # time zones are multiples of a quarter of an hour


def unwrap(line: bytes, learnt: Learnt) -> List[Entry]:
    """The lines of server output that `line` of a log holds, the oldest first. Never fails: what is not known stays."""
    if line[:1] == b"{" and line.rstrip()[-1:] == b"}":
        entry = _json(line, learnt)
        if entry is not None:
            return entry
    return _plain(line, b"", learnt)


def _plain(line: bytes, at: bytes, learnt: Learnt) -> List[Entry]:
    if b"\x1b" in line:
        line = ANSI.sub(b"", line)
    parts = [p for p in line.split(b"\r") if p.strip()] if b"\r" in line else [line]
    entries: List[Entry] = []
    for part in parts:
        entries.extend(_split(part, at, learnt))
    return entries


def _split(line: bytes, at: bytes, learnt: Learnt) -> List[Entry]:
    """`line` with the names in front taken off; a progress bar that ran into the next message is cut from it."""
    named = False  # by a prefix that this log taught: what stands before a second stamp is text
    for _ in range(_MOST_WRAPPERS):
        if PREFIX.match(line):
            learnt.stamped = learnt.stamped or not learnt.prefixes
            return [Entry(line, at)]
        patterns = (*learnt.prefixes, *_OUTER)
        outer = next((found for found in (pattern.match(line) for pattern in patterns) if found), None)
        if outer is None:
            break
        named = named or outer.re in learnt.prefixes
        line, at = line[outer.end() :], _time(outer) or at
        if not line:
            return []
    found = PREFIX.search(line, 1)
    if found and not _is_bar(line[: found.start()]) and line[:1] not in b" \t" and not (named or learnt.stamped):
        learnt.prefix(line[: found.start()])
        return [Entry(line[found.start() :], at)]
    if found and _may_end_before(line[: found.start()]):
        return [Entry(line[: found.start()], at), Entry(line[found.start() :], at)]
    return [Entry(line, at)]


def _may_end_before(text: bytes) -> bool:
    """Whether a new line may begin after `text`: it is a progress bar, or too short to be a message of its own."""
    return _is_bar(text) or text.rstrip().endswith((b"]", b"|")) or len(text) < 24


def _is_bar(text: bytes) -> bool:
    return b"it/s" in text or b"s/it" in text or b"%|" in text


def _time(found: Match[bytes]) -> bytes:
    groups: Dict[str, bytes] = found.groupdict()
    if groups.get("year"):
        month = _MONTHS.index(groups["month"]) + 1 if groups["month"] in _MONTHS else 1
        return b"%s-%02d-%s %s" % (groups["year"], month, groups["day"].replace(b" ", b"0"), groups["time"])
    if groups.get("day"):
        return groups["day"] + b" " + groups["time"]
    return b""


def _json(line: bytes, learnt: Learnt) -> Optional[List[Entry]]:
    try:
        record = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if "MESSAGE" in record:
        message, at = _bytes(record["MESSAGE"]), _journal_time(record, _bytes(record["MESSAGE"]), learnt)
    elif isinstance(record.get("log"), str) and "time" in record:
        message, at = _bytes(record["log"]), str(record["time"])[:19].replace("T", " ").encode("utf-8", "replace")
    else:
        return None
    entries: List[Entry] = []
    for part in message.split(b"\n"):
        if part:
            entries.extend(_plain(part, at, learnt))
    return entries


def _bytes(value: Any) -> bytes:
    """journald gives text, or a list of byte values where the message is not plain text."""
    if isinstance(value, list):
        return bytes(v for v in value if isinstance(v, int) and 0 <= v < 256)
    return str(value or "").encode("utf-8", "surrogatepass")


def _journal_time(record: Any, message: bytes, learnt: Learnt) -> bytes:
    try:
        utc = int(record.get("_SOURCE_REALTIME_TIMESTAMP") or record.get("__REALTIME_TIMESTAMP") or 0) // 1000000
    except (TypeError, ValueError):
        return b""
    if not utc:
        return b""
    found = PREFIX.search(message[:80])
    if found:
        try:
            own = calendar.timegm(time.strptime(found.group(1)[:19].decode(), "%Y-%m-%d %H:%M:%S"))
        except ValueError:
            own = utc
        learnt.offset = round((own - utc) / _QUARTER) * _QUARTER
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(utc + learnt.offset)).encode()
    except (ValueError, OverflowError, OSError):  # no year that has a name
        return b""


if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Mark

MOST_ERRORS = 12
MOST_OPEN = 64


class _Trace:
    __slots__ = ("code", "ended", "mark")

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self.code = b""  # the last line of source that was shown
        self.ended = False  # the exception of the section under way has come


class Traces:
    """The tracebacks under way; the last one is the one that lines are most likely of.

    Args:
        keep: takes the mark of a traceback when it begins; the mark is filled in as lines come.
        safe: makes a text fit to be kept: redacted, cut, decoded.
    """

    def __init__(self, keep: Callable[[Mark], None], safe: Callable[[bytes], str]) -> None:
        self._keep, self._safe = keep, safe
        self._open: List[_Trace] = []
        self._ended: Optional[_Trace] = None  # finished, but a link may still follow

    def begin(self, at: Optional[str], rank: str, head: bytes) -> None:
        """A new traceback, of a message that ended in `Traceback (most recent call last):`."""
        self.interrupted()
        mark: Mark = {
            "name": "exception",
            "at": at,
            "rank": rank or None,
            "head": self._safe(head)[:160],
            "errors": [],
            "kind": "",
            "where": None,
        }
        self._keep(mark)
        self._open = self._open[-MOST_OPEN:] + [_Trace(mark)]

    def line(self, text: bytes, at: Optional[str], head: bytes) -> bool:
        """Take a line without prefix. Whether it was part of a traceback."""
        text = text.rstrip()
        if text.endswith(TRACEBACK):
            before = text[: -len(TRACEBACK)].strip(b" :")
            if not self._goes_on(before):
                self.begin(at, _rank(before), head or before)
            return True
        if LINK.search(text):
            self._link()
            return True
        if not self._open:
            return False
        trace = self._open[-1]
        if trace.ended:
            return self._after(text)
        frame = FRAME.match(text)
        if frame:
            self._frame(trace.mark, frame.group(1), frame.group(2))
            return True
        if text[:1] not in (b" ", b"\t", b"|") and EXCEPTION.match(text):
            self._exception(trace, text)
            return True
        if text.strip(b" \t|^~"):
            trace.code = text.strip()
        return not text or text[:1] in b" \t|"

    def interrupted(self) -> None:
        """A line with a prefix came: the messages of finished exceptions are over."""
        for trace in self._open:
            if trace.ended:
                self._ended = trace
        self._open = [t for t in self._open if not t.ended]

    def _goes_on(self, before: bytes) -> bool:
        """Whether a bare `Traceback` is the next section of a chain."""
        if not self._open or self._open[-1].ended or not (before == b"" or before.startswith(b"[rank")):
            return False
        mark = self._open[-1].mark
        return bool(mark["errors"]) or mark["where"] is None

    def _link(self) -> None:
        if self._open and self._open[-1].ended:
            self._open[-1].ended = False
        elif not self._open and self._ended is not None:
            self._ended.ended = False
            self._open, self._ended = [self._ended], None

    def _after(self, text: bytes) -> bool:
        """A line after an exception is the rest of its message, unless it tells of trouble of its own."""
        if text and problem(text) and not text.startswith(b" "):
            self.interrupted()
            return False
        return True

    def _frame(self, mark: Mark, path: bytes, line: bytes) -> None:
        at = path.rfind(b"/sglang/")
        place = "%s:%s" % (path[at + 1 :].decode("utf-8", "replace"), line.decode())
        if at >= 0 or mark["where"] is None or not mark["where"].startswith("sglang/"):
            mark["where"] = place

    def _exception(self, trace: _Trace, text: bytes) -> None:
        mark = trace.mark
        if len(mark["errors"]) < MOST_ERRORS:
            mark["errors"].append(self._safe(text))
            mark["kind"] = mark["kind"] or problem(text)
            if not mark["kind"] and NOT_CAPTURED.search(trace.code + b"\n" + text):
                mark["kind"] = "states_not_captured"
        trace.ended = True
        waiting = [t for t in self._open if not t.ended]
        if waiting:  # lines to come are more likely of one that still waits for its exception
            self._open = [t for t in self._open if t.ended] + waiting


def _rank(before: bytes) -> str:
    return (
        "TP" + before[5:-1].decode("ascii", "replace") if before.startswith(b"[rank") and before.endswith(b"]") else ""
    )
