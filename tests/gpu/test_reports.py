"""Hosts of public reports that could not serve, or could: each gets the right verdict, and a remedy of its own."""

from __future__ import annotations

import json
import re

import pytest

from opsctl.gpu.judge import HostReport, Result, judge, remedies
from opsctl.gpu.model import CudaStart, Evidence, Host, Links, MemoryController, NetworkPort, PciDevice, State, Verdict
from opsctl.gpu.read import capture
from opsctl.gpu.settings import Profile, Settings
from tests.gpu.judging import report, text_of, verdicts

H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")  # eight GPUs, fabric Completed/Success
GB200 = text_of("k8s-test-infra/mock/qx-gb200-throttle-counters.xml")
PRO6000 = text_of("telegraf/pro-6000-maxq-blackwell-v13.xml")
GEFORCE = text_of("telegraf/3090-v13.xml")
TEXT = text_of("gpud/nvidia-smi-text/nvidia-smi-query.560.35.03.out.0.valid")
BOOT = text_of("gpud/dmesg/dmesg.decode.iso.log.1")


def faults(found: HostReport, check: str) -> list[Result]:
    return [r for r in found.results if r.check == check and r.verdict in (Verdict.WARN, Verdict.FAIL)]


def told(text: str, check: str) -> tuple[str, str]:
    """Verdict of a check, and what is to be done about its worst finding."""
    found = report(text)
    worst = faults(found, check)
    return (worst[0].verdict.value, worst[0].remedy or "") if worst else (found.by_check[check].verdict.value, "")


def remedy(name: str) -> str:
    return remedies()[name]["text"]


@pytest.mark.parametrize(
    ("file", "check", "verdict", "what", "words"),
    [
        ("f02_reset_required_dmesg.log", "klog.xid", "fail", "reset", "NV_ERR_RESET_REQUIRED"),
        ("f04b_uvm_fatal_dmesg_only.txt", "klog.xid", "fail", "lost", "NV_ERR_GPU_IS_LOST"),
        ("f04b_uvm_fatal_dmesg_only.txt", "klog.xid", "fail", "reboot", "requiring os reboot"),
        ("f05b_rcu_only_dmesg.txt", "klog.hung", "warn", "uvm", "[nvidia_uvm]"),
        ("f06_bar1_0m_dmesg.txt", "klog.xid", "fail", "bar1", "BAR1 is 0M @ 0x0 (PCI:0000:14:00.0)"),
        ("f06_bar1_0m_dmesg.txt", "klog.xid", "fail", "bar1", "BAR1 is 0M @ 0x0 (PCI:0000:1c:00.0)"),
        ("f17_edac_ue_dmesg.txt", "host.edac", "fail", "dimm", "CPU_SrcID#1_MC#1_Chan#2_DIMM#0"),
        ("f21b_talos_marked_for_reset_only.txt", "klog.xid", "fail", "reset", "GSP RPC timeout"),
    ],
)
def test_a_kernel_log_of_a_report(file: str, check: str, verdict: str, what: str, words: str) -> None:
    found = [r for r in faults(report(text_of(f"reports/{file}")), check) if words in r.found.evidence]
    assert [(r.verdict.value, r.remedy) for r in found] == [(verdict, remedy(what))]


def test_links_that_fail_come_before_the_errors_they_cause() -> None:
    """H200: six Xid 137, then two contained Xid 94 on GPUs that had one."""
    first, *others = faults(report(text_of("reports/f09_h200_137_94_dmesg.txt")), "klog.xid")
    assert first.found.value == "Xid 137"
    assert "NVLink" in (first.remedy or "")
    contained = [r.found.evidence for r in others if r.found.value == "Xid 94"]
    assert len(contained) == 2
    assert all("follows Xid 137 on this GPU" in text for text in contained)


