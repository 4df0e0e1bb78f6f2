"""The front of a kernel log line: dmesg (plain, iso, ctime, relative, decoded), journalctl, syslog, /dev/kmsg."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime

_KMSG = re.compile(r"^\d+,\d+,(?P<us>\d+),[^;]*;")
_LEVEL = re.compile(
    r"^(?:<\d+>|(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d|res\d+)"
    r"\s*:(?:emerg|alert|crit|err|warn|notice|info|debug)\s*:\s*)"
)
_RELATIVE = re.compile(r"^\[\s*(?P<time>\d+\.\d+)\]\s?(?:\[\s*[TC]\d+\]\s)?")
_DELTA = re.compile(r"^\[\s*(?P<time>[+<]\s*\d+\.\d+>?)\]\s?")
_CTIME = re.compile(r"^\[(?P<time>\w{3} \w{3}\s+\d+ \d\d:\d\d:\d\d \d{4})\]\s?")
_ISO = re.compile(r"^(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s")
_SYSLOG = re.compile(r"^(?P<time>[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?)\s")
_HOST = re.compile(r"^(?:\S+ )?kernel: (?:\[\s*\d+\.\d+\]\s?)?")

_LONGEST = 1536  # the kernel's longest line (printk: 1024) with a date and a host before it
BOOT_MARKS = re.compile(r"^-- (?:Boot [0-9a-f]{32}|Reboot)\b.*--$")
BOOT_LINE = re.compile(r"^Linux version \d")


@dataclass(frozen=True, slots=True)
class Line:
    """time: as written, None without one. framed: the line began like a kernel log line."""

    text: str
    time: str | None
    framed: bool


def split(line: str) -> Line:
    """The line without its time, level, host and program name."""
    line = line.rstrip("\r\n")
    if line.startswith("{") and '"MESSAGE"' in line:
        return _journal(line)
    line = line[:_LONGEST]
    if kmsg := _KMSG.match(line):
        return Line(line[kmsg.end() :], f"{int(kmsg['us']) / 1e6:.6f}", True)
    rest, framed, time = line, False, None
    if level := _LEVEL.match(rest):
        rest, framed = rest[level.end() :], True
    for pattern in (_RELATIVE, _DELTA, _CTIME, _ISO, _SYSLOG):
        if found := pattern.match(rest):
            rest, time = rest[found.end() :], found["time"]
            # A date alone is the front of any program's log; a bracket or a level is the kernel's own.
            framed = framed or pattern not in (_ISO, _SYSLOG)
            break
    if host := _HOST.match(rest):
        rest, framed = rest[host.end() :], True
    return Line(rest, time, framed)


def _journal(line: str) -> Line:
    """A record of `journalctl -o json`; the time as ISO in UTC."""
    try:
        record = json.loads(line)
        micros = int(record.get("__REALTIME_TIMESTAMP", 0))
        time = datetime.fromtimestamp(micros / 1e6, UTC).isoformat() if micros else None
        return Line(str(record["MESSAGE"])[:_LONGEST], time, True)
    except (ValueError, KeyError, TypeError, OverflowError, OSError, AttributeError, RecursionError):
        return Line(line, None, False)


def seconds(time: str | None) -> float | None:
    """The time as a number, for differences within one log; None when it says no absolute time."""
    if time is None:
        return None
    try:
        return float(time)
    except ValueError:
        pass
    iso = time.replace(",", ".")
    if re.search(r"[+-]\d{4}$", iso):
        iso = f"{iso[:-2]}:{iso[-2:]}"
    try:
        return datetime.fromisoformat(iso).timestamp()
    except ValueError:
        pass
    for pattern, text in (("%a %b %d %H:%M:%S %Y", time), ("%Y %b %d %H:%M:%S", f"2000 {time.partition('.')[0]}")):
        try:
            return datetime.strptime(text, pattern).timestamp()
        except ValueError:
            continue
    return None
