"""Read a kernel log into events: dmesg (plain, iso, ctime, relative, decoded), journalctl (all outputs), syslog, kmsg.

What each message means is data/kernel_lines.csv and data/xids.csv; the statuses in them are data/nv_status.csv.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise

from opsctl.gpu import xids
from opsctl.gpu.model import KernelEvent, KernelLog
from opsctl.gpu.read.fields import table

SUPPRESSED = re.compile(
    r"callbacks suppressed|Suppressed \d+ messages|kmsg dropped|messages suppressed|printk messages dropped|"
    r"Missed \d+ kernel messages|some messages lost"
)
_NON_FATAL = re.compile(r"(?i)\bnon-?fatal\b")
_FATAL = re.compile(r"(?i)(?<!non)(?<!non-)\bfatal\b")
# Any of these words makes a line worth the patterns: most lines of a log hold none.
WORTH = re.compile(
    r"NVRM|SXid|AER|PCIe Bus Error|Surprise|IO_PAGE_FAULT|DMAR|SDES|[Ll]ink [Dd]own|ut of memory|"
    r"oom-kill|blocked for more|state:D|lockup|LOCKUP|read-only|nvme|Disabling device|I/O error|segfault|"
    r"aer_uncor|DPC|EXT4-fs error|XFS|critical \w+ error|EDAC|Hardware Error|Memory failure|messages lost|Missed \d|"
    r"NV_ERR_|global fatal error|probe of|probe with driver nvidia|is rejected|unsigned module|CMCI storm|"
    r"rcu: INFO|BUG: |kernel BUG|general protection|\[nvidia\w*\]"
)
_SAMPLE = 200  # lines of a log tell in which direction it runs
ABSOLUTE = 1e9  # seconds of a date; below is time since boot, or a date without its year
_OUT_OF_ORDER = 10.0  # seconds by which a line may stand behind a later one; more is a reboot
# A GSP that hangs makes every later question time out too, and each writes a line: those of nvidia-smi are no news.
_PROBE, _UNANSWERED = "nvidia-smi", 119
_KERNEL = re.compile(r"^(?:NVRM: |nvidia-nvswitch\d+: |nvidia-modeset: |pcieport [0-9a-f]{4}:|nvidia [0-9a-f]{4}:)")
_TRACED = ("stall", "oops")
# Events told by several lines.
_JOINED = {"mismatch": 5, "fallen": 3, "unserved": 5}
_TRACE = 100  # lines in which a stall or an oops prints its stack


@dataclass(frozen=True, slots=True)
class _Pattern:
    kind: str
    check: str | None
    severity: str
    pattern: re.Pattern[str]
    unless: re.Pattern[str] | None  # in the lines that belong to it
    within: re.Pattern[str] | None  # must stand in the lines that follow, and is told with it
    remedy: str | None


@cache
def _patterns() -> tuple[_Pattern, ...]:
    return tuple(
        _Pattern(
            r["kind"], r["check"] or None, r["severity"], re.compile(r["pattern"]),
            re.compile(r["unless"]) if r["unless"] else None,
            re.compile(r["within"]) if r["within"] else None, r["remedy"] or None,
        )
        for r in table("kernel_lines.csv")
    )  # fmt: skip


def looks_like(text: str) -> bool:
    """Whether some of the first lines begin like a kernel log, or any line is one of its known messages."""
    lines = lines_of(text)
    framed = any(line.framed or _KERNEL.match(line.text) for line in lines[:200])
    return framed or any(WORTH.search(line.text) and classify([line.text]) for line in lines)


def read(text: str) -> KernelLog:
    """The events of the last boot in the log, in the order of time."""
    lines = lines_of(text)
    if _newest_first(lines):
        lines.reverse()
    start = _last_boot(lines)
    earlier = _events(lines[:start])
    events = _events(lines[start:])
    suppressed = sum(1 for line in lines[start:] if SUPPRESSED.search(line.text))
    begun = seconds(lines[start].time) if lines and BOOT_LINE.match(lines[start].text) else None
    booted = begun if begun is not None and begun > ABSOLUTE else None
    # Until the host has its name, its first lines carry another one.
    host = next((line.host for line in reversed(lines) if line.host), None)
    return KernelLog(tuple(events), len(lines), len(earlier), suppressed, host=host, booted=booted)


def _last_boot(lines: Sequence[Line]) -> int:
    """Where the last boot in the log begins: the kernel says so, journalctl does, or the time since boot went back."""
    start, uptime, boot = 0, None, None
    for i, line in enumerate(lines):
        back = line.uptime is not None and uptime is not None and line.uptime < uptime - _OUT_OF_ORDER
        other = line.boot is not None and boot is not None and line.boot != boot
        if back or other or BOOT_MARKS.match(line.text) or BOOT_LINE.match(line.text):
            start, uptime = i, None
        boot = line.boot or boot
        uptime = line.uptime if uptime is None else max(uptime, line.uptime or 0.0)
    return start


def _newest_first(lines: Sequence[Line]) -> bool:
    """`journalctl -r`. The time since boot goes back at a reboot too: it must do so all the time."""
    some = lines[:: max(1, len(lines) // _SAMPLE)]
    times = [at for line in some if (at := seconds(line.time)) is not None]
    later = sum(b > a for a, b in pairwise(times))
    earlier = sum(b < a for a, b in pairwise(times))
    since_boot = all(line.uptime is not None for line in some if line.time is not None)
    return earlier > later and (not since_boot or earlier > 8)


def _events(lines: Sequence[Line]) -> list[KernelEvent]:
    events: list[KernelEvent] = []
    for i, line in enumerate(lines):
        if not WORTH.search(line.text):
            continue
        event = classify([following.text for following in lines[i : i + _TRACE]], line.time)
        if event:
            events.append(_as_before(event, events))
    return events


def classify(texts: Sequence[str], time: str | None = None) -> KernelEvent | None:
    """The event that the first of `texts` tells (the others are the lines after it), None when it tells none."""
    text = texts[0] if time is not None else split(texts[0]).text
    for known in _patterns():
        found = known.pattern.search(text)
        if found is None:
            continue
        told = " ".join(_told(known.kind, [text, *texts[1:]]))
        if known.unless and known.unless.search(told):
            continue
        if known.within and not known.within.search(told):
            frame = next((t for t in texts[1:] if known.within.search(t)), None) if known.kind in _TRACED else None
            if frame is None:
                continue
            told = f"{told} … {frame.strip()}"
        groups = found.groupdict()
        message = groups.get("message") or text
        code = int(groups["xid"]) if groups.get("xid") else None
        severity, remedy = _severity(known, code, message, groups), known.remedy
        if groups.get("status") or groups.get("code"):
            status = named(groups.get("status"), groups.get("code"))
            if status is None or (status.severity == "info" and groups.get("code")):
                continue  # by number only those that say what is wrong
            severity, remedy = status.severity, status.remedy
            told = told if status.name in told else f"{told.rstrip(' .!')}: {status.meaning} [{status.name}]"
        return KernelEvent(
            kind=known.kind,
            check=known.check,
            severity=severity,
            text=told,
            time=time,
            seconds=seconds(time),
            xid=code,
            bdf=_bdf(groups.get("bdf") or groups.get("device")),
            pid=groups.get("pid"),
            process=groups.get("process"),
            probe=code == _UNANSWERED and groups.get("process") == _PROBE,
            remedy=remedy,
            link=groups.get("link"),
        )
    return None


def _severity(known: _Pattern, code: int | None, message: str, groups: dict[str, str | None]) -> str:
    if known.kind == "xid" and code is not None:
        return xids.severity(code, message)
    if known.kind == "sxid" and _NON_FATAL.search(message):
        return "warn"
    if known.kind == "iommu":
        # A fault of another device says nothing about P2P; the GPU check knows which devices are GPUs.
        return "fail" if groups.get("process") == "nvidia" else "warn"
    return known.severity


def _told(kind: str, texts: Sequence[str]) -> list[str]:
    count = _JOINED.get(kind, 1)
    told = [texts[0].strip()]
    for text in texts[1:count]:
        if not text.startswith("NVRM: ") or _is_event(text):
            break
        told.append(text.removeprefix("NVRM:").strip())
    return told


def _is_event(text: str) -> bool:
    return any(p.pattern.search(text) for p in _patterns())


def _as_before(event: KernelEvent, earlier: Sequence[KernelEvent]) -> KernelEvent:
    """The detail lines of an SXid do not repeat whether it is fatal: they take it from the line before."""
    if event.kind != "sxid" or _NON_FATAL.search(event.text) or _FATAL.search(event.text):
        return event
    same = (e for e in reversed(earlier) if (e.kind, e.xid, e.bdf) == (event.kind, event.xid, event.bdf))
    before = next(same, event)
    return event if before.severity == event.severity else replace(event, severity=before.severity)


def _bdf(bus: str | None) -> str | None:
    """domain:bus:device, lower case: '09:00' -> '0000:09:00'."""
    if not bus:
        return None
    return (bus if bus.count(":") == 2 else f"0000:{bus}").lower()


@dataclass(frozen=True, slots=True)
class Status:
    """severity: fail, warn or info. remedy: a row of data/remedies.csv."""

    name: str
    code: int
    meaning: str
    severity: str
    remedy: str | None


@cache
def _table() -> dict[str | int, Status]:
    rows = [
        Status(r["name"], int(r["code"]), r["meaning"], r["severity"], r["remedy"] or None)
        for r in table("nv_status.csv")
    ]
    return {status.name: status for status in rows} | {status.code: status for status in rows}


def named(name: str | None, code: str | None) -> Status | None:
    """The status of this name (`NV_ERR_GPU_IS_LOST`) or number (`0x0f`); a name that is not known is a warning."""
    if name:
        return _table().get(name) or Status(name, -1, "not known", "warn", None)
    return _table().get(int(code, 16)) if code else None


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


def lines_of(text: str) -> list[Line]:
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