@pytest.mark.parametrize(
    "log",
    [
        text_of("reports/f22_dmesgT_de.log"),
        text_of("reports/f22_locale_fr.log"),
        "lut 27 17:40:36 gpu7 kernel: Linux version 6.8.0\nlut 27 17:41:36 gpu7 kernel: NVRM: Xid (PCI:0000:81:00): "
        "79, GPU has fallen off the bus.\nlut 28 08:00:01 gpu7 kernel: Linux version 6.8.0\n",
        " 2月 27 17:40:36 gpu7 kernel: Linux version 6.8.0\n 2月 27 17:41:36 gpu7 kernel: NVRM: Xid (PCI:0000:81:00): "
        "79, GPU has fallen off the bus.\n 2月 28 08:00:01 gpu7 kernel: Linux version 6.8.0\n",
        "[金  2月 27 17:40:36 2026] Linux version 6.8.0\n[金  2月 27 17:41:36 2026] NVRM: Xid (PCI:0000:81:00): "
        "79, GPU has fallen off the bus.\n[土  2月 28 08:00:01 2026] Linux version 6.8.0\n",
    ],
    ids=["de", "fr", "pl", "ja", "ja-dmesg"],
)  # fmt: skip
def test_dates_of_any_language_tell_an_earlier_boot(log: str) -> None:
    assert "fail" not in verdicts(log).values()
    assert "of earlier boots not counted" in report(log).by_check["klog.xid"].found.evidence


LINE = "kern  :err   : 2030-01-01T00:00:00,000000+00:00 "


@pytest.mark.parametrize(
    ("line", "check", "verdict", "what"),
    [
        ("NVRM: GPU0 kgspBootstrap: [NV_ERR_GPU_IN_FULLCHIP_RESET] (0x00000010)", "klog.xid", "fail", "reset"),
        ("nvidia-uvm: Encountered a global fatal error: Generic RC error [NV_ERR_RC_ERROR]", "klog.xid", "fail",
         "reboot"),
        ("NVRM: GPU 0000:19:00.0: RmInitAdapter failed! (0x62:0x40:2393)", "klog.xid", "fail", "adapter"),
        ("NVRM: nvAssertOkFailedNoLog: Assertion failed: [NV_ERR_FABRIC_MANAGER_NOT_PRESENT] (0x7A)", "klog.xid",
         "fail", "fabric"),
        ("BUG: kernel NULL pointer dereference, address: 0000000000000010\n"
         "Call Trace:\n uvm_va_block_evict+0x1/0x2 [nvidia_uvm]", "klog.hung", "fail", "reboot"),
        ("CMCI storm detected: switching to poll mode", "host.edac", "warn", "dimm_corrected"),
        ("{1}[Hardware Error]: event severity: fatal", "host.edac", "fail", "hardware_record"),
        ("mce: [Hardware Error]: Machine check: Uncorrected error", "host.edac", "fail", "dimm"),
    ],
)  # fmt: skip
def test_a_driver_fault_without_an_xid(line: str, check: str, verdict: str, what: str) -> None:
    log = BOOT + "".join(LINE + part + "\n" for part in line.split("\n"))
    assert told(log, check) == (verdict, remedy(what))


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Call not supported [NV_ERR_NOT_SUPPORTED] (0x00000056)",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Nvlink Fabric Status or Fabric Probe is not yet complete, caller "
        "needs to retry [NV_ERR_NVLINK_FABRIC_NOT_READY] (0x00000081) returned from kgmmuFabricProbe",
        "NVRM: GPU0 mmuWalkUnmap: Failed to unmap VA Range 0x7f0000000 to 0x7f0ffffff. Status = 0x00000040",
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "BUG: unable to handle page fault for address: ffffffff",
        "nouveau: probe of 0000:14:00.0 failed with error -1",
        "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0",
        "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:128b)\n"
        "NVRM: installed in this system is supported through the NVIDIA 470.xx Legacy drivers.",
    ],
)
def test_what_is_no_fault_of_the_driver_raises_no_alarm(line: str) -> None:
    log = BOOT + "".join(LINE + part + "\n" for part in line.split("\n"))
    assert {"warn", "fail"}.isdisjoint(verdicts(log).values())


def test_many_corrected_errors_are_told() -> None:
    line = LINE + "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0\n"
    assert told(BOOT + line * 30, "host.edac") == ("warn", remedy("dimm_corrected"))


