"""Every capture of a real host gets the verdicts that reading it by hand gives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opsctl.gpu.read import capture, klog
from tests.commands import opsctl
from tests.gpu.judging import DATA, report, text_of

EXPECTED = json.loads((DATA / "expected.json").read_text())["files"]
LINES = json.loads((DATA / "dmesg" / "lines.json").read_text())["lines"]


@pytest.mark.parametrize("name", EXPECTED)
def test_verdicts(name: str) -> None:
    found = report(text_of(name))
    worst: dict[str, str] = {}
    for result in sorted(found.results, key=lambda r: r.verdict.rank):
        worst[result.check] = result.verdict.value
    wanted = EXPECTED[name]
    for part in wanted.get("sections", {"": wanted}).values():
        for check, right in part.get("verdicts", {}).items():
            assert worst[check] in ([right] if isinstance(right, str) else right), check
        for check, buses in part.get("at_fault", {}).items():
            faulty = [r.found.gpu.bus_id for r in found.results if r.check == check and r.found.gpu]
            assert sorted(faulty) == sorted(buses), check


@pytest.mark.parametrize("name", [n for n in EXPECTED if "memory_used_mib" in EXPECTED[n]])
def test_values(name: str) -> None:
    evidence = capture.read(text_of(name), name)
    assert evidence is not None
    (reading,) = evidence.readings
    wanted = EXPECTED[name]
    assert len(reading.gpus) == wanted["gpus"]
    assert reading.driver == wanted["driver"]
    assert [g.ref.bus_id for g in reading.gpus] == wanted["bus_ids"]
    assert [g.memory_used for g in reading.gpus] == wanted["memory_used_mib"]
    if "temperature_headroom_c" in wanted:
        assert [g.headroom for g in reading.gpus] == wanted["temperature_headroom_c"]
        assert [len(g.processes or ()) for g in reading.gpus] == wanted["processes"]
        assert [g.pstate for g in reading.gpus] == wanted["pstates"]


@pytest.mark.parametrize("line", LINES, ids=[f"{n['kind']}-{i}" for i, n in enumerate(LINES)])
def test_kernel_line(line: dict[str, object]) -> None:
    text = str(line["line"])
    events = klog.read(text).events
    assert klog.looks_like(text)
    if line["severity"] == "none":
        assert events == ()
        return
    (event,) = events
    assert event.severity in [line["severity"], *line.get("also_accepted", [])]  # type: ignore[misc]
    assert (event.kind, event.xid, event.bdf) == (line["kind"], line["xid"], line["bdf"])


def _run(*args: str) -> tuple[int, str]:
    said = opsctl("health", *args, folder=DATA)
    return said.code, said.out


def test_command_line_says_json_and_exit_code() -> None:
    """Two files about one host, in one --capture."""
    lost, log = DATA / "k8s-test-infra/mock/qx-gb200-lost.xml", DATA / "gpud/memory/dmesg.decode.iso.log"
    code, out = _run("--capture", str(lost), str(log), "--json")
    said = json.loads(out)
    assert code == 11
    (host,) = said["hosts"]
    assert host["verdict"] == said["verdict"] == "fail"
    fault = next(c for c in host["checks"] if c["check"] == "gpu.lost")
    assert set(fault) >= {"check", "verdict", "gpu", "value", "expected", "evidence", "remedy"}
    assert fault["gpu"]["bus_id"] == "0000:0B:00.0"
    assert next(c for c in host["checks"] if c["check"] == "klog.oom")["verdict"] == "warn"


def test_exit_codes_by_worst_verdict(tmp_path: Path) -> None:
    assert _run("--capture", str(DATA / "k8s-test-infra/hardware/qx-h100.xml"))[0] == 0
    assert _run("--capture", str(DATA / "k8s-test-infra/hardware/qx-l40s.xml"))[0] == 10
    (tmp_path / "notes.txt").write_text("nothing of the kind\n")
    assert _run("--capture", str(tmp_path / "notes.txt"))[0] == 12
    assert _run("--capture", str(tmp_path / "absent"))[0] == 2
    assert _run("--capture", str(tmp_path / "notes.txt"), "--only", "gpu.tmp")[0] == 2
    assert _run("explain", "79")[0] == 0


def test_different_hosts_are_told_apart() -> None:
    one, other = DATA / "k8s-test-infra/hardware/qx-h100.xml", DATA / "telegraf/3090-v13.xml"
    _, out = _run("--capture", str(one), str(other), "--json", "--only", "gpu.count")
    assert [h["checks"][0]["value"] for h in json.loads(out)["hosts"]] == [8, 1]


def test_junit_counts(tmp_path: Path) -> None:
    target = tmp_path / "health.xml"
    _run("--capture", str(DATA / "k8s-test-infra/mock/qx-gb200-lost.xml"), "--junit", str(target), "--only", "gpu,ecc")
    text = target.read_text()
    assert 'failures="3"' in text
    assert "row remapping failed" in text
