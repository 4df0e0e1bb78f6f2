"""Options that the params of a playbook become."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from opsctl import localfiles
from opsctl.cli.main import run
from opsctl.cli.options import As, Asked, runs
from opsctl.errors import Exit
from opsctl.secret import Secret

OWN = """\
- hosts: all
  params: {ready_timeout: {type: duration, default: 1s}}
  tasks:
    - debug: {msg: "mine, {{ ready_timeout }} s"}
"""
EVERY_TYPE = """\
- hosts: all
  params:
    first: {type: folder, help: What it is about.}
    text: {help: A text.}
    words: {type: list, default: []}
    often: {type: int, default: 3}
    share: {type: float, default: 0.5}
    really: {type: bool, default: false}
    kind: {default: a, choices: [a, b]}
    wait: {type: duration, default: 20m}
    token: {type: secret, default: null}
    name: {default: "{{ first | basename }}"}
"""


def test_a_projects_own_playbook_is_what_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPSCTL_RECORDS", str(tmp_path / "records"))
    Path("inventory.yaml").write_text(f"hosts: {{box: {{connection: local, state_dir: {tmp_path / 'state'}}}}}\n")
    Path("playbooks").mkdir()
    Path("playbooks/start-server.yaml").write_text(OWN)
    assert run(["server", "start", "--ready-timeout", "2m"]) == Exit.DONE
    assert "mine, 120" in capfd.readouterr().out
    assert run(["server", "start"]) == Exit.DONE
    assert "mine, 1" in capfd.readouterr().out
    assert run(["server", "start", "--adopt"]) == Exit.USAGE
    assert "adopt" in capfd.readouterr().err


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shipped playbook with a param of every type."""
    (tmp_path / "shipped/playbooks").mkdir(parents=True)
    (tmp_path / "shipped/playbooks/made.yaml").write_text(EVERY_TYPE)
    monkeypatch.setattr(localfiles, "_PACKAGE", tmp_path)
    monkeypatch.setenv("TOKEN_OF_A_TEST", "s3cret-of-a-test")
    return tmp_path


def test_params_are_options_of_their_type(shipped: Path) -> None:
    said: list[Asked] = []
    app = typer.Typer()

    @app.command()
    @runs("made", {"words": As("--word", "WORD"), "often": As(min=1)}, hidden=("kind",))
    def command(asked: Asked, more: bool = False) -> int:
        """Do it."""
        said.append(asked)
        return more

    call = CliRunner().invoke
    assert call(app, ["here", "b"]).exit_code == 0
    assert said[-1].given == {"first": "here", "text": "b"}  # the playbook knows the defaults
    words = ["--word", "x", "--word", "y", "--often", "2", "--share", "1", "--really", "--wait", "5s", "--name", "n"]
    assert call(app, ["here", "b", *words, "--token", "!env TOKEN_OF_A_TEST", "--more", "--yes"]).exit_code == 0
    token = said[-1].given.pop("token")
    assert isinstance(token, Secret)
    assert token.reveal() == "s3cret-of-a-test"
    assert said[-1].given == {
        "first": "here", "text": "b", "words": ["x", "y"], "often": 2, "share": 1.0, "really": True, "wait": "5s",
        "name": "n",
    }  # fmt: skip
    assert said[-1].yes
    for wrong in (["--often", "0"], ["--kind", "a"], ["--share", "much"], ["--nothing"]):
        assert call(app, ["here", "b", *wrong]).exit_code == Exit.USAGE
    shown = call(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "What it is about." in shown
    assert "[default: 20m]" in shown
    assert "basename" not in shown
