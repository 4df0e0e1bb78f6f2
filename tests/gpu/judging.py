"""Judge a text as `opsctl health --capture` does."""

from __future__ import annotations

from pathlib import Path

from opsctl.gpu.judge import HostReport, judge
from opsctl.gpu.read import capture
from opsctl.gpu.settings import Settings

DATA = Path(__file__).parent.parent / "data" / "gpu"


def report(text: str, settings: Settings | None = None) -> HostReport:
    evidence = capture.read(text, "text")
    assert evidence is not None, "the text was not recognised"
    return judge("host", evidence, settings or Settings())


def verdicts(text: str, settings: Settings | None = None) -> dict[str, str]:
    """check -> its worst verdict."""
    found: dict[str, str] = {}
    for result in sorted(report(text, settings).results, key=lambda r: r.verdict.rank):
        found[result.check] = result.verdict.value
    return found


def text_of(name: str) -> str:
    return (DATA / name).read_text(errors="replace")