def test_a_module_that_secure_boot_refuses() -> None:
    refused = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n"
    log = "[    9.1] Loading of unsigned module is rejected\n"
    assert told(refused + log, "driver.loaded") == ("fail", remedy("secure_boot"))
    assert told(refused, "driver.loaded") == ("fail", remedy("module"))


# What is edited in a healthy answer of nvidia-smi -q -x: pattern, text, how often, check, verdict, remedy.
EDITS = [
    (H100, r"(<state>)Completed", r"\1In Progress", 0, "gpu.fabric", "fail", "fabric"),
    (H100, r"(<status>)Success", r"\1Initialization Failed", 1, "gpu.fabric", "fail", "fabric"),
    (H100, r"(<status>)Success", r"\1Unknown Error", 1, "gpu.fabric", "fail", "fabric"),
    (H100, r"(<summary>)N/A", r"\1Limited Capacity", 1, "gpu.fabric", "warn", "fabric_health"),
    (H100, r"(<incorrect_configuration>)N/A", r"\1Insufficient Nvlink", 1, "gpu.fabric", "fail", "fabric_health"),
    (H100, r"(<summary>)N/A", r"\1Unhealthy", 1, "gpu.fabric", "fail", "fabric_health"),
    (H100, r"(<bandwidth>)N/A", r"\1Degraded", 1, "gpu.fabric", "warn", "fabric_health"),
    (H100, r"(<route_unhealthy>)N/A", r"\1True", 1, "gpu.fabric", "fail", "fabric_health"),
    (H100, r"(<gpu_temp>)\d+ C", r"\1GPU requires reset", 1, "gpu.lost", "fail", "reset"),
    (H100, r"(<fan_speed>)N/A", r"\1ERR!", 1, "gpu.lost", "warn", "again"),
    (H100, r"(<gpu_recovery_action>)None", r"\1Node Reboot", 1, "gpu.recovery", "fail", "reboot"),
    (H100, r"(<instant_power_draw>)[\d.]+ W", r"\g<1>790.00 W", 1, "gpu.power", "warn", "power_draw"),
]  # fmt: skip


@pytest.mark.parametrize(("healthy", "pattern", "text", "count", "check", "verdict", "what"), EDITS)
def test_a_field_of_a_healthy_host_that_says_it_cannot_serve(
    healthy: str, pattern: str, text: str, count: int, check: str, verdict: str, what: str
) -> None:
    edited = re.sub(pattern, text, healthy, count=count)
    assert edited != healthy
    assert told(healthy, check)[0] in ("pass", "skip")
    assert told(edited, check) == (verdict, remedy(what))


@pytest.mark.parametrize(
    ("mode", "status", "verdict"),
    [
        ("VGPU", "Unlicensed (Restricted)", "fail"),
        ("VGPU", "Unlicensed (Unrestricted)", "warn"),  # for the first minutes of a guest
        ("VGPU", "Licensed (Expiry: 2030-1-1 0:0:0 GMT)", "pass"),
        ("Pass-Through", "Unlicensed (Restricted)", "skip"),  # of a workstation's graphics: CUDA needs none
        ("None", "Unlicensed (Unrestricted)", "skip"),
    ],
)
@pytest.mark.parametrize("product", ["vgpu_software_licensed_product", "grid_licensed_product"])
def test_only_a_virtual_gpu_needs_a_licence(product: str, mode: str, status: str, verdict: str) -> None:
    text = re.sub(r"(<virtualization_mode>)[^<]*", rf"\g<1>{mode}", H100)
    text = text.replace(
        "<display_mode>", f"<{product}><license_status>{status}</license_status></{product}><display_mode>"
    )
    assert told(text, "gpu.license") == (verdict, remedy("license") if verdict in ("warn", "fail") else "")


def test_one_gpu_that_is_left_out_of_the_fabric() -> None:
    one = H100.replace("<state>Completed", "<state>N/A", 1)
    assert told(one, "gpu.fabric") == ("warn", remedy("fabric"))
    assert told(one.replace("<current_mig>Disabled", "<current_mig>Enabled", 1), "gpu.fabric")[0] == "pass"


