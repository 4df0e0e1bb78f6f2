"""Read a kernel log into events. What each line means is data/kernel_lines.csv and data/xids.csv."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

from opsctl.gpu import xids
from opsctl.gpu.model import KernelEvent, KernelLog
from opsctl.gpu.read import klog_lines, statuses
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
    lines = klog_lines.lines(text)
    framed = any(line.framed or _KERNEL.match(line.text) for line in lines[:200])
    return framed or any(WORTH.search(line.text) and classify([line.text]) for line in lines)


def read(text: str) -> KernelLog:
    """The events of the last boot in the log, in the order of time."""
    lines = klog_lines.lines(text)
    if _newest_first(lines):
        lines.reverse()
    start = _last_boot(lines)
    earlier = _events(lines[:start])
    events = _events(lines[start:])
    suppressed = sum(1 for line in lines[start:] if SUPPRESSED.search(line.text))
    begun = klog_lines.seconds(lines[start].time) if lines and klog_lines.BOOT_LINE.match(lines[start].text) else None
    booted = begun if begun is not None and begun > ABSOLUTE else None
    # Until the host has its name, its first lines carry another one.
    host = next((line.host for line in reversed(lines) if line.host), None)
    return KernelLog(tuple(events), len(lines), len(earlier), suppressed, host=host, booted=booted)


def _last_boot(lines: Sequence[klog_lines.Line]) -> int:
    """Where the last boot in the log begins: the kernel says so, journalctl does, or the time since boot went back."""
    start, uptime, boot = 0, None, None
    for i, line in enumerate(lines):
        back = line.uptime is not None and uptime is not None and line.uptime < uptime - _OUT_OF_ORDER
        other = line.boot is not None and boot is not None and line.boot != boot
        if back or other or klog_lines.BOOT_MARKS.match(line.text) or klog_lines.BOOT_LINE.match(line.text):
            start, uptime = i, None
        boot = line.boot or boot
        uptime = line.uptime if uptime is None else max(uptime, line.uptime or 0.0)
    return start


def _newest_first(lines: Sequence[klog_lines.Line]) -> bool:
    """`journalctl -r`. The time since boot goes back at a reboot too: it must do so all the time."""
    some = lines[:: max(1, len(lines) // _SAMPLE)]
    times = [seconds for line in some if (seconds := klog_lines.seconds(line.time)) is not None]
    later = sum(b > a for a, b in pairwise(times))
    earlier = sum(b < a for a, b in pairwise(times))
    since_boot = all(line.uptime is not None for line in some if line.time is not None)
    return earlier > later and (not since_boot or earlier > 8)


def _events(lines: Sequence[klog_lines.Line]) -> list[KernelEvent]:
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
    text = texts[0] if time is not None else klog_lines.split(texts[0]).text
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
            status = statuses.named(groups.get("status"), groups.get("code"))
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
            seconds=klog_lines.seconds(time),
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
