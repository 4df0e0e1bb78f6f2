"""A front end besides the command line: it imports verbs alone, gets values, and nothing is printed behind its back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opsctl import verbs
from opsctl.engine.events import Event, TaskEnded
from opsctl.errors import Exit, OpsctlError, UsageError
from opsctl.gpu.model import Verdict
from opsctl.practice.host import PracticeHost, practice_host
from opsctl.sglang.probe.measure import Plan
from opsctl.sglang.probe.prompts import built_in
from opsctl.verbs import diagnose, drafter, health, logs, patch, probe, runs, server
from opsctl.verbs.frontend import Done, Frontend
from opsctl.verbs.hosts import choose, choose_one


@pytest.fixture
def practice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PracticeHost]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "practice").mkdir()
    with practice_host(tmp_path / "practice") as host:
        yield host


@dataclass
class Assistant:
    """Keeps what it is told."""

    said: list[str] = field(default_factory=list)
    errors: list[OpsctlError] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    @property
    def front(self) -> Frontend:
        return Frontend(say=self.said.append, failed=self.errors.append)

    def runs(self, host: PracticeHost, name: str, **params: Any) -> Exit:
        options = runs.playbook(name, params, inventory=str(host.inventory))
        return runs.run(options, nullcontext(self.events.append), self.front)


def only(done: list[Done[Any]]) -> Any:
    (one,) = done
    assert one.error is None
    return one.value


def test_an_assistant_deploys_measures_and_takes_back(
    practice: PracticeHost, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inventory, assistant = str(practice.inventory), Assistant()
    hosts, front = choose(inventory, None), assistant.front
    (report,) = health.reports(health.look(hosts, front))
    assert report.host == "practice"
    assert report.verdict is not Verdict.FAIL
    assert only(patch.status(hosts, front=front)).report.exit_code is Exit.CHANGES
    assert assistant.runs(practice, "patch-sglang") is Exit.DONE
    assert only(patch.status(hosts, front=front)).report.exit_code is Exit.DONE

    folder = str(practice.drafter("first"))
    judgement, met = drafter.check(folder, drafter.Serving(host="practice"), inventory=inventory, front=front)
    assert met is not None
    assert judgement.exit_code == Exit.DONE
    assert assistant.runs(practice, "deploy-drafter", drafter=folder, max_tokens=16) is Exit.DONE
    assert {e.status for e in assistant.events if isinstance(e, TaskEnded)} <= {"ok", "changed", "ran", "skipped"}

    (running,) = (one for one in only(server.status(hosts, front=front)) if one.ours)
    assert running.ready
    plan = Plan(built_in(), max_tokens=16)
    measured = probe.probe(probe.Where(inventory=inventory, host="practice"), plan, front=front)
    assert measured is not None
    assert measured.probed.result["accept_length"]["mean"] > 1.5
    diagnosis = diagnose.diagnose(choose_one(inventory, None), diagnose.Asked(), front=front).diagnosis
    assert diagnosis.cause is None
    assert only(logs.summary(hosts, front)).starts

    (deploy, patched), _ = runs.history(inventory)
    assert (deploy.playbook, patched.playbook) == ("deploy-drafter", "patch-sglang")
    assert [past.run for past in only(runs.history_of(hosts, front=front))] == [deploy.run, patched.run]
    assert only(runs.rollback(deploy.run, inventory, front=front)).whole
    assert [one for one in only(server.status(hosts, front=front)) if one.ours] == []
    assert runs.history(inventory)[0][0].undone == ("practice",)
    assert assistant.errors == []
    assert capfd.readouterr().out == ""


def test_nobody_is_asked_where_nobody_is_there(practice: PracticeHost) -> None:
    with pytest.raises(UsageError, match="nobody can be asked"):
        Assistant().runs(practice, "stop-server")


def test_what_one_host_lacks_is_an_error_of_that_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text("hosts: {here: {connection: local}, gone: {address: 127.0.0.1, port: 9}}\n")
    done = server.status(choose(str(inventory), None))
    assert [(one.host.name, one.error is None) for one in done] == [("here", True), ("gone", False)]


def test_verbs_need_nothing_of_the_command_line() -> None:
    names = sorted(path.stem for path in Path(verbs.__file__).parent.glob("*.py"))
    code = f"import sys, importlib\nfor n in {names}: importlib.import_module('opsctl.verbs.' + n)\n"
    code += "print([m for m in sys.modules if m == 'typer' or m.startswith('opsctl.cli')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
