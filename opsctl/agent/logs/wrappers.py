"""Take off what is wrapped around a line of a server log.

Colour codes, progress bars that end in a carriage return, journald (`-o json`, `short`, `short-iso`), docker's
json-file, the names that compose and kubernetes put in front, the kernel's own time.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from typing import Any, Dict, List, Match, NamedTuple, Optional

from opsctl.agent.logs.logpatterns import ANSI, PREFIX


class Entry(NamedTuple):
    """One line: its text, and the time its wrapper gives (b'YYYY-mm-dd HH:MM:SS', or empty)."""

    text: bytes
    at: bytes


class Zone:
    """How far the server's clock is from UTC, in seconds: learnt from entries that have both times."""

    __slots__ = ("offset",)

    def __init__(self) -> None:
        self.offset = 0


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
_QUARTER = 900  # time zones are multiples of a quarter of an hour


def unwrap(line: bytes, zone: Zone) -> List[Entry]:
    """The lines of server output that `line` of a log holds, the oldest first. Never fails: what is not known stays."""
    if line[:1] == b"{" and line.rstrip()[-1:] == b"}":
        entry = _json(line, zone)
        if entry is not None:
            return entry
    return _plain(line, b"")


def _plain(line: bytes, at: bytes) -> List[Entry]:
    if b"\x1b" in line:
        line = ANSI.sub(b"", line)
    parts = [p for p in line.split(b"\r") if p.strip()] if b"\r" in line else [line]
    entries: List[Entry] = []
    for part in parts:
        entries.extend(_split(part, at))
    return entries


def _split(line: bytes, at: bytes) -> List[Entry]:
    """`line` with the names in front taken off; a progress bar that ran into the next message is cut from it."""
    for _ in range(_MOST_WRAPPERS):
        if PREFIX.match(line):
            return [Entry(line, at)]
        outer = next((found for found in (pattern.match(line) for pattern in _OUTER) if found), None)
        if outer is None:
            break
        line, at = line[outer.end() :], _time(outer) or at
        if not line:
            return []
    found = PREFIX.search(line, 1)
    if found and _may_end_before(line[: found.start()]):
        return [Entry(line[: found.start()], at), Entry(line[found.start() :], at)]
    return [Entry(line, at)]


def _may_end_before(text: bytes) -> bool:
    """Whether a new line may begin after `text`: it is a progress bar, or too short to be a message of its own."""
    return text.rstrip().endswith((b"]", b"|")) or b"it/s" in text or b"%|" in text or len(text) < 24


def _time(found: Match[bytes]) -> bytes:
    groups: Dict[str, bytes] = found.groupdict()
    if groups.get("year"):
        month = _MONTHS.index(groups["month"]) + 1 if groups["month"] in _MONTHS else 1
        return b"%s-%02d-%s %s" % (groups["year"], month, groups["day"].replace(b" ", b"0"), groups["time"])
    if groups.get("day"):
        return groups["day"] + b" " + groups["time"]
    return b""


def _json(line: bytes, zone: Zone) -> Optional[List[Entry]]:
    try:
        record = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    if "MESSAGE" in record:
        message, at = _bytes(record["MESSAGE"]), _journal_time(record, _bytes(record["MESSAGE"]), zone)
    elif isinstance(record.get("log"), str) and "time" in record:
        message, at = _bytes(record["log"]), str(record["time"])[:19].replace("T", " ").encode("utf-8", "replace")
    else:
        return None
    entries: List[Entry] = []
    for part in message.split(b"\n"):
        if part:
            entries.extend(_plain(part, at))
    return entries


def _bytes(value: Any) -> bytes:
    """journald gives text, or a list of byte values where the message is not plain text."""
    if isinstance(value, list):
        return bytes(v for v in value if isinstance(v, int) and 0 <= v < 256)
    return str(value or "").encode("utf-8", "surrogatepass")


def _journal_time(record: Any, message: bytes, zone: Zone) -> bytes:
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
        zone.offset = round((own - utc) / _QUARTER) * _QUARTER
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(utc + zone.offset)).encode()
    except (ValueError, OverflowError, OSError):  # no year that has a name
        return b""
