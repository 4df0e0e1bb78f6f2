"""Launch commands from the settings of a host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opsctl.inventory import SglangSettings
from opsctl.modules import server_kinds
from opsctl.modules.server_kinds.base import ServerArgs, launch_text, words_in
from opsctl.sglang.server.command import with_drafter, words
from opsctl.wire.command_line import DRAFTER, value
from tests.modules.conftest import site

TEMPLATES = Path(__file__).parents[2] / "templates"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"launch": "sglang serve --model-path '/m m'"}, ["sglang", "serve", "--model-path", "/m m"]),
        ({"launch": ["python", "-m", "x", "--tp", 8]}, ["python", "-m", "x", "--tp", "8"]),
        ({"launch": None}, None),
        (
            {
                "launch": {"tp": 4, "enable_metrics": True, "disable-cuda-graph": False, "mem-fraction-static": 0.85},
                "environment": "/opt/venv/",
                "model_path": "/models/k",
                "tp": 8,
                "port": 30000,
                "bind": "127.0.0.1",
            },
            [
                "/opt/venv/bin/python",
                "-m",
                "sglang.launch_server",
                *["--tp", "4", "--enable-metrics", "--mem-fraction-static", "0.85"],
                *["--model-path", "/models/k", "--host", "127.0.0.1", "--port", "30000"],
            ],
        ),
    ],
)
def test_words(settings: dict[str, Any], expected: list[str] | None) -> None:
    assert words(SglangSettings.model_validate(settings)) == expected


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            ["s", "--speculative-draft-model-path", "/a", "--tp", "8"],
            ["s", "--speculative-draft-model-path", "/b", "--tp", "8"],
        ),
        (["s", "--speculative-draft-model=/a", "x"], ["s", "--speculative-draft-model-path", "/b", "x"]),
        (
            ["s", "--speculative-algorithm=EAGLE3"],
            ["s", "--speculative-algorithm=EAGLE3", "--speculative-draft-model-path", "/b"],
        ),
        (["s"], ["s", "--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/b"]),
    ],
)
def test_another_draft_model(argv: list[str], expected: list[str]) -> None:
    assert with_drafter(argv, "/b") == expected
    assert value(expected, DRAFTER) == "/b"
    assert with_drafter(expected, "/b") == expected


def test_of_several_draft_models_the_last_counts() -> None:
    assert value(["s", "--speculative-draft-model=/a", "--speculative-draft-model-path", "/b c"], DRAFTER) == "/b c"


def test_a_launch_file_edited_by_hand_does_not_end_the_plan() -> None:
    assert words_in(b"exec s --speculative-draft-model-path '/a") == []


def test_the_launch_file_gives_every_word_exactly(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "import sys, os; print(sys.argv[1:], os.environ['A'], os.getcwd())"]
    argv += ["--a", 'it\'s $HOME `id` \\ "x"', "--json", '{"k": [1, "ü"]}', "", "--last"]
    settings = {"sglang": {"launch": argv, "env": {"A": "b c'd"}, "checkout": str(tmp_path), "log": "/var/log/x"}}
    here = site(settings, TEMPLATES)
    script = tmp_path / "launch.sh"
    script.write_text(launch_text(here, server_kinds.of(ServerArgs(), here).server, argv))
    assert words_in(script.read_bytes())[-len(argv) :] == argv
    said = subprocess.run(["/bin/sh", str(script)], capture_output=True, text=True, check=True).stdout
    assert said == f"{argv[3:]} b c'd {tmp_path}\n"