def test_a_state_of_the_fabric_that_nobody_knows_is_no_verdict() -> None:
    assert told(H100.replace("<state>Completed", "<state>Dormant"), "gpu.fabric") == ("warn", remedy("fabric"))


def test_a_fabric_that_cuda_starts_without_is_no_failure() -> None:
    waits = H100.replace("<state>Completed", "<state>In Progress")
    for cuda, verdict in ((None, "fail"), (CudaStart(802), "fail"), (CudaStart(0, "", 8), "warn")):
        assert result(seen(waits, cuda=cuda), "gpu.fabric") == (verdict, remedy("fabric"))


def test_what_holds_a_gpu_that_needs_a_reset_is_named() -> None:
    needy = re.sub(r"(<gpu_temp>)\d+ C", r"\1GPU requires reset", H100, count=1)
    assert "held by persistence mode" in report(needy).by_check["gpu.lost"].found.evidence


def at_work(text: str, *, sm: int, pstate: str = "P0") -> str:
    """All GPUs of an answer at full load, with this SM clock (MHz)."""
    text = re.sub(r"(<gpu_util>)\d+", r"\g<1>100", text)
    text = re.sub(r"(<performance_state>)P\d+", rf"\g<1>{pstate}", text)
    return re.sub(r"(?s)(<clocks>.*?<sm_clock>)\d+", rf"\g<1>{sm}", text)


def test_a_busy_gpu_that_is_slower_than_its_peers() -> None:
    busy = at_work(H100, sm=1980)
    assert told(busy, "gpu.clocks") == ("pass", "")
    slow = re.sub(r"(?s)(<clocks>.*?<sm_clock>)1980", r"\g<1>345", busy, count=1)
    capped = slow.replace("sw_power_cap>Not Active", "sw_power_cap>Active", 1)
    assert told(capped, "gpu.clocks") == ("fail", remedy("clocks"))
    (found,) = faults(report(capped), "gpu.clocks")
    assert "345 MHz" in found.found.evidence
    assert "1980 (power cap)" in found.found.evidence


def test_a_clock_that_the_power_limit_explains() -> None:
    """Cards of 72 W compute at a third of their highest clock: they draw all that they may."""
    slow = re.sub(r"(?s)(<clocks>.*?<sm_clock>)1980", r"\g<1>700", at_work(H100, sm=1980), count=1)
    capped = slow.replace("sw_power_cap>Not Active", "sw_power_cap>Active", 1)
    assert told(capped, "gpu.clocks")[0] == "fail"
    assert told(re.sub(r"(<instant_power_draw>)[\d.]+", r"\g<1>690.00", capped, count=1), "gpu.clocks")[0] == "pass"
    stuck = capped.replace("<sm_clock>700", "<sm_clock>345", 1)
    assert told(re.sub(r"(<instant_power_draw>)[\d.]+", r"\g<1>690.00", stuck, count=1), "gpu.clocks")[0] == "fail"


def test_all_at_a_clock_that_no_load_explains() -> None:
    assert told(at_work(PRO6000, sm=210), "gpu.clocks") == ("fail", remedy("clocks"))
    assert told(at_work(PRO6000, sm=2400), "gpu.clocks") == ("pass", "")
    locked = at_work(PRO6000, sm=210).replace("clocks_setting>Not Active", "clocks_setting>Active", 1)
    assert told(locked, "gpu.clocks") == ("warn", remedy("locked_clocks"))
    assert told(PRO6000, "gpu.clocks")[0] == "skip"  # at rest


@pytest.mark.parametrize("pstate", ["P0", "P1", "P2"])
def test_a_link_below_what_card_and_slot_can(pstate: str) -> None:
    """GeForce works in P2, workstation cards in P1; and eight slow links are no yardstick for each other."""
    busy = at_work(H100, sm=1980, pstate=pstate)
    assert told(busy, "pcie.gen")[0] == "pass"
    assert told(busy.replace("<current_link_gen>5", "<current_link_gen>2", 1), "pcie.gen")[0] == "fail"
    assert told(busy.replace("<current_link_gen>5", "<current_link_gen>1"), "pcie.gen")[0] == "fail"
    assert told(busy.replace("<current_link_gen>5", "<current_link_gen>4"), "pcie.gen")[0] == "warn"


