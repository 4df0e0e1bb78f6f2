"""The lines of a kernel log: dmesg (plain, iso, ctime, relative, decoded), journalctl (all outputs), syslog, kmsg."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_KMSG = re.compile(r"^\d+,\d+,(?P<us>\d+),[^;]*;")
_LEVEL = re.compile(
    r"^(?:<\d+>|(?:kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local\d|res\d+)"
    r"\s*:(?:emerg|alert|crit|err|warn|notice|info|debug)\s*:\s*)"
)
_RELATIVE = re.compile(r"^\[\s*(?P<time>\d+\.\d+)(?: <\s*\d+\.\d+ ?>)?\]\s?(?:\[\s*[TC]\d+\]\s)?")
_DELTA = re.compile(r"^\[\s*(?P<time>[+<]\s*\d+\.\d+>?)\]\s?")
# `dmesg -T` in any language: words, numbers and a time of day.
_CTIME = re.compile(r"^\[(?P<time>[^\[\]]{1,40} \d\d:\d\d:\d\d(?: [^\[\]]{1,12})?)\]\s?")
# Talos: address, facility, level.
_TALOS = re.compile(r"^(?P<host>\S+): \w+: +\w+: +\[(?P<time>\d{4}-\d\d-\d\dT[\d:.]+Z?)\]: ")
_MINUTE = re.compile(r"^\[(?P<time>[A-Z][a-z]{2}[ \d]\d \d\d:\d\d)\]\s?")
_FULL = re.compile(r"^(?P<time>[A-Z][a-z]{2} \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \S+)\s")
_UNIX = re.compile(r"^(?P<time>\d{9,11}\.\d{6})\s(?=(?:\S+ )?kernel: )")
_ISO = re.compile(r"^(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)\s")
_SYSLOG = re.compile(r"^(?P<time>[A-Z][a-z]{2}\s+\d{1,2} \d\d:\d\d:\d\d(?:\.\d+)?)\s")
# The same in other languages: `févr. 27`, `27. Feb`, ` 2月 27`, told from other text by the kernel's name behind it.
_ELSEWHERE = re.compile(r"^\s?(?P<time>\S{1,12} \s?\S{1,12} \d\d:\d\d:\d\d(?:\.\d+)?)\s(?=\S+ kernel: )")
_HOST = re.compile(r"^(?:(?P<host>\S+) )?kernel: (?:\[\s*(?P<uptime>\d+\.\d+)\]\s?)?")
# `journalctl -o export` and `-o verbose`: one field per line.
_FIELDS = re.compile(r"^\s*_TRANSPORT=", re.MULTILINE)
_FIELD = re.compile(r"^\s*(?P<name>[A-Z_]+)=(?P<value>.*)$")
_HEADING = re.compile(r"^(?P<time>[A-Z][a-z]{2} \d{4}-\d\d-\d\d \S+ \S+) \[")
# `-o json-pretty`: a record in many lines.
_PRETTY = re.compile(r'^\t"MESSAGE" : ', re.MULTILINE)

_LONGEST = 1536  # the kernel's longest line (printk: 1024) with a date and a host before it
BOOT_MARKS = re.compile(r"^-- (?:Boot [0-9a-f]{32}|Reboot)\b.*--$")
BOOT_LINE = re.compile(r"^Linux version \d")


@dataclass(frozen=True, slots=True)
class Line:
    """time: as written, None without one. framed: it began like a kernel log line. uptime, boot, host: where told."""

    text: str
    time: str | None
    framed: bool
    uptime: float | None = None
    boot: str | None = None
    host: str | None = None


def lines(text: str) -> list[Line]:
    """The lines of a log, in its order, whatever journalctl or dmesg wrote them."""
    if _PRETTY.search(text):
        return list(_records(text))
    if _FIELDS.search(text):
        return list(_fields(text))
    return [split(line) for line in text.splitlines() if line.strip()]


def _records(text: str) -> Iterator[Line]:
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            record, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return
        yield _record(record) or Line("", None, False)
        at = text.find("{", end)


def _fields(text: str) -> Iterator[Line]:
    """What stands before a message in its record tells its time and boot."""
    time = boot = None
    for line in text.splitlines():
        if heading := _HEADING.match(line):
            time = heading["time"]
        elif field := _FIELD.match(line):
            if field["name"] == "__REALTIME_TIMESTAMP":
                time = _iso(field["value"])
            elif field["name"] == "_BOOT_ID":
                boot = field["value"]
            elif field["name"] == "MESSAGE":
                yield Line(field["value"][:_LONGEST], time, True, boot=boot)


def split(line: str) -> Line:
    """The line without its time, level, host and program name."""
    line = line.rstrip("\r\n")
    line = line.removeprefix("data: ").lstrip("\x1e")  # json-sse, json-seq
    if line.startswith("{") and '"MESSAGE"' in line:
        return _journal(line)
    line = line[:_LONGEST]
    if kmsg := _KMSG.match(line):
        seconds_up = int(kmsg["us"]) / 1e6
        return Line(line[kmsg.end() :], f"{seconds_up:.6f}", True, seconds_up)
    if talos := _TALOS.match(line):
        return Line(line[talos.end() :], talos["time"], True, host=talos["host"])
    rest, framed, time, uptime, name = line, False, None, None, None
    if level := _LEVEL.match(rest):
        rest, framed = rest[level.end() :], True
    for pattern in (_RELATIVE, _DELTA, _CTIME, _MINUTE, _ISO, _SYSLOG, _FULL, _UNIX, _ELSEWHERE):
        if found := pattern.match(rest):
            rest, time = rest[found.end() :], found["time"]
            # A date alone is the front of any program's log; a bracket or a level is the kernel's own.
            framed = framed or pattern not in (_ISO, _SYSLOG, _FULL)
            uptime = float(time) if pattern is _RELATIVE else None
            break
    if host := _HOST.match(rest):
        rest, framed, name = rest[host.end() :], True, host["host"]
        uptime = float(host["uptime"]) if host["uptime"] else uptime
    return Line(rest, time, framed, uptime, host=name)


def _journal(line: str) -> Line:
    """A record of `journalctl -o json`."""
    try:
        return _record(json.loads(line)) or Line(line, None, False)
    except (ValueError, RecursionError):
        return Line(line, None, False)


def _record(record: object) -> Line | None:
    if not isinstance(record, dict) or "MESSAGE" not in record:
        return None
    boot, host = (value if isinstance(value := record.get(name), str) else None for name in ("_BOOT_ID", "_HOSTNAME"))
    time = _iso(str(record.get("__REALTIME_TIMESTAMP", "")))
    return Line(str(record["MESSAGE"])[:_LONGEST], time, True, boot=boot, host=host)


def _iso(micros: str) -> str | None:
    """The time as ISO in UTC."""
    try:
        return datetime.fromtimestamp(int(micros) / 1e6, UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return None


def seconds(time: str | None) -> float | None:
    """The time as a number, for differences within one log; None when it says no absolute time."""
    if time is None or time[:1] in "+<":  # since the line before
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
    for pattern, text in (
        ("%a %b %d %H:%M:%S %Y", time),
        ("%Y %b %d %H:%M:%S", f"2000 {time.partition('.')[0]}"),
        ("%Y-%m-%d %H:%M:%S", " ".join(time.partition(".")[0].split()[1:3])),
    ):
        try:
            return datetime.strptime(text, pattern).timestamp()
        except ValueError:
            continue
    return None
