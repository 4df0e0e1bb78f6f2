"""opsctl health and clean on a host reached through the agent: this machine, with a stand-in nvidia-smi in PATH."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from opsctl.gpu.checks.registry import checks
from opsctl.gpu.read import capture
from opsctl.gpu.settings import Settings
from tests.commands import opsctl
from tests.gpu.fakehost import FakeHost
from tests.gpu.judging import DATA, text_of

ROOT = Path(__file__).parents[2]
_ANNOTATION = r"::\w+ file=[^,]*inventory\.yaml,line=(?P<line>\d+),col=\d+,title=(?P<title>[^:]*)::"
H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    fake = FakeHost(tmp_path)
    fake.replay(H100)
    return fake


def _opsctl(host: FakeHost, *args: str, health: str = "{}", text: str = "") -> tuple[int, str, str]:
    inventory = host.root / "inventory.yaml"
    inventory.write_text(text or f"hosts:\n  here:\n    connection: local\n    vars:\n      health: {health}\n")
    environment = {"PATH": f"{host.bin}:{os.environ['PATH']}", "XDG_STATE_HOME": str(host.root / "state")}
    said = opsctl(args[0], "-i", str(inventory), *args[1:], folder=host.root, **environment)
    return said.code, said.out, said.err


def test_health_of_a_host(host: FakeHost) -> None:
    code, out, err = _opsctl(
        host, "health", "--json", "--only", "gpu.count,gpu.temp,ecc,smi", health="{profile: {gpus: 8}}"
    )
    said = json.loads(out)
    assert (code, err) == (0, "")
    assert said["hosts"][0]["host"] == "here"
    assert {c["verdict"] for c in said["hosts"][0]["checks"]} == {"pass"}


def test_profile_and_thresholds_of_the_inventory(host: FakeHost) -> None:
    health = "{profile: {gpus: 9}, thresholds: {temp.headroom.warn: 60}}"
    code, out, _ = _opsctl(host, "health", "--json", "--only", "gpu.count,gpu.temp", health=health)
    verdicts = {c["check"]: c["verdict"] for c in json.loads(out)["hosts"][0]["checks"]}
    assert (code, verdicts) == (11, {"gpu.count": "fail", "gpu.temp": "warn"})


@pytest.mark.parametrize("health", ["{gpus: 8}", "{profile: {gpu: 8}}", "{thresholds: {temp: 1}}", "{port: many}"])
def test_mistakes_in_the_inventory_are_told_without_a_traceback(host: FakeHost, health: str) -> None:
    code, out, err = _opsctl(host, "health", "--json", health=health)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert "inventory.yaml:5:" in err


INVENTORY = """\
defaults:
  vars:
    health:
      thresholds:
        temp.headroom.warn: 60
hosts:
  here:
    connection: local
    vars:
      health:
        profile:
          gpus: 9
          driver: "1.0"
        thresholds: {temp.headroom.fail: 1, temp.headroom.warn: 60}
  gone:
    address: 127.0.0.1
    port: 9
"""


def test_annotations_point_at_what_the_inventory_expects(host: FakeHost) -> None:
    text = INVENTORY
    _, out, _ = _opsctl(host, "health", "--only", "gpu.count,gpu.temp,driver,host.limits", "-o", "github", text=text)
    at = {m["title"].partition(" ")[0]: int(m["line"]) for m in re.finditer(_ANNOTATION, out)}
    assert at["gpu.count"] == 12
    assert at["gpu.temp"] == 14
    assert at["error"] == 15  # the host that was not reached
    assert at.get("driver.loaded", 7) == at.get("host.limits", 7) == 7  # nothing is said of them: the host itself


def test_each_check_names_the_thresholds_that_it_judges_by(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: set[str] = set()
    limit = Settings.limit
    monkeypatch.setattr(Settings, "limit", lambda self, name: asked.add(f"thresholds.{name}") or limit(self, name))
    ever: set[str] = set()
    for file in sorted(path for path in DATA.rglob("*") if path.suffix in (".xml", ".txt", ".tar")):
        evidence = capture.read(file.read_text(errors="replace"), file.name)
        for check in checks().values() if evidence else ():
            asked.clear()
            check.function(evidence, Settings())
            assert asked <= set(check.settings), check.id
            ever |= asked
    assert len(ever) > 8


def test_recorded_profile_is_accepted_back(host: FakeHost) -> None:
    code, out, _ = _opsctl(host, "health", "--record", "--json")
    assert code == 0
    code, out, _ = _opsctl(host, "health", "--json", "--only", "gpu,pcie", health=json.dumps(json.loads(out)["health"]))
    assert {c["verdict"] for c in json.loads(out)["hosts"][0]["checks"]} <= {"pass", "skip"}


def test_clean_lists_what_is_foreign_and_touches_nothing(host: FakeHost) -> None:
    code, out, _ = _opsctl(host, "clean", "--json", "--yes")
    (said,) = json.loads(out)["hosts"]
    assert code == 0
    assert said["removed"] is None
    assert not any(p["removable"] for p in said["processes"])
    assert not any(f["removable"] for f in said["files"])
