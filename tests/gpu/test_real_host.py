"""opsctl health and clean over a real SSH server, on a host whose programs and trees are stand-ins."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.commands import opsctl
from tests.gpu.fakehost import FakeHost
from tests.gpu.judging import text_of
from tests.proxy import Proxy, fewest
from tests.sshd import Sshd, eventually

H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")
SlowLink = Callable[..., Proxy]


class Lab:
    """A stand-in host behind SSH, and the inventory that names it `n1`."""

    def __init__(self, folder: Path, sshd: Sshd) -> None:
        self.files = FakeHost(folder / "host")
        self.files.replay(H100)
        self._folder, self._sshd = folder, sshd

    def opsctl(self, *args: str, port: int | None = None, hosts: int = 1, **health: Any) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. health: further keys of the host's variable."""
        here = {"root": str(self.files.root), "programs": [str(self.files.bin)], **health}
        host = {
            **{"address": "127.0.0.1", "port": port or self._sshd.port, "user": self._sshd.user, "attempts": 1},
            **{"key": str(self._sshd.key_file), "host_key": str(self._sshd.host_key), "ssh_config": "none"},
            **{"state_dir": str(self._folder / "state"), "vars": {"health": here}},
        }
        inventory = self._folder / "inventory.yaml"
        inventory.write_text(yaml.safe_dump({"hosts": {f"n{i + 1}": host for i in range(hosts)}}))
        words = (args[0], "-i", str(inventory), *args[1:])
        said = opsctl(*words, folder=self._folder, XDG_STATE_HOME=str(self._folder / "looks"))
        return said.code, said.out, said.err

    def checks(self, *args: str, **health: Any) -> dict[str, dict[str, Any]]:
        """The worst line of each check."""
        _, out, _ = self.opsctl("health", "--json", *args, **health)
        lines = json.loads(out)["hosts"][0]["checks"]
        return {
            c["check"]: c for c in sorted(lines, key=lambda c: ["skip", "pass", "warn", "fail"].index(c["verdict"]))
        }

    def running(self) -> list[str]:
        """Processes of the stand-in programs that still live."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                if str(self.files.bin).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and state != "Z":
                    found.append(pid)
            except OSError:
                continue
        return found


@pytest.fixture
def lab(tmp_path: Path, sshd: Sshd) -> Lab:
    return Lab(tmp_path, sshd)


def test_a_healthy_host(lab: Lab) -> None:
    found = lab.checks("--only", "driver,smi,gpu,ecc,klog", profile={"gpus": 8})
    assert {name: c["verdict"] for name, c in found.items() if c["verdict"] in ("warn", "fail")} == {}
    assert {found[c]["verdict"] for c in ("driver.loaded", "smi.responsive", "gpu.count", "klog.xid")} == {"pass"}


@pytest.mark.parametrize(
    ("script", "verdict", "said"),
    [
        ("trap '' TERM HUP; while :; do sleep 1; done", "fail", "no answer within"),
        ("sleep 300 & sleep 300", "fail", "no answer within"),
        ("echo '%PDF-1.4 not an answer'", "fail", "not its XML"),
        ("sleep 1.2; cat ANSWER", "warn", "answered after"),
    ],
    ids=["deaf", "with a child", "garbage", "slow"],
)
def test_nvidia_smi_misbehaves_and_leaves_nothing_behind(lab: Lab, script: str, verdict: str, said: str) -> None:
    lab.files.program("nvidia-smi", script.replace("ANSWER", f"'{lab.files.bin / 'answer'}'"))
    # Only what never answers is given up; what answers may take its time.
    limits = {"smi.fail": 1.5 if said == "no answer within" else 60, "smi.warn": 1}
    found = lab.checks("--only", "smi,driver,gpu", thresholds=limits)
    assert found["smi.responsive"]["verdict"] == verdict
    assert said in found["smi.responsive"]["evidence"]
    assert found["driver.loaded"]["verdict"] == "pass"  # /proc says so
    assert eventually(lambda: lab.running() == [])
    assert not list(lab.files.root.rglob("smi.*"))


def test_a_missing_nvidia_smi(lab: Lab) -> None:
    (lab.files.bin / "nvidia-smi").unlink()
    found = lab.checks("--only", "smi,gpu.temp")
    assert {c["verdict"] for c in found.values()} == {"skip"}
    assert "not installed" in found["smi.responsive"]["evidence"]


def test_one_look_costs_one_round_trip(lab: Lab, sshd: Sshd, slow_link: SlowLink) -> None:
    """As many turns as a connection on which the agent is started and asked for nothing but one small thing."""
    proxy = slow_link(gather=0.25)

    counts: list[int] = []

    def turns(command: str) -> int:
        lab.opsctl(command, "--json", port=proxy.port)
        counts.append(proxy.turns_until_closed())
        return counts[-1]

    most = fewest(partial(turns, "clean")) + 1
    assert fewest(partial(turns, "health"), most) <= most
    assert proxy.connections == len(counts)


def test_faults_are_told_once_as_news(lab: Lab) -> None:
    """The second run knows what the first one has told; the fault itself stays one until the next boot."""
    xid = "2026-01-01T00:00:00+0000 host kernel: NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus."
    lab.files.write("proc/sys/kernel/random/boot_id", "one")
    lab.files.program("journalctl", f"echo '{xid}'")
    first, second = (lab.checks("--only", "klog.xid")["klog.xid"] for _ in range(2))
    assert first["verdict"] == second["verdict"] == "fail"
    assert "look" not in first["evidence"]
    assert "nothing new since the last look" in second["evidence"]
    lab.files.program("journalctl", f"echo '{xid}'; echo '{xid.replace('00:00:00', '01:00:00')}'")
    assert "1 new since the last look" in lab.checks("--only", "klog.xid")["klog.xid"]["evidence"]


def test_corrected_errors_count_from_run_to_run(lab: Lab) -> None:
    bus = "0000:53:00.0"
    lab.files.write("proc/sys/kernel/random/boot_id", "one")
    lab.files.device(bus, aer_dev_correctable="TOTAL_ERR_COR 5\n", aer_dev_fatal="TOTAL_ERR_FATAL 0\n")
    assert lab.checks("--only", "pcie.errors")["pcie.errors"]["verdict"] == "skip"
    lab.files.write(f"sys/bus/pci/devices/{bus}/aer_dev_correctable", "TOTAL_ERR_COR 4000\n")
    found = lab.checks("--only", "pcie.errors")["pcie.errors"]
    assert (found["verdict"], found["value"]) == ("warn", 3995)
    lab.files.write(f"sys/bus/pci/devices/{bus}/aer_dev_fatal", "TOTAL_ERR_FATAL 1\n")
    assert lab.checks("--only", "pcie.errors")["pcie.errors"]["verdict"] == "fail"


def test_no_peer_access_is_a_warning_unless_the_server_does_without(lab: Lab) -> None:
    rows = "".join(f" GPU{i}\t" + "\t".join("X" if i == j else "CNS" for j in range(8)) + "\n" for i in range(8))
    head = " \t\x1b[4m" + "\t".join(f"GPU{i}" for i in range(8)) + "\x1b[0m\n"
    matrix = lab.files.bin / "matrix"
    matrix.write_text(f"{head}{rows}\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  CNS  = Chipset not supported\n")
    # An H100 whose GPUs were in no fabric, as PCIe cards are.
    lab.files.replay(re.sub(r"<(state|status)>(Completed|Success)<", r"<\1>N/A<", H100))
    lab.files.program("nvidia-smi", f"case $1 in topo) cat '{matrix}';; *) cat '{lab.files.bin / 'answer'}';; esac")
    assert lab.checks("--only", "p2p")["p2p.config"]["value"] == "GPU0-GPU1 CNS"
    shown = "Id=llm.service\nActiveState=active\nMainPID=0\nEnvironment=HF_TOKEN=hf_secret NCCL_P2P_DISABLE=1"
    lab.files.program("systemctl", f"cat <<'EOF'\n{shown}\nEOF")
    assert lab.checks("--only", "p2p", unit="llm.service")["p2p.config"]["verdict"] == "pass"


def test_updates_nobody_asked_for(lab: Lab) -> None:
    lab.files.write(
        "var/log/apt/history.log",
        "\nStart-Date: 2026-11-20  06:12:01\nCommandline: /usr/bin/unattended-upgrade\n"
        "Upgrade: libnvidia-compute-580:amd64 (580.173.02-1, 580.178-1), vim:amd64 (1, 2)\n",
    )
    lab.files.write("proc/sys/kernel/osrelease", "6.8.0-90-generic\n")
    for version in ("6.8.0-100-generic", "6.8.0-90-generic"):
        lab.files.write(f"boot/vmlinuz-{version}", "")
    _, out, _ = lab.opsctl("health", "--json", "--only", "host.updates")
    told = [c["evidence"] for c in json.loads(out)["hosts"][0]["checks"]]
    assert any("6.8.0-100-generic is installed" in text for text in told)
    assert any("libnvidia-compute-580 580.173.02-1 to 580.178-1" in text for text in told)


def test_a_recorded_profile_is_pasted_as_it_is(lab: Lab) -> None:
    code, out, _ = lab.opsctl("health", "--record")
    assert code == 0
    pasted = yaml.safe_load(out)["health"]
    assert pasted["profile"]["gpus"] == 8
    assert lab.checks("--only", "gpu.count,gpu.power", **pasted)["gpu.count"]["expected"] == 8
    lab.files.replay(H100.replace("<product_name>NVIDIA", "<product_name>OTHER", 1))
    assert lab.checks("--only", "gpu.uniform", **pasted)["gpu.uniform"]["verdict"] == "warn"


def test_a_broken_host_is_not_made_the_rule(lab: Lab) -> None:
    lab.files.replay(
        H100.replace("</product_name>", "</product_name><gpu_recovery_action>Reset</gpu_recovery_action>", 1)
    )
    code, out, err = lab.opsctl("health", "--record")
    assert (code, out) == (2, "")
    assert "gpu.recovery" in err


def test_several_hosts_worst_first(lab: Lab) -> None:
    code, out, err = lab.opsctl("health", "--only", "gpu,smi", hosts=3)
    assert (code, err) == (0, "")
    assert [line.split()[1] for line in out.splitlines() if line.startswith("PASS")] == ["n1", "n2", "n3"]


def test_clean_lists_leftovers_under_another_root_and_removes_nothing(lab: Lab) -> None:
    lab.files.write("proc/net/unix", "Num RefCount\n")
    lab.files.process(1, "systemd", ppid=0)
    lab.files.process(99999, "sglang::schedul", sid=400, cgroup="/s/llm.service", cmdline="sglang::scheduler_TP0")
    shown = "Id=llm.service\nActiveState=inactive\nMainPID=0\nControlGroup=/s/llm.service\nUser=1000"
    lab.files.program("systemctl", f"cat <<'EOF'\n{shown}\nEOF")
    code, out, err = lab.opsctl("clean", "--json", "--yes", unit="llm.service")
    (said,) = json.loads(out)["hosts"]
    assert [(p["pid"], p["class"], p["removable"]) for p in said["processes"] if p["pid"] == 99999] == [
        (99999, "own-orphan", True)
    ]
    assert (code, said["removed"]) == (2, None)
    assert "another root" in err
