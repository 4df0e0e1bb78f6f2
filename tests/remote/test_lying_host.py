"""Hosts whose agent answers nonsense: every command still ends in words, and never as a bug of ours."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from opsctl.cli.main import run as opsctl
from opsctl.errors import Exit, RemoteError
from opsctl.modules.line import Line
from opsctl.wire.protocol import Call
from tests.conftest import MakeHost
from tests.engine.world import Project

LIAR = Path(__file__).with_name("liar.py")
REPOSITORY = Path(__file__).parents[2]
PLAY = """\
hosts: all
on_failure: rollback
tasks:
  - {name: facts, facts: {}, register: facts}
  - {name: copy, copy: {dest: OUT/a, content: "one\\n"}}
  - {name: line, line: {path: OUT/a, line: two}}
  - {name: folder, file: {path: OUT/d, state: directory, mode: "0700"}}
  - {name: link, file: {path: OUT/l, state: link, target: OUT/a}}
  - {name: command, command: {cmd: cat OUT/a, creates: OUT/b}}
  - {name: read, shell: {cmd: "echo {{ facts.host.name | default('?') }}", read_only: true}, register: said}
  - {name: wait, wait_for: {path: OUT/a, timeout: 5s}}
  - {name: gone, file: {path: OUT/d, state: absent}}
"""
SUPERVISED = """\
hosts: all
on_failure: rollback
tasks:
  - {name: switch, copy: {dest: OUT/s, content: new}, supervise: {confirm_within: 5s}}
"""
COMMANDS = (
    *("run play.yaml -y", "run play.yaml --check", "run supervised.yaml -y", "history --host here", "health"),
    *("rollback -y --host here", "inventory check", "clean --json", "server status", "logs summary"),
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("OPSCTL_RECORDS", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    project.write(PLAY.replace("OUT", str(project.out)))
    project.write(SUPERVISED.replace("OUT", str(project.out)), "supervised.yaml")
    return project


def lying(project: Project, seed: int, call: str = "*") -> None:
    """Have the host `here` change its answers."""
    python = project.folder / "python"
    words = shlex.join([sys.executable, str(LIAR), str(seed), call])
    python.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {words} "$@"\n')
    python.chmod(0o755)
    (project.folder / "inventory.yaml").write_text(
        json.dumps(
            {
                "hosts": {
                    "here": {
                        "connection": "local",
                        "python": str(python),
                        "state_dir": str(project.folder / f"state-{seed}"),
                        "sglang": {"port": 39999},
                    }
                }
            }
        )
    )


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("seed", range(4))
def test_no_answer_of_a_host_is_a_bug_of_ours(
    project: Project, capfd: pytest.CaptureFixture[str], command: str, seed: int
) -> None:
    lying(project, seed)
    code = opsctl(command.split())
    said = capfd.readouterr()
    assert code not in (Exit.BUG, Exit.USAGE), said.err
    assert "Traceback" not in said.err + said.out


def test_an_answer_without_what_it_must_have_is_told(project: Project, capfd: pytest.CaptureFixture[str]) -> None:
    lying(project, 1, "history.list")
    assert opsctl(["history", "--host", "here"]) == Exit.FAILED
    assert "here: its answer was not understood" in capfd.readouterr().err


@pytest.mark.parametrize("seed", [0, 1, 5, 6])
def test_an_answer_of_another_shape_is_told_as_it_comes_in(project: Project, make_host: MakeHost, seed: int) -> None:
    lying(project, seed, "filelook.read")
    host = make_host(python=str(project.folder / "python"))
    with pytest.raises(RemoteError, match="the answer to filelook") as caught:
        host.call(Call("filelook.read", {"path": "/etc/hosts"}))
    assert caught.value.kind == "not-understood"


def test_a_bug_of_ours_is_told_as_one_and_leaves_the_host_in_order(
    project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("ours")

    project.hosts("here")
    monkeypatch.setattr(Line, "plan", broken)
    assert opsctl(["run", "play.yaml", "-y"]) == Exit.BUG
    said = capfd.readouterr().err
    assert "KeyError: 'ours'" in said
    assert "bug in opsctl" in said
    assert opsctl(["history", "--host", "here", "--json"]) == Exit.DONE
    (run,) = json.loads(capfd.readouterr().out)["runs"]
    assert run["outcome"] == "failed"
    assert "a fault in opsctl" in run["why"]
