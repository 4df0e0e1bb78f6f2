"""Health reports for people and for CI."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from opsctl.gpu.judge import HostReport, Result
from opsctl.gpu.model import KernelEvent, Verdict
from opsctl.report import junit
from opsctl.text import one_line, printable

_COLOUR = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "bright_black"}


def show(reports: Sequence[HostReport], *, verbose: bool = False) -> None:
    """One block per host, worst first; a fleet gets one line per host before the blocks of those that are not fit."""
    ordered = sorted(reports, key=lambda r: -r.verdict.rank)
    if len(ordered) > 1:
        width = max(len(r.host) for r in ordered)
        for report in ordered:
            typer.echo(f"{_word(report.verdict)} {printable(report.host):<{width}}  {summary(report)}")
        typer.echo()
    for report in ordered:
        if len(ordered) == 1 or verbose or report.verdict.rank > 1:
            _block(report, verbose)


def summary(report: HostReport) -> str:
    """The faults in a few words, or how much was answered."""
    faults = [r for r in report.results if r.verdict.rank > 1]
    if not faults:
        return _counts(report)
    names = list(dict.fromkeys(r.check for r in sorted(faults, key=lambda r: -r.verdict.rank)))
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def changes(before: Sequence[HostReport], after: Sequence[HostReport]) -> list[str]:
    """One line per check whose verdict differs from the last look."""
    lines = []
    for report in after:
        last = next((r for r in before if r.host == report.host), None)
        if last is None:
            continue
        old, new = last.by_check, report.by_check
        lines += [
            f"changed {printable(report.host)} {check}: {old[check].verdict.value} → {result.verdict.value}  "
            f"{_subject(result)}{one_line(result.found.evidence)}"
            for check, result in new.items()
            if check in old and old[check].verdict is not result.verdict
        ]
    return lines


def write_junit(path: Path, reports: Iterable[HostReport]) -> None:
    junit.write(path, "opsctl health", (case for report in reports for case in cases(report)))


def cases(report: HostReport) -> list[junit.Case]:
    """One case per check: failed by a failure; a warning passes with its text."""
    by_check: dict[str, list[Result]] = {}
    for result in report.results:
        by_check.setdefault(result.check, []).append(result)
    return [_case(report.host, check, results) for check, results in by_check.items()]


def _case(host: str, check: str, results: list[Result]) -> junit.Case:
    worst = max(results, key=lambda r: r.verdict.rank)
    told = "\n".join(f"{r.verdict.value}: {_subject(r)}{r.found.evidence}" for r in results)
    detail = f"{told}\n{worst.remedy}" if worst.remedy else told
    if worst.verdict is Verdict.FAIL:
        return junit.Case(host, check, "failed", worst.found.evidence, detail)
    if worst.verdict is Verdict.SKIP:
        return junit.Case(host, check, "skipped", worst.found.evidence)
    return junit.Case(host, check, "passed", told if worst.verdict is Verdict.WARN else "")


def _block(report: HostReport, verbose: bool) -> None:
    typer.echo(f"{_word(report.verdict)} {printable(report.host)}: {_counts(report)}")
    shown = [r for r in report.results if verbose or r.verdict.rank > 1]
    width = max((len(r.check) for r in shown), default=0)
    told: set[str] = set()
    for result in sorted(shown, key=lambda r: -r.verdict.rank):
        typer.echo(
            f"  {_word(result.verdict)} {result.check:<{width}}  "
            f"{_subject(result)}{one_line(result.found.evidence, 300)}"
        )
        if result.remedy and result.remedy not in told:
            told.add(result.remedy)
            command = f"  [{result.command}]" if result.command else ""
            typer.echo(f"  {'':<4} {'':<{width}}  → {result.remedy}{command}")
    _incidents(report)


def _incidents(report: HostReport) -> None:
    """What the kernel reported, in its order: the first line of each kind and device tells what led to what."""
    first: dict[tuple[object, ...], KernelEvent] = {}
    for event in report.kernel:
        if event.severity in ("fail", "warn"):
            first.setdefault((event.kind, event.xid, event.bdf), event)
    if len(first) > 1:
        typer.echo("  kernel log, in order:")
        for event in list(first.values())[:12]:
            typer.echo(f"    {printable(event.time or '')}  {one_line(event.text, 160)}")


def _subject(result: Result) -> str:
    return f"{printable(str(result.found.gpu))}: " if result.found.gpu else ""


def _word(verdict: Verdict) -> str:
    return typer.style(f"{verdict.value.upper():<4}", fg=_COLOUR[verdict], bold=verdict is Verdict.FAIL)


def _counts(report: HostReport) -> str:
    by_verdict = Counter(r.verdict for r in report.by_check.values())
    words = {Verdict.FAIL: "failed", Verdict.WARN: "warned", Verdict.PASS: "passed", Verdict.SKIP: "not answerable"}
    return ", ".join(f"{by_verdict[v]} {words[v]}" for v in words if by_verdict[v])