def test_a_display_is_no_load() -> None:
    """A desktop that draws its windows: a few per cent, 35 of 350 W, and the link saves power."""
    drawing = re.sub(r"(<gpu_util>)\d+", r"\g<1>7", GEFORCE).replace("<performance_state>P8", "<performance_state>P0")
    assert told(drawing, "pcie.gen")[0] == "skip"


def seen(
    text: str, *, pci: tuple[PciDevice, ...] | None = None, before: State | None = None, **host: object
) -> Evidence:
    found = capture.read(text, "text")
    assert found is not None
    said = Host(**{**{name: getattr(found.host, name) for name in Host.__dataclass_fields__}, **host})
    return Evidence(found.readings, found.smi_errors, kernel=found.kernel, pci=pci, before=before, host=said)


def result(evidence: Evidence, check: str) -> tuple[str, str | None]:
    found = judge("host", evidence, Settings()).by_check[check]
    return found.verdict.value, found.remedy


def gpus(text: str, **more: object) -> list[PciDevice]:
    found = capture.read(text, "text")
    assert found is not None
    return [PciDevice(str(g.ref.bus_id), gpu=True, **more) for r in found.readings for g in r.gpus]  # type: ignore[arg-type]


SWITCH = PciDevice("0000:83:00.0", switch=True)
A100 = text_of("k8s-test-infra/mock/qx-a100-healthy.xml")  # its fabric says N/A, with switches too


@pytest.mark.parametrize(
    ("text", "switch", "manager", "verdict"),
    [
        (H100, True, "failed", "fail"),
        (H100, True, "inactive", "warn"),  # joined before: it holds until a reset
        (H100, True, "active", "pass"),
        (A100, True, "failed", "fail"),
        (A100, True, "inactive", "fail"),
        (A100, True, "absent", "fail"),
        (A100, True, "active", "pass"),
        (A100, True, None, "skip"),
        (GB200, False, "absent", "pass"),  # NVL72: it runs on the switch trays
        (GB200, False, "failed", "pass"),  # installed with the driver, and there is nothing for it to manage
        (H100, False, "failed", "fail"),  # B200: its switches are no NVIDIA devices on PCI
        (PRO6000, False, "failed", "skip"),  # installed with the driver, and nobody needs it
    ],
)
def test_the_fabric_manager_counts_where_it_is_needed(
    text: str, switch: bool, manager: str | None, verdict: str
) -> None:
    pci = (*gpus(text), SWITCH) if switch else tuple(gpus(text))
    assert result(seen(text, pci=pci, fabric_manager=manager), "gpu.fabric")[0] == verdict


def status(*counts: tuple[int, int]) -> str:
    """What `nvidia-smi nvlink -s` prints: (links up, links down) of each GPU."""
    lines = []
    for index, (up, down) in enumerate(counts):
        lines.append(f"GPU {index}: NVIDIA H100 80GB HBM3 (UUID: GPU-{index:08x}-0000-0000-0000-000000000000)")
        lines += [f"\t Link {n}: 26.562 GB/s" for n in range(up)]
        lines += [f"\t Link {n}: <inactive>" for n in range(up, up + down)]
    return "\n".join(lines) + "\n"


# What nvidia-smi says instead where no link of any GPU is up.
DOWN = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
MIG = H100.replace("<current_mig>N/A", "<current_mig>Enabled").replace("<current_mig>Disabled", "<current_mig>Enabled")
SXM = re.sub(r"(?s)<fabric>.*?</fabric>", "", H100)


