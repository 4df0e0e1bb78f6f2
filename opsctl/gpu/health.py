"""Whether a host is fit: look at it, compare with the last look, judge. A module and a verb both ask this."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from opsctl.errors import Place
from opsctl.findings import Finding, Level
from opsctl.gpu import state
from opsctl.gpu.checks import active
from opsctl.gpu.checks.registry import Check
from opsctl.gpu.judge import HostReport, Result, judge
from opsctl.gpu.model import Evidence, Verdict
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted
from opsctl.text import printable
from opsctl.wire.host import Host

_LEVELS: dict[Verdict, Level] = {
    Verdict.PASS: "passed", Verdict.WARN: "warning", Verdict.FAIL: "error", Verdict.SKIP: "skipped",
}  # fmt: skip


def look(host: Host, wanted: Wanted, *, load: bool = False) -> Evidence:
    """What can be seen of a host in one round trip. load: also load its GPUs with tests, where nothing uses them."""
    seen = gathered.look(lambda call: host.call(call, timeout=wanted.seconds), wanted)
    if not load:
        return seen
    refused = active.refusal(seen, wanted.settings)
    if refused is None and wanted.root != "/":
        refused = "the host is seen through another root: who uses its GPUs is not certain"
    if refused:
        return replace(seen, active=active.not_run(refused))
    gpus = max(len(reading.gpus) for reading in seen.readings)
    said = host.call(active.ask(wanted, gpus), timeout=active.longest(wanted)).result
    return replace(seen, active=active.runs(said))


def report(name: str, seen: Evidence, wanted: Wanted, checks: Iterable[Check] | None = None) -> HostReport:
    """The report of a look, compared with the last one at this host, which it replaces."""
    return judge(name, state.compared(name, seen), wanted.settings, checks)


Blame = Callable[[str, Result], Place | None]
"""Where the inventory says what the host with this name was judged by."""


def findings(reports: Iterable[HostReport], blame: Blame = lambda host, result: None) -> list[Finding]:
    """One finding per host and check, told by the worst of its results."""
    found = []
    for one in reports:
        by_check: dict[str, list[Result]] = {}
        for result in one.results:
            by_check.setdefault(result.check, []).append(result)
        found += [_finding(one.host, check, results, blame) for check, results in by_check.items()]
    return found


def _finding(host: str, check: str, results: list[Result], blame: Blame) -> Finding:
    worst = max(results, key=lambda r: r.verdict.rank)
    level = _LEVELS[worst.verdict]
    if worst.verdict.rank <= Verdict.PASS.rank:
        return Finding(check, level, worst.found.evidence if worst.verdict is Verdict.SKIP else "", where=host)
    told = "\n".join(f"{r.verdict.value}: {subject(r)}{r.found.evidence}" for r in results)
    message = f"{subject(worst)}{worst.found.evidence}"
    return Finding(check, level, message, blame(host, worst), worst.remedy or "", where=host, evidence=told)


def subject(result: Result) -> str:
    """The GPU that a result is about, as the beginning of a sentence; empty where it is about the host."""
    return f"{printable(str(result.found.gpu))}: " if result.found.gpu else ""
