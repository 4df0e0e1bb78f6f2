"""The agent's one call, on hosts made of files and stand-in programs."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from opsctl.agent.gpu import gather, surroundings, tools
from opsctl.gpu import state
from opsctl.gpu.judge import judge
from opsctl.gpu.model import State
from opsctl.gpu.settings import Settings
from opsctl.gpu.wanted import Wanted
from opsctl.wire.protocol import Context
from tests.gpu.fakehost import FakeHost
from tests.gpu.judging import text_of

H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")
BUSES = [b.lower()[4:] for b in re.findall(r'<gpu id="([^"]+)"', H100)]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    return FakeHost(tmp_path)


@pytest.fixture
def healthy(host: FakeHost) -> FakeHost:
    host.replay(H100)
    for bus in BUSES:
        host.device(bus, numa_node="0", current_link_width="16", max_link_width="16")
    return host


def test_healthy_host(healthy: FakeHost) -> None:
    found = healthy.verdicts()
    assert [c for c, v in found.items() if v == "fail" and not c.startswith("host.")] == []
    for check in ("driver.loaded", "driver.mismatch", "smi.responsive", "gpu.count", "gpu.lost", "ecc.rows", "klog.xid",
                  "topo.affinity", "p2p.config", "gpu.orphans", "proc.stuck"):  # fmt: skip
        assert found[check] == "pass", check


def test_hidden_gpu_is_named(healthy: FakeHost) -> None:
    """nvidia-smi lists eight, the bus holds nine: the ninth is told by address and slot."""
    healthy.device("0000:dd:00.0")
    healthy.write("sys/bus/pci/slots/12/address", "0000:dd:00\n")
    (fault,) = [r for r in judge("h", healthy.evidence(), Settings()).results if r.check == "gpu.count"]
    assert fault.verdict == "fail"
    assert fault.found.gpu is not None
    assert fault.found.gpu.bus_id == "0000:dd:00.0"
    assert "slot 12" in fault.found.evidence


@pytest.mark.parametrize(
    ("script", "responsive"),
    [
        ("trap '' TERM; while :; do sleep 1; done", "no answer"),
        ("echo 'half an answer'; trap '' TERM HUP; sleep 1000 & wait; sleep 1000", "no answer"),
        ("setsid sh -c \"trap '' TERM HUP; sleep 1000; : $0\" & sleep 1000", "no answer"),
        ("echo '%PDF-1.4'", "not its XML"),
        ("exit 0", "nothing"),
        ("echo '<?xml version=\"1.0\"?><html></html>'", "XML"),
    ],
)
def test_nvidia_smi_that_hangs_or_talks_nonsense(healthy: FakeHost, script: str, responsive: str) -> None:
    program = healthy.program("nvidia-smi", script)
    results = {r.check: r for r in judge("h", healthy.evidence(limit=0.3), Settings()).results}
    assert results["smi.responsive"].verdict == "fail"
    assert responsive in results["smi.responsive"].found.evidence
    # The bus still tells the GPUs, the driver its version; what only nvidia-smi knows is not guessed.
    assert results["driver.loaded"].verdict == "pass"
    assert results["topo.affinity"].verdict == "pass"
    assert results["gpu.temp"].verdict == results["ecc.rows"].verdict == "skip"
    assert _running(program) == []


def _running(program: Path) -> list[str]:
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            state_of = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
            if str(program).encode() in Path(f"/proc/{pid}/cmdline").read_bytes() and state_of != "Z":
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_stuck_nvidia_smi_is_not_joined_by_another(healthy: FakeHost, tmp_path: Path) -> None:
    healthy.program("nvidia-smi", f"touch '{tmp_path}/called'")
    healthy.process(77, "nvidia-smi", "D", fds=("/dev/nvidiactl", "/dev/nvidia0"))
    found = healthy.verdicts()
    assert found["smi.responsive"] == found["proc.stuck"] == "fail"
    assert not (tmp_path / "called").exists()


def test_a_process_table_that_cannot_be_read_to_its_end(healthy: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """To read the command line of a process that is stuck with its memory locked is to be stuck too."""
    monkeypatch.setattr(gather, "QUICK", 0.3)
    healthy.process(88, "python3", "D")
    (healthy.root / "proc/88/cmdline").unlink()
    os.mkfifo(healthy.root / "proc/88/cmdline")
    found = healthy.verdicts()
    assert found["proc.stuck"] == "fail"
    assert found["gpu.count"] == found["smi.responsive"] == "pass"


def test_nvidia_smi_missing(healthy: FakeHost) -> None:
    (healthy.bin / "nvidia-smi").unlink()
    found = healthy.verdicts()
    assert found["driver.loaded"] == "warn"  # the GPUs are there, and nothing that it tells was looked at
    assert found["gpu.count"] == "pass"
    assert found["smi.responsive"] == "skip"


def test_driver_refusal_by_exit_code(healthy: FakeHost) -> None:
    healthy.replay("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", 9)
    found = healthy.verdicts()
    assert found["driver.loaded"] == found["gpu.count"] == "fail"
    assert found["smi.responsive"] == "pass"


def test_module_on_disk_differs(healthy: FakeHost) -> None:
    healthy.program("modinfo", "echo 595.58.03")
    assert healthy.verdicts()["driver.mismatch"] == "warn"


@pytest.mark.parametrize(
    ("journal", "dmesg", "verdict"),
    [
        (
            "echo '2026-01-01T00:00:00+0000 h kernel: NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.'",
            "",
            "fail",
        ),
        ("exit 1", "echo '[  1.5] NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.'", "fail"),
        ("exit 1", "echo 'dmesg: read kernel buffer failed: Operation not permitted'; exit 1", "skip"),
    ],
)
def test_kernel_log_sources(healthy: FakeHost, journal: str, dmesg: str, verdict: str) -> None:
    healthy.program("journalctl", journal)
    healthy.program("dmesg", dmesg)
    assert healthy.verdicts()["klog.xid"] == verdict


def _config(redirect: bool) -> bytes:
    """A configuration space with an ACS capability behind another one."""
    space = bytearray(b"\x22\x10\x83\x14" + bytes(4092))
    struct.pack_into("<I", space, 0x100, 0x1 | 1 << 16 | 0x140 << 20)
    struct.pack_into("<IHH", space, 0x140, 0xD | 1 << 16, 0x1F, 0b1101 if redirect else 0b1001)
    return bytes(space)


@pytest.mark.parametrize(
    ("redirect", "iommu", "verdict"),
    [(True, "DMA-FQ", "fail"), (True, "identity", "warn"), (False, "identity", "warn"), (False, "DMA", "warn")],
)
def test_peer_to_peer(host: FakeHost, redirect: bool, iommu: str, verdict: str) -> None:
    host.write("sys/class/iommu/dmar0/name", "")
    host.device("0000:00:01.1", gpu=False, config=_config(redirect))
    for bus in ("0000:01:00.0", "0000:02:00.0"):
        host.device(bus, above=("0000:00:01.1",))
        host.write(f"sys/devices/pci0000:00/0000:00:01.1/{bus}/iommu_group/type", iommu)
    assert host.verdicts()["p2p.config"] == verdict


def test_orphans_of_a_dead_server(healthy: FakeHost) -> None:
    healthy.process(1, "systemd", ppid=0)
    healthy.process(500, "sglang::schedul", sid=400, cmdline="sglang::scheduler_TP0", fds=("/dev/nvidia0",))
    assert healthy.verdicts()["gpu.orphans"] == "fail"


def test_workers_of_a_living_server(healthy: FakeHost) -> None:
    healthy.process(1, "systemd", ppid=0)
    healthy.process(400, "python3", cmdline="python3 -m sglang.launch_server")
    healthy.process(500, "sglang::schedul", ppid=400, sid=400, cmdline="sglang::scheduler_TP0", fds=("/dev/nvidia0",))
    found = healthy.verdicts()
    assert found["gpu.orphans"] == found["proc.stuck"] == "pass"


UNIT = """\
Id=llm.service
ActiveState={}
SubState={}
Result={}
NRestarts=1
KillMode={}
MainPID=400
ControlGroup=/s/llm.service"""


@pytest.mark.parametrize(
    ("shown", "verdict"),
    [
        (("active", "running", "success", "mixed"), "pass"),
        (("failed", "failed", "exit-code", "mixed"), "fail"),
        (("active", "running", "success", "process"), "warn"),
    ],
)
def test_unit(healthy: FakeHost, shown: tuple[str, ...], verdict: str) -> None:
    healthy.program("systemctl", f"cat <<'EOF'\n{UNIT.format(*shown)}\nEOF")
    healthy.write("proc/400/limits", "Limit   Soft Limit Hard Limit Units\nMax locked memory   65536  65536  bytes\n")
    found = healthy.verdicts(Wanted(unit="llm.service"))
    assert found["svc.unit"] == verdict
    assert found["host.limits"] == "warn"


def test_missing_shard(healthy: FakeHost) -> None:
    healthy.write("m/model.safetensors.index.json", '{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}')
    healthy.write("m/1.safetensors", "")
    assert healthy.verdicts(Wanted(weights="/m"))["host.weights"] == "fail"
    healthy.write("m/2.safetensors", "")
    assert healthy.verdicts(Wanted(weights="/m"))["host.weights"] == "pass"


def test_counters_count_from_the_last_look(healthy: FakeHost) -> None:
    healthy.write("proc/sys/kernel/random/boot_id", "one")
    healthy.write(f"sys/bus/pci/devices/{BUSES[0]}/aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 7\n")
    first = healthy.evidence()
    before = state.load(state.dump(state.now(first)))

    def judged(earlier: State | None) -> str:
        evidence = healthy.evidence()
        with_before = type(evidence)(**{n: getattr(evidence, n) for n in evidence.__slots__} | {"before": earlier})
        return next(r.verdict.value for r in judge("h", with_before, Settings()).results if r.check == "pcie.errors")

    assert judged(None) == "skip"
    assert judged(before) == "pass"
    healthy.write(f"sys/bus/pci/devices/{BUSES[0]}/aer_dev_nonfatal", "Undefined 0\nTOTAL_ERR_NONFATAL 8\n")
    assert judged(before) == "fail"


@pytest.mark.parametrize(("waited", "verdict"), [(60, "pass"), (700, "warn"), (1300, "fail")])
def test_server_that_never_listens(healthy: FakeHost, waited: int, verdict: str) -> None:
    shown = UNIT.format("active", "running", "success", "mixed")
    entered = f"ActiveEnterTimestampMonotonic={(5000 - waited) * 1000000}"
    healthy.program("systemctl", f"cat <<'EOF'\n{shown}\n{entered}\nEOF")
    healthy.program("ss", "exit 0")
    healthy.write("proc/uptime", "5000.00 1.0\n")
    assert healthy.verdicts(Wanted(unit="llm.service", port=1))["svc.port"] == verdict


def _used_by(pid: int) -> str:
    process = (
        f"<process_info><pid>{pid}</pid><type>C</type><process_name>x</process_name><used_memory>4096 MiB</used_memory>"
    )
    used = re.sub(r"(?s)(<fb_memory_usage>.*?<used>)0 MiB", r"\g<1>4100 MiB", H100, count=1)
    return re.sub(r"(?s)<processes>.*?</processes>", f"<processes>{process}</process_info></processes>", used, count=1)


def test_memory_held_by_others(healthy: FakeHost) -> None:
    """Out of sight it fails; another's is a warning once we know our own server; without one nobody can tell."""
    healthy.replay(_used_by(900))
    assert healthy.verdicts()["gpu.leftover"] == "fail"
    healthy.process(900, "train.py", cgroup="/user.slice/theirs")
    assert healthy.verdicts()["gpu.leftover"] == "pass"
    healthy.program("systemctl", f"cat <<'EOF'\n{UNIT.format('active', 'running', 'success', 'mixed')}\nEOF")
    assert healthy.verdicts(Wanted(unit="llm.service"))["gpu.leftover"] == "warn"
    healthy.process(900, "train.py", cgroup="/s/llm.service")
    assert healthy.verdicts(Wanted(unit="llm.service"))["gpu.leftover"] == "pass"