@pytest.mark.parametrize(
    ("text", "links", "verdict"),
    [
        (H100, status(*[(18, 0)] * 8), "pass"),
        (H100, status(*[(18, 0)] * 7, (16, 2)), "fail"),
        (H100, status(*[(0, 18)] * 8), "fail"),
        (PRO6000, status(), "pass"),  # no NVLink at all: nvidia-smi prints nothing
        (PRO6000, status((0, 4)), "pass"),  # links that nobody bridged
        (PRO6000, status((4, 0), (4, 0), (0, 4)), "pass"),  # two bridged, one alone
        (PRO6000, status((4, 0), (3, 1)), "warn"),
        (H100, status(*[(0, 0)] * 8) + DOWN, "fail"),
        (PRO6000, status((0, 0)) + DOWN, "pass"),  # an A100 in a slot without its bridge says so
        (SXM, status((8, 4), (8, 4), (8, 4), (0, 12)), "fail"),  # a board of four, of which one has lost all links
        (MIG, status(*[(0, 18)] * 8), "pass"),  # GPUs that are divided use no links
        (MIG, status(*[(0, 0)] * 8) + DOWN, "pass"),
        (H100, status(*[(18, 0)] * 8).replace("Link 3: 26.562 GB/s", "Link 3: <sleeping>", 1), "skip"),
        (H100, status(*[(18, 0)] * 7, (16, 2)).replace("Link 3: 26.562 GB/s", "Link 3: <sleeping>", 1), "fail"),
    ],
)
def test_links_are_compared_with_their_peers(text: str, links: str, verdict: str) -> None:
    read = capture.read(links, "nvlink.txt") if links.strip() else Evidence(host=Host(links=()))
    assert read is not None
    assert result(seen(text, links=read.host.links), "gpu.nvlink")[0] == verdict


def test_errors_of_links_count_when_they_are_new() -> None:
    before = State(0.0, "", {("nvlink_errors", "0"): 5.0})
    for now, verdict in ((5, "pass"), (9, "warn")):
        links = (Links(0, None, 18, 0, now), Links(1, None, 18, 0, 0))
        assert result(seen(H100, links=links, before=before), "gpu.nvlink")[0] == verdict


def test_bridged_pairs_reach_the_other_pairs_over_pcie() -> None:
    pci = tuple(PciDevice(f"0000:{n}1:00.0", gpu=True) for n in range(4))
    for cards, verdict in ((2, "pass"), (4, "warn")):
        read = capture.read(status(*[(12, 0)] * cards), "nvlink.txt")
        assert read is not None
        host = Host(links=read.host.links, cmdline="root=/dev/sda1 intel_iommu=on")
        assert result(Evidence(pci=pci[:cards], host=host), "p2p.config")[0] == verdict


def test_one_gpu_has_no_peers() -> None:
    assert result(seen(GEFORCE, cmdline="root=/dev/sda1 intel_iommu=on"), "p2p.config")[0] == "skip"


@pytest.mark.parametrize("words", ["iommu=pt", "intel_iommu=on"])
def test_peers_over_nvlink_do_not_care_about_the_iommu(words: str) -> None:
    pci = tuple(gpus(H100))
    assert result(seen(H100, pci=pci, cmdline=f"root=/dev/sda1 {words}"), "p2p.config")[0] == "pass"


def test_a_card_that_another_driver_holds_is_told_as_that() -> None:
    seven = re.sub(r"(?s)<gpu id=.*?</gpu>", "", H100, count=1).replace("attached_gpus>8", "attached_gpus>7")
    eight = gpus(H100, driver="nvidia")
    passed_on = (PciDevice(eight[0].bus_id, gpu=True, driver="vfio-pci"), *eight[1:])
    evidence = seen(seven, pci=passed_on)
    assert result(evidence, "gpu.count") == ("pass", None)
    assert "held by vfio-pci" in judge("host", evidence, Settings()).by_check["gpu.count"].found.evidence
    assert result(seen(seven, pci=tuple(eight)), "gpu.count")[0] == "fail"


def test_one_numa_node_needs_no_name() -> None:
    pci = (PciDevice("0000:01:00.0", gpu=True, numa_node=-1),)
    for nodes, verdict in ((1, "pass"), (2, "warn"), (None, "skip")):
        assert result(Evidence(pci=pci, host=Host(numa_nodes=nodes)), "topo.affinity")[0] == verdict


