"""Units of systemd, against a stand-in systemctl that keeps its state in a folder and notes what it was told."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.process import service
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess, Play

STAND_IN = f"""#!{sys.executable}
import json, os, sys, uuid
from pathlib import Path
store = Path(__file__).with_name("units.json")
units = json.loads(store.read_text())
words = [w for w in sys.argv[1:] if not w.startswith("-")]
action, unit = words[0], units.setdefault(words[-1], {{"LoadState": "not-found", "ActiveState": "inactive"}})
if action == "show":
    if unit.get("later"):
        unit.update(unit["later"].pop(0))
        store.write_text(json.dumps(units))
    print("\\n".join(f"{{k}}={{v}}" for k, v in unit.items()))
    sys.exit(0)
with open(store.with_name("told"), "a") as told:
    told.write(" ".join(words) + "\\n")
if unit.get("broken") and action in ("start", "restart"):
    print("Job for x.service failed because the control process exited with error code.", file=sys.stderr)
    sys.exit(1)
if action in ("start", "restart"):
    unit.update(ActiveState="active", SubState="running", InvocationID=uuid.uuid4().hex, later=unit.pop("started", []))
if action == "stop":
    unit.update(ActiveState=unit.get("stopped", "inactive"), InvocationID="")
if action in ("enable", "disable"):
    unit["UnitFileState"] = unit.get("fixed", action + "d")
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
    monkeypatch.setattr(service, "LASTS", 0.0)  # two looks
    monkeypatch.setattr(service, "TICK", 0.0)
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


ACTIVE = {"ActiveState": "active", "MainPID": "7", "NRestarts": "0"}
ENDED = {"MainPID": "0", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "3", "InvocationID": "now"}


@pytest.mark.parametrize(
    ("unit", "looks", "says"),
    [
        ({}, [ACTIVE, ENDED | {"ActiveState": "failed"}], r"failed: exit code 3; the last it said: no such model"),
        (
            {},
            [ENDED | {"ActiveState": "activating", "SubState": "auto-restart"}],
            "exit code 3., and systemd starts",
        ),
        ({}, [ACTIVE, ACTIVE | {"MainPID": "9", "NRestarts": "1"}], "systemd starts it again: a crash loop"),
        ({}, [ENDED | {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0"}], "at once: exit code 0"),
        ({}, [{"ActiveState": "inactive", "ConditionResult": "no"}], "a condition in its file does not hold"),
        ({}, [{"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}], "failed: killed by signal 9"),
        ({"Type": "oneshot"}, [{"ActiveState": "failed", "Result": "timeout"}], "failed: timeout"),
        # And these are as they should be.
        ({}, [ACTIVE, ACTIVE], None),
        ({"Type": "notify"}, [{"ActiveState": "activating", "SubState": "start"}, ACTIVE, ACTIVE], None),
        ({"Type": "forking"}, [ACTIVE, ACTIVE | {"MainPID": "9"}, ACTIVE | {"MainPID": "9"}], None),
        ({"Type": "oneshot"}, [{"ActiveState": "inactive", "Result": "success"}], None),
        ({"Type": "oneshot", "RemainAfterExit": "yes"}, [{"ActiveState": "active", "MainPID": "0"}], None),
        ({}, [{"ActiveState": "active", "SubState": "waiting"}], None),  # a timer, a socket
    ],
)
def test_what_systemd_took_as_an_order_is_looked_at(
    systemd: Systemd, play: Play, unit: dict[str, str], looks: list[dict[str, str]], says: str | None
) -> None:
    said = systemd.folder / "journalctl"
    said.write_text('#!/bin/sh\ncase "$*" in *_SYSTEMD_INVOCATION_ID=now) printf "loading\nno such model\n";; esac\n')
    said.chmod(0o755)
    systemd.units(sglang={**RUNNING, **unit, "ActiveState": "inactive", "started": looks})
    if says is None:
        assert play.run("service", name="sglang", state="started")["changed"] is True
    else:
        with pytest.raises(AgentError, match=says):
            play.run("service", name="sglang", state="started")


def test_a_unit_in_a_crash_loop_is_not_taken_for_started(systemd: Systemd, play: Play) -> None:
    """Also at the moment at which it is up: a start that is young and not the first is watched."""
    later = str(time.monotonic_ns() // 1000 + 10**9)  # it stays young, however long this test takes
    young = {**RUNNING, **ACTIVE, "NRestarts": "4", "ExecMainStartTimestampMonotonic": later}
    systemd.units(sglang={**young, "later": [{}, {"SubState": "auto-restart", "ActiveState": "activating"}]})
    assert service.look(InProcess(), "sglang.service")["failing"] is not None
    between = {"ActiveState": "activating", "SubState": "auto-restart", "NRestarts": "4"}
    systemd.units(sglang=RUNNING | between | {"started": [ACTIVE, ENDED | {"ActiveState": "failed"}]})
    with pytest.raises(AgentError, match=r"sglang\.service failed: exit code 3"):
        play.run("service", name="sglang", state="started")
    assert systemd.told() == ["restart sglang.service"]
    old = {**young, "ExecMainStartTimestampMonotonic": "1"}
    systemd.units(sglang=old)
    assert play.run("service", name="sglang", state="started")["changed"] is False


@pytest.mark.parametrize(
    ("args", "unit", "says"),
    [
        ({"enabled": True}, {"fixed": "static"}, "is static after systemctl enable"),
        ({"state": "stopped"}, {"stopped": "active", "TriggeredBy": "s.socket"}, "again after its stop; .* s.socket"),
    ],
)
def test_an_order_without_effect_is_a_failure(
    systemd: Systemd, play: Play, args: dict[str, Any], unit: dict[str, str], says: str
) -> None:
    systemd.units(sglang=RUNNING | unit)
    with pytest.raises(AgentError, match=says):
        play.run("service", name="sglang", **args)


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
