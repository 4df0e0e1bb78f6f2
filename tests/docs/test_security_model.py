"""The figures of the explanations are those of the code."""

from __future__ import annotations

import inspect
from pathlib import Path

from opsctl.agent.core import journal
from opsctl.wire import limits, protocol

EXPLANATIONS = Path(__file__).parents[2] / "docs" / "explanation"


def shown(name: str) -> str:
    return " ".join((EXPLANATIONS / name).read_text(encoding="utf-8").split())


def test_how_much_is_taken_of_hosts_and_servers_is_as_the_page_says() -> None:
    page = shown("security-model.md")
    assert f"takes {limits.OVERHEAD >> 20} MiB of headers, {limits.ANSWER >> 20} MiB of content" in page
    assert f"({limits.STREAM >> 30} GiB of a stream, {limits.EVENT >> 20} MiB of one event)" in page
    assert f"{limits.SECONDS:.0f} seconds and {limits.DEPTH} levels of JSON" in page
    assert f"frames of {protocol.MAX_BODY >> 20} MiB at most" in page


def test_as_many_journals_stay_as_the_pages_say() -> None:
    kept = inspect.signature(journal.finish).parameters["keep"].default
    assert f"the newest {kept} stay" in shown("security-model.md")
    assert f"that of the last {kept} runs" in shown("how-rollback-works.md")
