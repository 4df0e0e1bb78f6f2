"""The tutorial, followed to the letter: every command in its order, on a practice host of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.practice.host import PracticeHost, practice_host
from tests.docs import pages

TUTORIAL = pages.ROOT / "docs/tutorial/first-deploy.md"


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[PracticeHost]:
    with practice_host(tmp_path / "practice") as host:
        yield host


def test_the_tutorial(fresh: PracticeHost) -> None:
    first, *lines = pages.commands(TUTORIAL)
    assert first.words == ("practice", "host", "./practice")  # it is up already
    environment = {**os.environ, "XDG_STATE_HOME": f"{fresh.root}/state", "XDG_CACHE_HOME": f"{fresh.root}/cache"}
    told: dict[str, str] = {}
    for line in lines:
        words = [str(fresh.port) if word == "PORT" else word for word in line.words]
        done = subprocess.run(
            [sys.executable, "-m", "opsctl", *words], cwd=fresh.root, env=environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode in line.ends, f"{line}\nended with {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        told[" ".join(line.words)] = done.stdout
    # What the text promises.
    assert "set_eagle3_layers_to_capture" in told["drafter check drafters/first --host practice"]
    assert "accept_length 1 < " in told["deploy drafter drafters/silent --name eagle3"]
    assert "rolled-back" in told["history --host practice"]
    report = (fresh.root / "report.html").read_text()
    assert "<svg" in report
    assert "acceptance length 1.00" in report
