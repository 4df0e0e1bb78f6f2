"""Whatever a colleague's file holds, it is judged or refused within bounds."""

from __future__ import annotations

import contextlib

import pytest

from opsctl.errors import Unreadable
from opsctl.gpu.read import capture, klog

# Each makes a pattern with a free start try again from every character, or a parser go as deep as the file is long.
PIECES = ["x", "0", "-", "a:", "|", "[", '{"a":', "0000:", "x[", "NVRM: ", "task a", "uuid,name,", '{"MESSAGE":[']


@pytest.mark.parametrize("piece", PIECES)
def test_a_line_without_end_is_read_in_no_time(piece: str) -> None:
    # Quadratic work on these would take hours and be killed with the run; linear work takes a moment.
    with contextlib.suppress(Unreadable):
        capture.read(piece * (400_000 // len(piece)), "file")


def test_a_number_without_end_is_refused() -> None:
    with pytest.raises(Unreadable):
        capture.read("MemTotal: " + "9" * 5000 + " kB\nMemAvailable: 1 kB\n", "file")


def test_a_journal_record_that_nests_too_deep_is_text() -> None:
    assert klog.read('{"MESSAGE":' + "[" * 20_000 + "\n").events == ()


@pytest.mark.parametrize("front", ["", "nvidia 0000:01:00.0: "])
def test_long_lines_keep_what_their_beginning_says(front: str) -> None:
    line = f"[  12.5] {front}AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x1] " + "x" * 100_000
    assert [event.kind for event in klog.read(line).events] == ["iommu"]
