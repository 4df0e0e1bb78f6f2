"""Whether a target captures hidden states, by the width that the draft model of a real server receives."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import prove_capture
from kit.families import FAMILIES


@pytest.mark.parametrize(("name", "release", "captures"), [("Gemma3", "0.5.9", False), ("Qwen3-MoE", "0.5.23", True)])
def test_the_table_of_targets_holds_on_a_server(name: str, release: str, captures: bool, tmp_path: Path) -> None:
    (family,) = (family for family in FAMILIES if family.name == name)
    found = prove_capture.prove(family, release, tmp_path)
    assert (found.captures, found.agrees) == (captures, True)
