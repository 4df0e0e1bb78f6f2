"""What an operator reads: one line per host of a fleet, worst first, and faults that GPUs share told once."""

from __future__ import annotations

import re

import pytest

from opsctl.gpu.checks.registry import checks
from opsctl.gpu.explain import explain
from opsctl.gpu.judge import HostReport
from opsctl.gpu.xids import catalogue
from opsctl.report.health import show
from tests.gpu.judging import report, text_of

FIT = text_of("k8s-test-infra/hardware/qx-h100.xml")
LOST = text_of("k8s-test-infra/mock/qx-gb200-lost.xml")
BRAKE = text_of("gpud/nvidia-smi-text/nvidia-smi-query.535.161.08.out.0.valid")


def _named(text: str, name: str) -> HostReport:
    found = report(text)
    return HostReport(name, found.verdict, found.results, found.kernel, found.about)


def _told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


def test_on_a_terminal_lines_fit_it_and_commands_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    show([_named(BRAKE, "n1")])
    lines = _told(capsys)
    assert max(map(len, lines)) <= 80
    assert "$ nvidia-smi -q -d PERFORMANCE" in [line.strip() for line in lines]


def test_a_large_fleet_is_one_line_per_host(capsys: pytest.CaptureFixture[str]) -> None:
    fleet = [_named(FIT, f"n{i}") for i in range(90)] + [_named(LOST, f"bad{i}") for i in range(9)]
    show(fleet, unreached=[("gone", "refused the connection")])
    lines = _told(capsys)
    assert [line.split()[0] for line in lines[:100]] == ["LOST"] + ["FAIL"] * 9 + ["PASS"] * 90
    assert "gpu.lost: GPU1 0000:0B:00.0: 'GPU is lost'" in lines[1]
    assert lines[100] == "100 hosts: 1 not reached, 9 unfit, 90 fit"
    assert len(lines) == 103  # and where the details are
    assert "--host bad0" in lines[-1]


def test_a_small_fleet_tells_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    show([_named(FIT, "good"), _named(LOST, "bad")])
    lines = _told(capsys)
    assert lines[1].startswith("PASS good  8 x NVIDIA H100 80GB HBM3, driver 580.105.08")
    assert any("row remapping failed" in line for line in lines)


def test_what_eight_gpus_share_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    show([_named(BRAKE, "n1")])
    (line,) = [line for line in _told(capsys) if "gpu.throttle" in line]
    assert "power brake active on 8 GPUs: GPU0 00000000:19:00.0, GPU1" in line


def test_hostile_text_is_shown_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    show([_named(FIT.replace("NVIDIA H100 80GB HBM3", "H&#xD;&#x9;[2J[red]"), "n1\x1b[2J")], verbose=True)
    out = capsys.readouterr().out
    assert "\x1b[2J" not in out
    assert "\r" not in out


@pytest.mark.parametrize("check", checks())
def test_every_check_is_explained(check: str) -> None:
    assert {"asks", "causes", "remedy"} <= dict(explain(check).lines).keys()


@pytest.mark.parametrize("code", [code for code, xid in catalogue().items() if xid.base == "fail"])
def test_every_failing_xid_has_a_remedy(code: int) -> None:
    assert {"meaning", "remedy"} <= dict(explain(f"Xid {code}").lines).keys()
