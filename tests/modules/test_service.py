"""Units of systemd, against a stand-in systemctl that keeps its state in a folder and notes what it was told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from opsctl.agent import service
from opsctl.agent.protocol import AgentError
from tests.modules.conftest import InProcess, Play

STAND_IN = f"""#!{sys.executable}
import json, os, sys, uuid
from pathlib import Path
store = Path(__file__).with_name("units.json")
units = json.loads(store.read_text())
words = [w for w in sys.argv[1:] if not w.startswith("-")]
action, unit = words[0], units.setdefault(words[-1], {{"LoadState": "not-found", "ActiveState": "inactive"}})
if action == "show":
    print("\\n".join(f"{{k}}={{v}}" for k, v in unit.items()))
    sys.exit(0)
with open(store.with_name("told"), "a") as told:
    told.write(" ".join(words) + "\\n")
if unit.get("broken") and action in ("start", "restart"):
    print("Job for x.service failed because the control process exited with error code.", file=sys.stderr)
    sys.exit(1)
if action in ("start", "restart"):
    unit.update(ActiveState="active", InvocationID=uuid.uuid4().hex)
if action == "stop":
    unit.update(ActiveState="inactive", InvocationID="")
if action in ("enable", "disable"):
    unit["UnitFileState"] = action + "d"
if action == "daemon-reload":
    for each in units.values():
        each["NeedDaemonReload"] = "no"
store.write_text(json.dumps(units))
"""

RUNNING = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "UnitFileState": "disabled",
    "NeedDaemonReload": "no",
    "InvocationID": "first",
}


class Systemd:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def units(self, **units: dict[str, str]) -> None:
        named = {f"{name}.service": state for name, state in units.items()}
        (self.folder / "units.json").write_text(json.dumps(named))

    def told(self) -> list[str]:
        path = self.folder / "told"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "systemctl").write_text(STAND_IN)
    (folder / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return Systemd(folder)


def test_a_restart_is_taken_back_by_stopping_first_and_starting_last(systemd: Systemd, play: Play, top: Path) -> None:
    systemd.units(sglang={**RUNNING, "NeedDaemonReload": "yes"})
    play.run("copy", content="new", dest=str(top / "sglang.service"))
    play.run("service", name="sglang", state="restarted", enabled=True)
    assert systemd.told() == ["daemon-reload", "enable sglang.service", "restart sglang.service"]
    play.rollback()
    play.rollback()  # a second time: nothing more to do
    assert systemd.told()[3:] == [
        "stop sglang.service",
        "disable sglang.service",
        "daemon-reload",
        "start sglang.service",
    ]
    assert not (top / "sglang.service").exists()


def test_a_start_is_taken_back_by_a_stop_alone(systemd: Systemd, play: Play) -> None:
    systemd.units(sglang={**RUNNING, "ActiveState": "inactive", "InvocationID": ""})
    play.run("service", name="sglang", state="started")
    assert play.run("service", name="sglang", state="started")["changed"] is False
    play.rollback()
    assert systemd.told() == ["start sglang.service", "stop sglang.service"]


def test_a_stop_is_taken_back_by_a_start(systemd: Systemd, play: Play) -> None:
    systemd.units(sglang=RUNNING)
    play.run("service", name="sglang", state="stopped")
    play.rollback()
    play.rollback()
    assert systemd.told() == ["stop sglang.service", "start sglang.service"]


def test_a_failed_action_is_told_with_what_systemd_said(systemd: Systemd, play: Play) -> None:
    systemd.units(sglang={**RUNNING, "ActiveState": "failed", "broken": "yes"})
    with pytest.raises(AgentError, match=r"systemctl start sglang\.service: exit code 1: Job for x\.service failed"):
        play.run("service", name="sglang", state="started")


def test_a_unit_that_changed_since_is_a_conflict(systemd: Systemd, play: Play) -> None:
    systemd.units(sglang=RUNNING)
    _, _, _, change = play.plan("service", name="sglang", state="stopped")
    assert change is not None
    systemd.units(sglang={**RUNNING, "ActiveState": "failed"})
    with pytest.raises(AgentError, match="ActiveState is failed, not active") as caught:
        service.change(InProcess(blobs=play.folder), **change.calls[0].args)
    assert caught.value.kind == "conflict"
    assert systemd.told() == []


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "this host has no systemctl"),
        ("echo 'System has not been booted with systemd as init system.' >&2; exit 1", "systemd does not run"),
    ],
)
def test_a_host_without_systemd_says_so(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, script: str | None, message: str
) -> None:
    (systemd.folder / "systemctl").unlink()
    if script is not None:
        (systemd.folder / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
        (systemd.folder / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", str(systemd.folder))
    with pytest.raises(AgentError, match=message) as caught:
        service.show(InProcess(), "sglang.service")
    assert caught.value.kind == "missing-tool"
