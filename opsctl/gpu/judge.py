"""Judge a host: run the checks over the evidence and say, per check and GPU, what was found and what to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from opsctl.errors import UsageError
from opsctl.gpu import xids
from opsctl.gpu.checks.registry import Check, checks, decisive
from opsctl.gpu.model import Evidence, Found, GpuRef, KernelEvent, Verdict, worst
from opsctl.gpu.read.fields import table
from opsctl.gpu.settings import Settings
from opsctl.text import did_you_mean


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the report."""

    check: str
    found: Found
    remedy: str | None
    command: str | None

    @property
    def verdict(self) -> Verdict:
        return self.found.verdict

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "verdict": self.verdict.value,
            "gpu": _ref_json(self.found.gpu),
            "value": self.found.value,
            "expected": self.found.expected,
            "evidence": self.found.evidence,
            "remedy": self.remedy,
            "command": self.command,
        }


@dataclass(frozen=True, slots=True)
class HostReport:
    host: str
    verdict: Verdict
    results: tuple[Result, ...]
    kernel: tuple[KernelEvent, ...] = ()
    about: str = ""  # which GPUs and driver, in words
    undecided: tuple[str, ...] = ()  # decisive checks without an answer: nobody can say that the host is fit

    @property
    def by_check(self) -> dict[str, Result]:
        """The worst result of each check."""
        return {r.check: r for r in sorted(self.results, key=lambda r: r.verdict.rank)}

    def as_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "verdict": self.verdict.value,
            "undecided": list(self.undecided),
            "checks": [r.as_json() for r in self.results],
            "kernel": [_event_json(e) for e in self.kernel],
        }


def selected(only: Collection[str] = (), without: Collection[str] = ()) -> list[Check]:
    """The checks asked for, in their order. A name ending in `.` or without a dot means its whole family (`klog`)."""
    for name in (*only, *without):
        if not any(_matches(name, check) for check in checks()):
            families = {check.partition(".")[0] for check in checks()}
            raise UsageError(f"unknown check {name!r}", hint=did_you_mean(name, {*checks(), *families}))
    return [
        check
        for name, check in checks().items()
        if (not only or any(_matches(o, name) for o in only)) and not any(_matches(w, name) for w in without)
    ]


def judge(host: str, evidence: Evidence, settings: Settings, chosen: Iterable[Check] | None = None) -> HostReport:
    """The report for one host; its verdict is the worst of its checks.

    Skip when none could be answered, or when nothing is wrong and a decisive one could not be answered.
    """
    asked = list(checks().values() if chosen is None else chosen)
    found = [_result(check, one) for check in asked for one in check.function(evidence, settings)]
    answered = {r.check for r in found if r.verdict is not Verdict.SKIP}
    expects_gpus = settings.profile.gpus != 0
    undecided = tuple(c.id for c in asked if decisive(c, evidence) and c.id not in answered and expects_gpus)
    verdict = worst([r.verdict for r in found])
    if verdict is Verdict.PASS and undecided:
        verdict = Verdict.SKIP
    events = evidence.kernel.events if evidence.kernel else ()
    return HostReport(host, verdict, tuple(found), events, _about(evidence), undecided)


def _about(evidence: Evidence) -> str:
    reading = max(evidence.readings, key=lambda r: len(r.gpus), default=None)
    if reading is None:
        on_pci = sum(d.gpu for d in evidence.pci or ())
        return f"{on_pci} GPUs on PCI" if on_pci else ""
    names = Counter(g.name or "GPU" for g in reading.gpus)
    parts = [f"{count} x {name}" for name, count in names.most_common()]
    return ", ".join(parts + ([f"driver {reading.driver}"] if reading.driver else []))


def _matches(name: str, check: str) -> bool:
    return name == check or check.startswith(name.rstrip(".") + ".")


def _result(check: Check, found: Found) -> Result:
    wrong = found.verdict in (Verdict.WARN, Verdict.FAIL)
    if not wrong:
        return Result(check.id, found, None, None)
    if found.remedy is not None:
        own = remedies()[found.remedy]
        return Result(check.id, found, own["text"], own["command"] or None)
    return Result(check.id, found, _remedy(check, found), check.command or None)


@cache
def remedies() -> dict[str, dict[str, str]]:
    """What to do about a finding, and a command to look further, by name."""
    return {row["remedy"]: row for row in table("remedies.csv")}


def _remedy(check: Check, found: Found) -> str | None:
    """The finding's own remedy, else the check's; for an Xid what NVIDIA says about that one."""
    code = str(found.value).removeprefix("Xid ")
    known = xids.catalogue().get(int(code)) if check.id == "klog.xid" and code.isdigit() else None
    if known is None:
        return check.remedy or None
    what = known.remedy or (f"NVIDIA: {known.immediate}" if known.immediate else "ask the vendor")
    return f"{known.description}: {what} (opsctl health explain {known.code})"


def _ref_json(ref: GpuRef | None) -> dict[str, Any] | None:
    return None if ref is None else {"index": ref.index, "uuid": ref.uuid, "bus_id": ref.bus_id}


def _event_json(event: KernelEvent) -> dict[str, Any]:
    return {
        "time": event.time,
        "kind": event.kind,
        "check": event.check,
        "severity": event.severity,
        "xid": event.xid,
        "bdf": event.bdf,
        "pid": event.pid,
        "process": event.process,
        "counts": not event.probe,
        "text": event.text,
    }
