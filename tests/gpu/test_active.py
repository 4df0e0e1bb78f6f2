"""Tests that load the GPUs: refused while anything uses them, run when installed, and read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from opsctl.gpu.checks import active
from opsctl.gpu.judge import judge
from opsctl.gpu.model import ActiveRun, Evidence, Host, Unit
from opsctl.gpu.settings import Settings
from opsctl.gpu.wanted import Wanted
from tests.gpu.judging import text_of
from tests.gpu.test_real_host import Lab
from tests.sshd import Sshd, eventually

# Written after the tools' own formats: synthetic.
PAIRS = """\
Running device_to_device_memcpy_read_ce.
memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)
           0         1         2
 0       N/A     50.10     {slow}
 1     50.30       N/A     50.20
 2     50.00     50.40       N/A

SUM device_to_device_memcpy_read_ce 301.20
"""
REDUCED = "# Out of bounds values : {wrong} OK\n# Avg bus bandwidth    : 41.7\n#\n"


@pytest.fixture
def lab(tmp_path: Path, sshd: Sshd) -> Lab:
    found = Lab(tmp_path, sshd)
    found.files.program("python", 'echo \'OPSCTL {"right": true, "gb_per_s": 40.5}\'')
    return found


def _verdict(run: ActiveRun) -> tuple[str, str]:
    results = judge("h", Evidence(active=(run,)), Settings()).results
    (found,) = [r for r in results if r.check.startswith("active.")]
    return found.verdict.value, found.found.evidence


@pytest.mark.parametrize(
    ("run", "verdict", "said"),
    [
        (ActiveRun("nvbandwidth", None, 0, 5, PAIRS.format(slow="50.10")), "pass", "50 GB/s"),
        (ActiveRun("nvbandwidth", None, 0, 5, PAIRS.format(slow="12.30")), "warn", "GPUs 0 and 2"),
        (
            ActiveRun("nvbandwidth", None, 1, 5, "[CUDA_ERROR_NO_DEVICE] in expression cuInit(0)"),
            "fail",
            "no bandwidth",
        ),
        (ActiveRun("nvbandwidth", None, None, 90, ""), "fail", "hang"),
        (ActiveRun("all_reduce_perf", None, 0, 5, REDUCED.format(wrong=0)), "pass", "41.7"),
        (ActiveRun("all_reduce_perf", None, 0, 5, REDUCED.format(wrong=7)), "fail", "7 values"),
        (ActiveRun("torch", None, 0, 5, 'NCCL INFO\nOPSCTL {"right": false, "gb_per_s": 1.0}\n'), "fail", "wrong"),
        (ActiveRun("torch", None, 1, 5, "Traceback\nImportError: no torch\n"), "fail", "no result"),
        (ActiveRun("torch", "the interpreter is not there"), "skip", "not there"),
    ],
)
def test_what_a_test_said(run: ActiveRun, verdict: str, said: str) -> None:
    found, evidence = _verdict(run)
    assert found == verdict
    assert said in evidence


def _with_nvidia_smi(lab: Lab, **health: object) -> dict[str, dict[str, str]]:
    """Without another root: what holds GPUs is this machine's own business."""
    return lab.checks("--active", "--only", "active", **{"root": "/", **health})


def test_runs_what_is_installed_and_says_what_is_not(lab: Lab) -> None:
    lab.files.program("all_reduce_perf", f"echo \"$@\" >'{lab.files.bin}/asked'; printf '{REDUCED.format(wrong=0)}'")
    found = _with_nvidia_smi(lab, python=str(lab.files.bin / "python"))
    assert {name: c["verdict"] for name, c in found.items()} == {
        "active.bandwidth": "skip", "active.nccl": "pass", "active.torch": "pass",
    }  # fmt: skip
    assert "not installed" in found["active.bandwidth"]["evidence"]
    assert "-g 8" in (lab.files.bin / "asked").read_text()


def test_a_test_that_hangs_is_ended(lab: Lab) -> None:
    lab.files.program("all_reduce_perf", "trap '' TERM; sleep 300 & while :; do sleep 1; done")
    found = _with_nvidia_smi(lab, thresholds={"active.limit": 1})
    assert found["active.nccl"]["verdict"] == "fail"
    assert eventually(lambda: lab.running() == [])


def test_nothing_is_run_while_a_gpu_is_in_use(lab: Lab) -> None:
    lab.files.program("all_reduce_perf", f"touch '{lab.files.bin}/ran'")
    xml = text_of("k8s-test-infra/hardware/qx-h100.xml")
    lab.files.replay(re.sub(r"(?s)(<fb_memory_usage>.*?<used>)\d+ MiB", r"\g<1>40000 MiB", xml, count=1))
    found = _with_nvidia_smi(lab)
    assert {c["verdict"] for c in found.values()} == {"skip"}
    assert all(c["evidence"].startswith("refused: GPU0") for c in found.values())
    assert not (lab.files.bin / "ran").exists()


def test_nothing_is_run_without_being_asked(lab: Lab) -> None:
    lab.files.program("all_reduce_perf", f"touch '{lab.files.bin}/ran'")
    code, out, _ = lab.opsctl("health", "--json")
    assert code in (0, 10, 11)
    assert not [c for c in json.loads(out)["hosts"][0]["checks"] if c["check"].startswith("active")]
    assert not (lab.files.bin / "ran").exists()


def test_refused_while_a_server_runs(lab: Lab) -> None:
    idle = lab.files.evidence(Wanted())
    assert active.refusal(idle, Settings()) is None
    assert "llm.service" in (
        active.refusal(replace(idle, host=Host(unit=Unit("llm.service", "active"))), Settings()) or ""
    )
    heard = Host(port=30000, listeners=((30000, 7, "python3"),))
    assert "port 30000" in (active.refusal(replace(idle, host=heard), Settings()) or "")
    lab.files.process(77, "python3", fds=("/dev/nvidia3",))
    assert "pid 77" in (active.refusal(lab.files.evidence(Wanted()), Settings()) or "")
