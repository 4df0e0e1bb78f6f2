"""A few cases of each campaign, the same ones each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns import campaign


def _short() -> list[object]:
    return [
        pytest.param(case, id=f"{name}: {case.name}")
        for name in campaign.names()
        for case in campaign.chosen(name, campaign.load(name).SHORT, seed=0)
    ]


@pytest.mark.parametrize("case", _short())
def test_a_promise_holds(case: campaign.Case, tmp_path: Path) -> None:
    case.hold(tmp_path)
