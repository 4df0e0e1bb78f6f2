"""The figures of the security model are those of the code."""

from __future__ import annotations

from pathlib import Path

from opsctl.agent import limits, protocol

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "security-model.md"


def test_how_much_is_taken_of_hosts_and_servers_is_as_the_page_says() -> None:
    page = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"takes {limits.OVERHEAD >> 20} MiB of headers, {limits.ANSWER >> 20} MiB of content" in page
    assert f"({limits.STREAM >> 30} GiB of a stream, {limits.EVENT >> 20} MiB of one event)" in page
    assert f"{limits.SECONDS:.0f} seconds and {limits.DEPTH} levels of JSON" in page
    assert f"frames of {protocol.MAX_BODY >> 20} MiB at most" in page