def test_looking_makes_nothing_and_a_damaged_record_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    assert gather._started_here() == []
    assert not (tmp_path / "state").exists()

    records = tmp_path / "state" / "processes"
    records.mkdir(parents=True)
    sound = {"name": "sglang-30000", "pid": 7, "sid": 7, "uid": 0, "start": 99, "boot": "b"}
    (records / "a.json").write_text("{")
    (records / "b.json").write_text('{"sid": 3}')
    (records / "c.json").write_text(json.dumps(sound))
    assert [record["main_pid"] for record in gather._started_here()] == [7]


@pytest.mark.parametrize(("speed", "verdict"), [("5.0 GT/s PCIe", "fail"), ("32.0 GT/s PCIe", "pass")])
def test_a_link_slow_under_load_is_looked_at_again(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, speed: str, verdict: str
) -> None:
    """A link that was just changing its speed is no fault; one that stays slow is."""
    monkeypatch.setattr(surroundings, "_PAUSE", 0)
    busy = re.sub(r"<gpu_util>\d+", "<gpu_util>98", H100)
    host.replay(busy.replace("<current_link_gen>5", "<current_link_gen>2", 1))
    for bus in BUSES:
        host.device(bus, current_link_speed=speed)
    found = judge("host", host.evidence(), Settings()).by_check["pcie.gen"]
    assert found.verdict.value == verdict
    assert verdict == "pass" or "in 4 looks" in found.found.evidence


