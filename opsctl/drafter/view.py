"""A judgement as lines for people: verdict first, then what was found, what will be seen, and what to do."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterator, Sequence

from opsctl.drafter.case import Case
from opsctl.drafter.judge import Judgement
from opsctl.drafter.verdict import SEEN, Remark, Verdict
from opsctl.drafter.versions import Version
from opsctl.text import one_line, printable, size

COLOURS = {
    Verdict.OK: "green",
    Verdict.NOTE: "green",
    Verdict.NOT_JUDGED: "yellow",
    Verdict.DEGRADED: "yellow",
    Verdict.SILENT_GARBAGE: "red",
    Verdict.CUDA_ERROR: "red",
    Verdict.RUNTIME_ERROR: "red",
    Verdict.LOAD_ERROR: "red",
    Verdict.NEEDS_CONVERSION: "yellow",
    Verdict.UNSUPPORTED: "red",
}
_MARK = {Verdict.NOT_JUDGED: "?"}


def lines(judgement: Judgement) -> Iterator[tuple[str, Verdict | None]]:
    """Lines to print, each with the verdict that colours it."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 120)
    case = judgement.case
    yield one_line(case.folder.path, width), None
    yield f"  {_contents(judgement)}", None
    if case.target is not None and case.text is not None:
        yield f"  {_target(case)}", None
    yield "", None
    yield from _verdict(judgement)
    # What is wrong with the drafter first, then what is wrong with the server.
    grave = sorted((f for f in judgement.findings if f.verdict is not Verdict.NOTE), key=lambda f: not f.in_outcome)
    for finding in grave:
        yield "", None
        yield from _finding(finding, judgement.versions, width)
    notes = [f for f in judgement.findings if f.verdict is Verdict.NOTE]
    if notes:
        yield "", None
        yield "  notes", None
        for note in notes:
            when = (
                ""
                if len(note.versions) == len(judgement.versions)
                else f" ({spans(note.versions, judgement.versions)})"
            )
            remedy = f" → {note.remedy}" if note.remedy else ""
            text = f"{printable(note.subject)}: {printable(note.detail)}{printable(remedy)}{when}"
            yield from ((line, None) for line in _wrapped(text, width, "    ", first="  · "))


def _contents(judgement: Judgement) -> str:
    folder = judgement.case.folder
    names = {c.file for c in folder.containers}
    total = sum(f.size for f in folder.files if f.name in names)
    count = sum(len(c.tensors) for c in folder.loaded())
    files = f"{len(names)} weight file{'s' if len(names) != 1 else ''}"
    return f"{judgement.producer} · {files}, {size(total)}, {count} tensors · {folder.digest[:29]}"


def _target(case: Case) -> str:
    assert case.target is not None and case.text is not None
    text, serving = case.text, case.serving
    name = one_line(case.target.architecture or "target", 60)
    context = serving.context_length or text.context_length(reads_parameters=True)
    return (
        f"for {name}: {text.layers} layers, hidden {text.hidden}, vocabulary {text.vocab}, {text.dtype}"
        f" · tp {serving.tp} · context {context}"
    )


def _verdict(judgement: Judgement) -> Iterator[tuple[str, Verdict | None]]:
    if judgement.unreadable:
        yield "✗ not readable or hostile: nothing of it was judged, nothing should load it", Verdict.LOAD_ERROR
        return
    groups: dict[Verdict, list[Version]] = {}
    for version, verdict in judgement.outcome.items():
        groups.setdefault(verdict, []).append(version)
    for verdict, found in sorted(groups.items(), key=lambda item: item[0].rank):
        mark = "✓" if verdict in (Verdict.OK, Verdict.NOTE) else _MARK.get(verdict, "!" if verdict.serves else "✗")
        yield f"{mark} {verdict.value} on {spans(found, judgement.versions)}", verdict
        if mark != "✓":
            yield f"    served anyway: {SEEN[verdict]}", None
    blocked = {v for f in judgement.findings if not f.in_outcome and not f.verdict.serves for v in f.versions}
    if blocked:
        where = spans(list(blocked), judgement.versions)
        yield f"✗ but the target has no EAGLE-3 on {where}, whatever the drafter", Verdict.LOAD_ERROR


def _finding(finding: Remark, versions: Sequence[Version], width: int) -> Iterator[tuple[str, Verdict | None]]:
    yield f"  {finding.verdict.value}  {one_line(finding.subject, 80)}  [{finding.check}]", finding.verdict
    for line in _wrapped(printable(finding.detail), width, "      "):
        yield line, None
    if finding.remedy:
        for line in _wrapped(printable(finding.remedy), width, "        ", first="      → "):
            yield line, None
    if len(finding.versions) != len(versions):
        yield f"      on {spans(finding.versions, versions)}", None


def spans(found: Sequence[Version], of: Sequence[Version]) -> str:
    """Versions as ranges of the list they were asked in: `0.5.9 to 0.5.11, 0.5.18`."""
    if len(found) == len(of):
        return "every version checked" if len(of) > 1 else f"SGLang {of[0]}"
    order = {version: i for i, version in enumerate(of)}
    runs: list[list[Version]] = []
    for version in sorted(found, key=lambda item: order[item]):
        if runs and order[runs[-1][-1]] + 1 == order[version]:
            runs[-1].append(version)
        else:
            runs.append([version])
    return "SGLang " + ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


def _wrapped(text: str, width: int, indent: str, first: str | None = None) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent=indent if first is None else first, subsequent_indent=indent, break_on_hyphens=False
    )
