"""The reference says everything: a new exit code, event, check, patch or option cannot be left out."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from opsctl.cli import doc as reference
from opsctl.cli.doc import manual, page
from opsctl.cli.main import COMMANDS
from opsctl.drafter.checks import CHECKS
from opsctl.engine import events
from opsctl.errors import Exit
from opsctl.gpu.checks.registry import checks
from opsctl.sglang.patches import ALL
from tests.commands import opsctl
from tests.docs.pages import ROOT


def text(topic: str) -> str:
    return "\n".join(page(topic))


def test_exit_codes() -> None:
    rows = text("exit-codes")
    for code in Exit:
        assert f"| {int(code)} | `{code.name.lower().replace('_', '-')}` | " in rows


def test_events() -> None:
    shown = text("events")
    assert "## task_ended" in shown
    assert shown.count("\n## ") == len({kind.__name__ for kind in events.Event.__subclasses__()})


def test_health_checks_and_patches() -> None:
    assert all(f"## {name}\n" in text("health-checks") for name in checks())
    assert all(f"## {patch.name}\n" in text("patches") for patch in ALL)


def test_every_command_has_a_place_and_every_option_its_meaning() -> None:
    shown, roff = text("commands"), manual()
    for words, command in reference.tree():
        assert command.help, f"{words} says nothing of itself"
        below = getattr(command, "commands", None)
        if not below:
            assert f"## {words}\n" in shown
            assert words.removeprefix("opsctl ") in roff
        for one in command.params:
            if one.opts[0].startswith("-"):
                assert getattr(one, "help", None), f"{words} {one.opts[0]} is not explained"
    assert {words.split()[1] for words, _ in reference.tree()} == set(COMMANDS)


def test_every_command_shows_an_example() -> None:
    assert [w for w, c in reference.tree() if "opsctl " not in (c.help or "")] == []


@pytest.mark.parametrize("topic", [*reference.PAGES, "play", "task", "host", "sglang", "man"])
def test_the_terminal_shows_it(topic: str) -> None:
    said = opsctl("doc", topic, folder=ROOT)
    assert (said.code, len(said.out) > 200) == (0, True), said.err
    assert said.out.isprintable() or not any(c in said.out for c in "\x1b\0")


def test_the_pages_and_schemas_in_the_repository_are_of_today() -> None:
    done = subprocess.run([sys.executable, "docs/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_of_drafter_checks_has_every_row() -> None:
    table = (ROOT / "docs/reference/drafter-checks.md").read_text()
    told = {int(n) for cell in re.findall(r"^\| ([\d, ]+) \|", table, re.M) for n in cell.split(",")}
    assert told == {row for check in CHECKS for row in check.rows if row}
