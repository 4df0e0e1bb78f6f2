"""The playbook module gpu_health: what a play gets of a healthy and of an unfit host."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.gpu import gather as agent
from opsctl.errors import UsageError
from opsctl.modules.contract import Outcome, Site
from opsctl.modules.gpu_health import GpuHealth, GpuHealthArgs
from opsctl.wire.protocol import Call, Context, Reply
from tests.gpu.fakehost import FakeHost
from tests.gpu.judging import text_of

H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")


class LocalHost:
    """Calls the agent in this process, on a host made of files."""

    name = "here"

    def __init__(self, files: FakeHost) -> None:
        self._where = {"root": str(files.root), "path": str(files.bin)}

    def call(self, call: Call, **_: Any) -> Reply:
        assert call.name == "gpu.gather"
        return Reply(agent.gather(Context(), **{**call.args, **self._where}))


def _run(files: FakeHost, health: object = None, **args: Any) -> Outcome:
    site = Site("here", {"health": health}, None, None, None)  # type: ignore[arg-type]
    return GpuHealth().run(GpuHealthArgs(**args), LocalHost(files), site, lambda *_: None)  # type: ignore[arg-type]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHost:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "looks"))
    found = FakeHost(tmp_path)
    found.replay(H100)
    return found


def test_fit(host: FakeHost) -> None:
    found = _run(host, only=["gpu", "ecc"])
    assert found.failed is None
    assert found.measures == {"gpus": 8, "failed": 0, "warned": 0}


def test_unfit_by_the_inventory(host: FakeHost) -> None:
    found = _run(host, {"profile": {"gpus": 9}}, only=["gpu.count"])
    assert found.failed == "gpu.count 8 listed, 9 expected"
    assert found.hint
    assert found.measures["failed"] == 1


def test_warnings_fail_only_when_asked(host: FakeHost) -> None:
    health = {"thresholds": {"temp.headroom.warn": 60}}
    assert _run(host, health, only=["gpu.temp"]).failed is None
    assert "headroom" in (_run(host, health, only=["gpu.temp"], fail_on="warn").failed or "")


def test_counters_are_compared_with_the_last_look_at_the_same_machine(host: FakeHost) -> None:
    """As in the command: totals say nothing until a second look."""

    def look(machine: str, replays: int) -> tuple[str, str]:
        host.write("etc/machine-id", machine)
        host.replay(re.sub(r"(<replay_counter>)\d+", rf"\g<1>{replays}", H100, count=1))
        (check,) = _run(host, only=["pcie.errors"]).values["checks"]
        return check["verdict"], check["evidence"]

    assert look("a", 0)[0] == "skip"
    verdict, evidence = look("a", 10**6)
    assert verdict == "warn"
    assert "1000000 new replays" in evidence
    assert look("b", 10**6)[0] == "skip"  # another machine of that name


@pytest.mark.parametrize("health", [7, {"gpus": 8}, {"thresholds": {"temp": 1}}])
def test_mistakes_are_told(host: FakeHost, health: object) -> None:
    with pytest.raises(UsageError):
        _run(host, health)
