"""Health reports for people."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence

import typer

from opsctl.gpu.health import subject
from opsctl.gpu.judge import HostReport, Result
from opsctl.gpu.model import KernelEvent, Verdict
from opsctl.text import few, one_line, printable

_NARROWEST = 40  # columns that a text gets at least
_FEW = 4  # unfit hosts of a fleet whose faults are told in full
_COLOUR = {Verdict.PASS: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red", Verdict.SKIP: "bright_black"}


def show(reports: Sequence[HostReport], *, verbose: bool = False, unreached: Sequence[tuple[str, str]] = ()) -> None:
    """One block per host, worst first. A fleet gets one line per host, and blocks only while those are few.

    unreached: hosts without a report, and why.
    """
    ordered = sorted(reports, key=_order)
    fleet = len(ordered) + len(unreached) > 1
    if fleet:
        _fleet(ordered, unreached)
    unfit = [r for r in ordered if r.verdict.rank > 1]
    told = ordered if verbose or not fleet else unfit if len(unfit) <= _FEW else []
    for report in told:
        if fleet:
            typer.echo()
        _block(report, verbose)
    if len(unfit) > len(told):
        typer.echo(f"\ndetails: --host {printable(unfit[0].host)}, or --verbose for all")


def _order(report: HostReport) -> tuple[int, int]:
    """Worst first; of two with the same verdict the one with more faults."""
    return -report.verdict.rank, -sum(r.verdict is report.verdict for r in report.by_check.values())


def _fleet(ordered: Sequence[HostReport], unreached: Sequence[tuple[str, str]]) -> None:
    """One line per host, then how many are how."""
    width = max(len(printable(name)) for name in [r.host for r in ordered] + [name for name, _ in unreached])
    for name, why in unreached:
        _row(typer.style("LOST", fg="red", bold=True), name, width, one_line(why, 100))
    for report in ordered:
        _row(_word(report.verdict), report.host, width, summary(report))
    counts = Counter(r.verdict for r in ordered)
    words = {Verdict.FAIL: "unfit", Verdict.WARN: "with warnings", Verdict.PASS: "fit", Verdict.SKIP: "not judged"}
    parts = [f"{len(unreached)} not reached"] if unreached else []
    parts += [f"{counts[verdict]} {word}" for verdict, word in words.items() if counts[verdict]]
    typer.echo(f"{len(ordered) + len(unreached)} hosts: {', '.join(parts)}")


def _row(word: str, name: str, width: int, text: str) -> None:
    first, *more = _lines(text, width + 7)
    typer.echo(f"{word} {printable(name):<{width}}  {first}")
    for line in more:
        typer.echo(" " * (width + 7) + line)


def summary(report: HostReport) -> str:
    """The worst fault and the names of the others; without faults, what the host has."""
    faults = sorted((r for r in report.results if r.verdict.rank > 1), key=lambda r: -r.verdict.rank)
    if not faults:
        return (printable(report.about) or _counts(report)) + _undecided(report)
    first, others = faults[0], list(dict.fromkeys(r.check for r in faults if r.check != faults[0].check))
    more = f"; also {few(others, 3)}" if others else ""
    return f"{first.check}: {subject(first)}{one_line(first.found.evidence, 90)}{more}"


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
            f"{subject(result)}{one_line(result.found.evidence)}"
            for check, result in new.items()
            if check in old and old[check].verdict is not result.verdict
        ]
    return lines


def _block(report: HostReport, verbose: bool) -> None:
    about = f"{printable(report.about)}; " if report.about else ""
    for i, line in enumerate(_lines(f"{printable(report.host)}: {about}{_counts(report)}{_undecided(report)}", 5)):
        typer.echo(f"     {line}" if i else f"{_word(report.verdict)} {line}")
    missing = report.undecided if report.verdict is Verdict.SKIP else ()
    shown = [
        r
        for r in report.results
        if verbose or r.verdict.rank > 1 or r.check.startswith("active.") or r.check in missing
    ]
    width = max((len(r.check) for r in shown), default=0)
    alike: dict[tuple[object, ...], list[Result]] = {}
    for result in sorted(shown, key=lambda r: -r.verdict.rank):
        alike.setdefault((result.verdict, result.check, result.found.evidence), []).append(result)
    told: set[str] = set()
    for results in alike.values():
        result = results[0]
        text = f"{subject(result)}{one_line(result.found.evidence, 300)}"
        if len(results) > 1:
            named = few([printable(str(r.found.gpu)) for r in results], 8)
            text = f"{one_line(result.found.evidence, 300)} on {len(results)} GPUs: {named}"
        margin = " " * (width + 9)
        first, *more = _lines(text, len(margin))
        typer.echo(f"  {_word(result.verdict)} {result.check:<{width}}  {first}")
        if result.remedy and result.remedy not in told:
            told.add(result.remedy)
            advice, *rest = _lines(result.remedy, len(margin) + 2)
            more += [f"→ {advice}", *(f"  {line}" for line in rest)]
            more += [f"  $ {result.command}"] if result.command else []  # whole, to be copied
        for line in more:
            typer.echo(margin + line)
    _incidents(report)


def _lines(text: str, margin: int) -> list[str]:
    """On a terminal the text in lines beside the margin; elsewhere one line, for grep."""
    if not sys.stdout.isatty():
        return [text]
    room = max(_NARROWEST, shutil.get_terminal_size().columns - margin)
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


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


def _word(verdict: Verdict) -> str:
    return typer.style(f"{verdict.value.upper():<4}", fg=_COLOUR[verdict], bold=verdict is Verdict.FAIL)


def _undecided(report: HostReport) -> str:
    """Which decisive checks have no answer: without them nobody can say that the host is fit."""
    if report.verdict is not Verdict.SKIP or not report.undecided:
        return ""
    return f"; not known whether it is fit: {', '.join(report.undecided)}"


def _counts(report: HostReport) -> str:
    by_verdict = Counter(r.verdict for r in report.by_check.values())
    words = {Verdict.FAIL: "failed", Verdict.WARN: "warning", Verdict.PASS: "passed", Verdict.SKIP: "not answerable"}
    return ", ".join(f"{by_verdict[v]} {words[v]}" for v in words if by_verdict[v])
