"""Shortcuts for judging a built drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.drafter.case import Case, Serving
from opsctl.drafter.folder import open_folder
from opsctl.drafter.judge import Judgement, judge
from opsctl.drafter.settings import Settings
from opsctl.drafter.versions import parse_list
from tests.drafter.build import Drafter

Judge = Callable[..., Judgement]


@pytest.fixture
def judged(tmp_path: Path) -> Judge:
    """judged(drafter, versions="0.5.9", tp=8): write it, check it."""

    def run(made: Drafter | Path, versions: str = "0.5.9,0.5.12,0.5.23", **serving: int) -> Judgement:
        folder = made if isinstance(made, Path) else made.write(tmp_path / "drafter")
        target = Settings(made.target) if isinstance(made, Drafter) else None
        return judge(Case(open_folder(str(folder)), target, Serving(**serving)), parse_list(versions))

    return run