@pytest.mark.parametrize(("dies", "verdict"), [(True, "pass"), (False, "fail")])
def test_a_killed_process_is_given_time_to_die(
    healthy: FakeHost, monkeypatch: pytest.MonkeyPatch, dies: bool, verdict: str
) -> None:
    """To free hundreds of GiB takes a while, in state R and with the signal pending."""
    healthy.process(77, "sglang::schedul", "R", fds=("/dev/nvidia0",), pending="100")
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if dies:
            (healthy.root / "proc/77/stat").unlink(missing_ok=True)

    monkeypatch.setattr(gather.time, "sleep", pause)
    monkeypatch.setattr(gather, "LAST_BREATH", 0.3)
    assert healthy.verdicts()["proc.stuck"] == verdict
    assert pauses


def test_fabric_links_memory_and_ports(healthy: FakeHost) -> None:
    one = "GPU {}: NVIDIA H100 (UUID: GPU-{})\n\t Link 0: {}\n"
    links = one.format(0, 1, "26.562 GB/s") + one.format(1, 2, "<inactive>")
    (healthy.bin / "links").write_text(links)
    healthy.program(
        "nvidia-smi", f"case $1 in nvlink) cat '{healthy.bin}/links';; *) cat '{healthy.bin}/answer';; esac"
    )
    healthy.program("systemctl", "echo LoadState=loaded; echo ActiveState=failed")
    healthy.device("0000:83:00.0", gpu=False, vendor="0x10de", **{"class": "0x068000"})
    healthy.write("sys/devices/system/edac/mc/mc0/ue_count", "1\n")
    healthy.write("sys/devices/system/edac/mc/mc0/ce_count", "4\n")
    healthy.write("sys/devices/system/edac/mc/mc0/dimm1/dimm_ue_count", "1\n")
    healthy.write("sys/devices/system/edac/mc/mc0/dimm1/dimm_label", "DIMM_B1\n")
    for port, linked, physical in ((1, "4: ACTIVE", "5: LinkUp"), (2, "1: DOWN", "2: Polling")):
        here = f"sys/class/infiniband/mlx5_0/ports/{port}"
        said = {"state": linked, "phys_state": physical, "link_layer": "InfiniBand", "rate": "400 Gb/sec (4X NDR)"}
        for name, text in said.items():
            healthy.write(f"{here}/{name}", text + "\n")
    evidence = healthy.evidence()
    found = {r.check: r for r in judge("host", evidence, Settings()).results if r.verdict.rank > 1}
    assert "fabricmanager has failed" in found["gpu.fabric"].found.evidence
    assert "0 of 1 NVLinks up" in found["gpu.nvlink"].found.evidence
    assert "DIMM_B1" in found["host.edac"].found.evidence
    assert "mlx5_0/2 is DOWN (Polling)" in found["net.ports"].found.evidence