def test_memory_controllers_and_ports() -> None:
    bad = MemoryController("mc3", 2, 1, ("CPU_SrcID#1_MC#1_Chan#2_DIMM#0",))
    assert result(Evidence(host=Host(memory_controllers=(bad,))), "host.edac") == ("fail", remedy("dimm"))
    up = NetworkPort("mlx5_0/1", "ACTIVE", "LinkUp", "InfiniBand", 400.0, 0, ("0000:19:00.0",))
    down = NetworkPort("mlx5_1/1", "DOWN", "Polling", "InfiniBand", 400.0, 1, ("0000:3b:00.0",))
    management = NetworkPort("mlx5_2/1", "DOWN", "Disabled", "Ethernet", 25.0, 0)
    assert result(Evidence(host=Host(network=(up, down))), "net.ports") == ("warn", remedy("link_port"))
    assert result(Evidence(host=Host(network=(up, management))), "net.ports")[0] == "pass"
    assert result(Evidence(host=Host(network=(down,))), "net.ports")[0] == "pass"  # nothing says that it is used


@pytest.mark.parametrize(
    ("text", "check", "verdict"),
    [
        ("".join(f"    {line}\n" for line in TEXT.splitlines()), "gpu.count", "pass"),
        ("".join(f"> {line}\n" for line in TEXT.splitlines()), "gpu.count", "pass"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\nGCC version: 13\n",
         "driver.loaded", "pass"),
        ("available: 2 nodes (0-1)\nnode 0 cpus: 0 1\n", "topo.affinity", "skip"),
        ("Architecture:            x86_64\nCPU(s):                  64\n  On-line CPU(s) list:   0-31\n"
         "NUMA node(s):            2\n", "host.cpus", "warn"),
        ("+---------------------------+------------------------------------------------+\n"
         "| Diagnostic                | Result                                         |\n"
         "+===========================+================================================+\n"
         "| Denylist                  | Pass                                           |\n"
         "| PCIe                      | Fail - GPU: 3                                  |\n"
         "| Warning                   | GPU 3 Detected 2 PCIe replays                  |\n", "dcgm.diag", "fail"),
        (json.dumps({"DCGM GPU Diagnostic": {"test_categories": [{"category": "Deployment", "tests": [
            {"name": "Denylist", "results": [{"gpu_id": "0", "status": "Pass"}]}]}]}}), "dcgm.diag", "pass"),
        (json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": [
            {"name": "memory", "results": [{"entity_id": 2, "status": "Fail",
             "warnings": [{"warning": "DBE in GPU 2"}]}]}]}]}}), "dcgm.diag", "fail"),
    ],
    ids=["indented", "quoted", "version", "numactl", "lscpu", "dcgmi", "dcgmi-json", "dcgmi4-json"],
)  # fmt: skip
def test_more_texts_are_read(text: str, check: str, verdict: str) -> None:
    assert verdicts(text)[check] == verdict


@pytest.mark.parametrize("text", [H100, GB200, PRO6000, GEFORCE], ids=["h100", "gb200", "pro6000", "geforce"])
def test_healthy_hosts_are_silent(text: str) -> None:
    silent = {check: v for check, v in verdicts(text).items() if v in ("warn", "fail")}
    # The desktop cards have persistence off and a narrower slot, as the captures say.
    assert set(silent) <= ({"gpu.persistence", "pcie.width"} if text in (GEFORCE, PRO6000) else set())


def test_a_host_of_which_the_decisive_was_not_seen_is_not_fit() -> None:
    found = report(BOOT)
    assert {"warn", "fail"}.isdisjoint(r.verdict.value for r in found.results)
    assert found.verdict is Verdict.SKIP
    assert set(found.undecided) == {"driver.loaded", "gpu.count", "gpu.lost"}
    assert report(H100).verdict is Verdict.PASS
    switched = seen(A100, pci=(*gpus(A100), SWITCH))  # no GPU names its fabric, and nobody asked for its manager
    assert judge("host", switched, Settings()).undecided == ("gpu.fabric",)
    started = seen(A100, pci=(*gpus(A100), SWITCH), cuda=CudaStart(0, "", 8))
    assert judge("host", started, Settings()).verdict is Verdict.PASS
    # Nobody misses the GPUs of a host that has none.
    assert judge("host", Evidence(), Settings(profile=Profile(gpus=0))).undecided == ()