def test_the_clock_is_read_before_anything_hangs(healthy: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process table that takes ten seconds is no clock that is ten seconds wrong."""
    times = iter([100.0, 110.0, 120.0, 130.0])
    monkeypatch.setattr(gather.time, "time", lambda: next(times))
    found = gather.gather(Context(), root=str(healthy.root), path=str(healthy.bin))
    assert found["host"]["now"] == 100.0


CUDA = """
int cuInit(unsigned flags) {{ {body} }}
int cuGetErrorName(int code, const char **name) {{
  *name = code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY" : "?";
  return 0;
}}
int cuDeviceGetCount(int *count) {{ *count = 8; return 0; }}
"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('return getenv("CUDA_VISIBLE_DEVICES") ? 100 : 0;', {"code": 0, "devices": 8}),
        ("return 802;", {"code": 802, "name": "CUDA_ERROR_SYSTEM_NOT_READY"}),
        ("for (;;) pause();", {"code": None}),
    ],
)
def test_cuda_is_started_in_a_child_that_may_hang(tmp_path: Path, body: str, said: dict[str, object]) -> None:
    """With a stand-in for libcuda: a real one needs a GPU."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the stand-in")
    (tmp_path / "cuda.c").write_text("#include <stdlib.h>\n#include <unistd.h>\n" + CUDA.format(body=body))
    library = tmp_path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, tmp_path / "cuda.c"], check=True)
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}  # what a login hides is no fault of the driver
    found = gather.start_cuda(Context(), environment, 1.0 if said["code"] is None else 60.0, str(library))
    assert found.items() >= said.items()
    absent = gather.start_cuda(Context(), dict(os.environ), 60.0, str(tmp_path / "libcuda.so.2"))
    assert "not there" in absent["missing"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter another root")
def test_nvidia_smi_of_a_driver_container(healthy: FakeHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "driver"
    (root / "usr/bin").mkdir(parents=True)
    (healthy.bin / "nvidia-smi").rename(root / "usr/bin/nvidia-smi")
    entered = healthy.program("chroot", f'[ "$1" = "{root}" ] && shift && exec "{root}$@"')
    monkeypatch.setattr(tools, "DRIVER_ROOT", str(root))
    monkeypatch.setattr(tools, "FOLDERS", f":{entered.parent}")
    assert healthy.verdicts()["driver.loaded"] == "pass"
    assert max(len(r.gpus) for r in healthy.evidence().readings) == 8
