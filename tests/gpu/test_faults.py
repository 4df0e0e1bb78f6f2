"""Synthetic faults, planted in real healthy captures, are always found; benign changes never alarm."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from opsctl.errors import Unreadable, UsageError
from opsctl.gpu.read import smi_text, smi_xml
from opsctl.gpu.settings import Profile, Settings, record
from tests.gpu.judging import report, text_of, verdicts

H100 = text_of("k8s-test-infra/hardware/qx-h100.xml")  # 580, eight GPUs, healthy, idle
PRO6000 = text_of("telegraf/pro-6000-maxq-blackwell-v13.xml")  # 590, one GPU
BRAKED = text_of("gpud/nvidia-smi-text/nvidia-smi-query.535.161.08.out.0.valid")  # 535 text, eight GPUs
TURING_610 = text_of("nvidia_gpu_exporter/linux-x86_64__nvidia-geforce-rtx-2080-super__610.57.04.txt")
LSPCI = text_of("gpud/pci/lspci-vvv")
BOOT = text_of("gpud/dmesg/dmesg.decode.iso.log.1")
TABLE = text_of("gpud/nvidia-smi-text/nvidia-smi.550.90.07.out.0.valid")

# What test_fault_matrix has not: further values, thresholds, and places. The first match alone is edited.
# capture, pattern to edit, what to write, check, verdict
FAULTS = [
    (H100, r"<gpu_recovery_action>None", "<gpu_recovery_action>Drain and Reset", "gpu.recovery", "fail"),
    (H100, r"(histogram_none>)0", r"\g<1>3", "ecc.rows", "fail"),
    (H100, r"(histogram_low>)0", r"\g<1>3", "ecc.rows", "warn"),
    (H100, r"(<current_link_width>)16x", r"\g<1>8x", "pcie.width", "warn"),
    (H100, r"(<gpu_temp_tlimit>)\d+", r"\g<1>2", "gpu.temp", "fail"),
    (H100, r"(<gpu_temp_tlimit>)\d+", r"\g<1>8", "gpu.temp", "warn"),
    (H100, r"(<memory_temp>)\d+", r"\g<1>101", "gpu.temp", "fail"),
    (H100, r"(<vbios_version>)\w+", r"\g<1>1", "gpu.uniform", "warn"),
    (H100, r"(<gpu_temp>)\d+ C", r"\g<1>Unknown Error", "gpu.lost", "warn"),
    (H100, r"(?s)<gpu id=.*?</gpu>", "", "gpu.count", "fail"),
    (PRO6000, r"(<used>)65720 MiB(</used>\s+<free>31531)", r"\g<1>70000 MiB\2", "gpu.leftover", "fail"),
    (BRAKED, r"(Reset Required\s+: )No", r"\g<1>Yes", "gpu.recovery", "fail"),
    (TURING_610, r"(Slowdown Temp\s+: )97", r"\g<1>35", "gpu.temp", "fail"),
    (LSPCI, r"(3D controller: NVIDIA(?s:.*?)LnkSta:[^\n]*Width )x16", r"\g<1>x2", "pcie.width", "fail"),
    (TABLE, r"On  (\|   00000000:3B:00.0 Off \|\s+)0 ", r"On  \g<1>7 ", "ecc.uncorrected", "fail"),
    (TABLE, r"N/A   24C    P0             74W", "N/A  ERR!    P0             74W", "gpu.lost", "warn"),
    (TABLE, r"N/A   24C    P0             74W", "ERR!  ERR! ERR!           ERR!", "gpu.lost", "fail"),
]


@pytest.mark.parametrize(("capture", "pattern", "planted", "check", "verdict"), FAULTS)
def test_planted_fault(capture: str, pattern: str, planted: str, check: str, verdict: str) -> None:
    edited = re.sub(pattern, planted, capture, count=1)
    assert edited != capture
    assert verdicts(edited)[check] == verdict


def test_slow_link_among_busy_peers() -> None:
    busy = re.sub(r"<gpu_util>\d+", "<gpu_util>98", H100)
    assert verdicts(busy)["pcie.gen"] == "pass"
    assert verdicts(busy.replace("<current_link_gen>5", "<current_link_gen>2", 1))["pcie.gen"] == "fail"
    # At rest the same link says nothing.
    assert verdicts(H100.replace("<current_link_gen>5", "<current_link_gen>2", 1))["pcie.gen"] == "skip"


def test_acs_redirect_counts_only_above_a_gpu() -> None:
    over_pcie = LSPCI.replace("Bridge: NVIDIA", "Bridge: Other")  # without its NVSwitches
    assert verdicts(over_pcie)["p2p.config"] == "pass"
    planted = re.sub(r"(^17:01\.0 (?s:.*?)ACSCtl:[^\n]*?ReqRedir)-", r"\1+", over_pcie, count=1, flags=re.MULTILINE)
    assert planted != over_pcie
    assert verdicts(planted)["p2p.config"] == "warn"
    # Where the GPUs reach each other by NVLink, PCIe between them is nobody's concern.
    assert verdicts(planted.replace("Bridge: Other", "Bridge: NVIDIA"))["p2p.config"] == "pass"


LATER = "kern  :err   : 2030-01-01T00:00:00,000000+00:00 "


@pytest.mark.parametrize(
    ("line", "check", "verdict"),
    [
        ("NVRM: Xid (PCI:0000:19:00 GPU-I:05 GPU-CI:00): 94, pid=7, name=python3, Ch 8", "klog.xid", "fail"),
        ("NVRM: Xid (PCI:0000:19:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
         "klog.xid", "pass"),
        ("NVRM: Xid (PCI:0000:19:00): 31, pid=7, name=sglang::schedul, MMU Fault: ENGINE GRAPHICS", "klog.xid", "warn"),
        ("NVRM: Xid (PCI:0000:19:00): 149, NETIR_LINK_EVT  Nonfatal   XC0 i0", "klog.xid", "warn"),
        ("NVRM: Xid (PCI:0000:19:00): 9999, something new", "klog.xid", "warn"),
        ("NVRM: The NVIDIA GPU 0000:19:00.0", "klog.offbus", "fail"),
        ("nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 22013, Fatal, Link 3 minion", "klog.sxid", "fail"),
        ("nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Non-fatal, Link 3 egress", "klog.sxid", "warn"),
        ("pcieport 0000:80:01.1: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction", "klog.aer", "fail"),
        ("DMAR: [DMA Read NO_PASID] Request device [19:00.0] fault addr 0x1", "klog.iommu", "warn"),
        ("INFO: task python3:4242 blocked for more than 122 seconds.", "klog.hung", "warn"),
        ("EXT4-fs (nvme0n1p2): Remounting filesystem read-only", "klog.disk", "warn"),
    ],
)  # fmt: skip
def test_line_added_to_a_healthy_log(line: str, check: str, verdict: str) -> None:
    found = verdicts(BOOT + LATER + line + "\n")
    assert found[check] == verdict
    others = {k: v for k, v in found.items() if k.startswith("klog.") and k != check}
    assert set(others.values()) == {"pass"}


@pytest.mark.parametrize(
    ("line", "check", "verdict"),
    [
        ("NVRM: GPU 0000:19:00.0: RmInitAdapter failed! (0x62:0x40:2393)", "klog.xid", "fail"),
        (
            "NVRM: The NVIDIA GPU 0000:19:00.0 (PCI ID: 10de:2bb5)\nNVRM: installed in this system requires use of the "
            "NVIDIA open kernel modules.",
            "klog.xid",
            "warn",
        ),
        (
            "NVRM: The NVIDIA GPU 0000:b3:00.0\nNVRM: (PCI ID: 10de:26b5) installed in this system has\n"
            "NVRM: fallen off the bus and is not responding to commands.",
            "klog.offbus",
            "fail",
        ),
        ("pcieport 0000:80:01.1: DPC: containment event, status:0x1f01 source:0x0000", "klog.aer", "fail"),
        ("{1}[Hardware Error]:   aer_uncor_status: 0x00000020, aer_uncor_mask: 0x00100000", "klog.aer", "fail"),
        ("{1}[Hardware Error]:   aer_uncor_status: 0x00000000, aer_uncor_mask: 0x00100000", "klog.aer", "pass"),
        ("pcieport 0000:80:01.1: DPC: error containment capabilities: Int Msg #0, RPExt+", "klog.aer", "pass"),
        (
            "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python3: lblock 0",
            "klog.disk",
            "warn",
        ),
        ("I/O error, dev nvme0n1, sector 12345 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2", "klog.disk", "warn"),
        (
            "XFS (nvme0n1p1): Corruption of in-memory data (0x8) detected. Shutting down filesystem.",
            "klog.disk",
            "warn",
        ),
        ("nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10", "klog.disk", "warn"),
        ("I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700", "klog.disk", "pass"),
        ("Buffer I/O error on dev fd0, logical block 0, async page read", "klog.disk", "pass"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", "klog.disk", "pass"),
    ],
)
def test_more_lines_added_to_a_healthy_log(line: str, check: str, verdict: str) -> None:
    found = verdicts(BOOT + "".join(LATER + part + "\n" for part in line.split("\n")))
    assert found[check] == verdict
    assert {v for k, v in found.items() if k.startswith("klog.") and k != check} == {"pass"}


def test_an_iommu_fault_of_what_the_driver_calls_a_gpu() -> None:
    """No list of GPUs in the log; the driver's own line names one of them."""
    fault = "[  20.5] DMAR: [DMA Write NO_PASID] Request device [{}] fault addr 0xfe000000\n"
    log = "[  12.5] NVRM: Xid (PCI:0000:3b:00): 13, pid=1, name=python3, Ch 8\n"
    assert verdicts(log + fault.format("3b:00.0"))["klog.iommu"] == "fail"
    assert verdicts(log + fault.format("05:00.0"))["klog.iommu"] == "warn"


OFF = "NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "log",
    [
        f"[ 9999.5] {OFF}\n[   12.5] NVRM: loading NVIDIA UNIX Open Kernel Module\n",  # grep NVRM kern.log
        f"Jun 24 15:44:42 n1 kernel: [ 9999.5] {OFF}\nJun 25 10:00:00 n1 kernel: [   12.5] NVRM: loading\n",
        f"Wed 2026-06-24 15:44:42 UTC n1 kernel: {OFF}\nThu 2026-06-25 10:00:00 UTC n1 kernel: Linux version 6.8.0\n",
        f'{{"_BOOT_ID":"a","MESSAGE":"{OFF}"}}\n{{"_BOOT_ID":"b","MESSAGE":"NVRM: loading"}}\n',
        f"2026-06-25T10:00:02+0000 n1 kernel: usb 1-1: new\n2026-06-25T10:00:00+0000 n1 kernel: Linux version 6.8.0\n"
        f"2026-06-24T15:44:42+0000 n1 kernel: {OFF}\n",  # journalctl -r
    ],
)
def test_a_fault_before_the_last_boot_is_over(log: str) -> None:
    assert verdicts(log)["klog.xid"] == "pass"
    assert "1 of earlier boots" in report(log, None).by_check["klog.xid"].found.evidence


def test_a_log_with_the_newest_line_first_loses_nothing() -> None:
    log = f"2026-06-25T10:00:02+0000 n1 kernel: {OFF}\n2026-06-25T10:00:00+0000 n1 kernel: Linux version 6.8.0\n"
    assert verdicts(log)["klog.xid"] == "fail"


@pytest.mark.parametrize("line", ["systemd-journald[321]: Missed 34 kernel messages", "NVRM: 12 callbacks suppressed",
                                  "** 35 printk messages dropped **"])  # fmt: skip
def test_dropped_messages_are_remarked_on(line: str) -> None:
    assert (
        "messages were dropped" in report(f"[ 1.5] usb 1-1: new\n[ 2.5] {line}\n").by_check["klog.xid"].found.evidence
    )


def test_only_the_last_boot_counts() -> None:
    xid = "NVRM: Xid (PCI:0000:19:00): 79, GPU has fallen off the bus.\n"
    boot = "kern  :notice: 2025-01-17T15:36:00,000000+00:00 Linux version 6.8.0-45-generic (gcc 13)\n"
    assert verdicts(LATER + xid + boot + BOOT)["klog.xid"] == "pass"
    assert verdicts(LATER + xid + "-- Boot 0123456789abcdef0123456789abcdef --\n" + BOOT)["klog.xid"] == "pass"
    assert verdicts(BOOT + LATER + xid)["klog.xid"] == "fail"


@given(st.integers(min_value=200, max_value=len(H100) - 20))
@settings(max_examples=40)
def test_a_cut_file_is_never_called_sound(length: int) -> None:
    try:
        found = verdicts(H100[:length])
    except Unreadable:
        return
    whole = {c: v for c, v in found.items() if c.startswith(("gpu.", "ecc.", "pcie."))}
    assert "pass" not in whole.values()
    assert "warn" not in whole.values()


@given(st.integers(min_value=1200, max_value=BRAKED.rindex("    Processes")))
@example(BRAKED.index("GPU 00000000:3B:00.0"))  # between two GPUs
@settings(max_examples=40)
def test_a_cut_text_is_never_called_sound(length: int) -> None:
    found = verdicts(BRAKED[:length])
    for check in ("gpu.count", "ecc.uncorrected", "ecc.rows", "gpu.leftover", "gpu.temp", "gpu.power"):
        assert found[check] in ("skip", "fail"), check


def test_an_answer_about_one_gpu_says_nothing_about_the_others() -> None:
    """`nvidia-smi -q -x -i 3`: it names how many there are, and not which number this one has."""
    fourth = re.findall(r"(?s)<gpu id=.*?</gpu>", H100)[3]
    alone = re.sub(r"(?s)<gpu id=.*</gpu>", fourth.replace("<product_name>", "<product_name>ERR!"), H100)
    found = {r.check: r for r in report(alone).results}
    assert found["gpu.count"].verdict == "skip"
    assert "8 attached, 1 listed" in found["gpu.count"].found.evidence
    assert found["gpu.lost"].found.gpu is not None
    assert found["gpu.lost"].found.gpu.index is None


def test_half_a_number_is_not_believed() -> None:
    """Cut inside `81559 MiB`: what is left of it looks like a number."""
    end = BRAKED.index("Total", BRAKED.index("FB Memory Usage"))
    cut = BRAKED[: BRAKED.index("MiB", end) - 3]
    assert cut[-2:].isdigit()
    assert smi_text.read(cut).gpus[0].memory_total is None


# A value of a healthy idle card, and the range in which nothing is wrong with it.
BENIGN = {
    r"(<gpu_temp>)\d+": (5, 60),
    r"(<gpu_temp_tlimit>)\d+": (9, 90),
    r"(<memory_temp>)\d+": (10, 94),
    r"(<fan_speed>)[^<%]+": (0, 100),
    r"(<replay_counter>)\d+": (0, 10**6),
    r"(<tx_util>)\d+": (0, 10**7),
    r"(?s)(<fb_memory_usage>.*?<used>)\d+": (0, 1024),
    r"(sw_power_cap>)\d+": (0, 10**12),
    r"(<instant_power_draw>)[\d.]+": (10, 700),
    r"(<remapped_row_corr>)\d+": (0, 30),
    r"(<remapped_row_unc>)\d+": (0, 30),
}


@given(st.data(), st.text("ABCDEFGHJKLMNPQRSTUVWXYZ 0123456789", min_size=3, max_size=40).filter(str.strip))
@settings(max_examples=40)
def test_benign_values_never_alarm(data: st.DataObject, name: str) -> None:
    edited = re.sub(r"<product_name>[^<]+", f"<product_name>{name.strip()}", H100)
    for pattern, (low, high) in BENIGN.items():
        value = data.draw(st.integers(low, high))
        edited = re.sub(pattern, rf"\g<1>{value}", edited)
    for absent in data.draw(st.sets(st.sampled_from(["memory_temp", "fan_speed", "gpu_temp_tlimit", "vbios_version"]))):
        edited = re.sub(rf"<{absent}>[^<]*", f"<{absent}>N/A", edited)
    assert {"warn", "fail"}.isdisjoint(verdicts(edited).values())


def test_profile_recorded_from_a_healthy_host_fits_it_and_no_other() -> None:
    reading = smi_xml.read(H100)
    profile = record(reading.gpus, reading.driver)
    assert profile == Profile(8, "NVIDIA H100 80GB HBM3", 81559, 700, 16, "580.105.08")
    known = Settings(profile=Profile.load(profile.dump()))
    assert {"warn", "fail"}.isdisjoint(verdicts(H100, known).values())
    found = verdicts(PRO6000, known)
    assert found["gpu.count"] == "fail"
    assert found["gpu.uniform"] == found["gpu.power"] == found["driver.loaded"] == "warn"


def test_thresholds_can_be_set_and_misspelt_ones_are_refused() -> None:
    strict = Settings(limits={"temp.headroom.warn": 60})
    assert verdicts(H100, strict)["gpu.temp"] == "warn"
    with pytest.raises(UsageError, match=r"temp\.headrom\.warn") as error:
        Settings(limits={"temp.headrom.warn": 60})
    assert error.value.hint == "did you mean 'temp.headroom.warn'?"


@pytest.mark.parametrize(
    ("name", "value"),
    [("disk.fail.fraction", 5), ("fd.warn", 80), ("smi.fail", 0), ("shm.fail", -1), ("smi.fail", 1e6)],
)
def test_thresholds_in_another_unit_are_refused(name: str, value: float) -> None:
    with pytest.raises(UsageError) as error:
        Settings(limits={name: value})
    assert "shipped" in (error.value.hint or "")


@pytest.mark.parametrize(
    "text",
    [
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "y">]><nvidia_smi_log><a>&x;</a></nvidia_smi_log>',
        '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY x SYSTEM "file:///etc/passwd">]><nvidia_smi_log/>',
        '<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ELEMENT a ANY>]><nvidia_smi_log><a>1</a></nvidia_smi_log>',
        '<?xml version="1.0"?><html/>',
        '<?xml version="1.0"?><nvidia_smi_log>' + "<a>" * 100,
    ],
)
def test_hostile_xml_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        verdicts(text)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.124\n",
            "driver.mismatch",
        ),
        ("Failed to initialize NVML: Unknown Error\n", "driver.loaded"),
        ("No devices were found\n", "gpu.count"),
        ("Unable to determine the device handle for GPU0000:17:00.0: Unknown Error\n", "gpu.lost"),
        ("Unable to determine the device handle for GPU 0000:0B:00.0: GPU is lost.  Reboot the system\n", "gpu.lost"),
        ("Unable to determine the device handle for GPU2: 0000:41:00.0: Unknown Error\n", "gpu.lost"),
        ("bash: line 1: nvidia-smi: command not found\n", "driver.loaded"),
    ],
)
def test_refusals_of_nvidia_smi(text: str, check: str) -> None:
    found = verdicts(text)
    assert found[check] == "fail"
    assert [c for c, v in found.items() if v == "fail"] == [check]


def test_a_corrupt_inforom_is_a_warning_beside_the_reading() -> None:
    found = verdicts(TABLE + "\nWARNING: infoROM is corrupted at gpu 0000:3B:00.0\n")
    assert found["gpu.lost"] == "warn"
    assert "fail" not in found.values()


@pytest.mark.parametrize(
    ("code", "processes", "verdict"),
    [
        (119, ("nvidia-smi", "nvidia-smi"), "warn"),  # nothing but our own questions
        (119, ("nvidia-smi", "sglang::schedul"), "fail"),
        (79, ("nvidia-smi",), "fail"),  # it was only the first to notice
    ],
)
def test_xids_that_the_probe_itself_causes(code: int, processes: tuple[str, ...], verdict: str) -> None:
    lines = [
        f"[ {10 + i}.5] NVRM: Xid (PCI:0000:9b:00): {code}, pid=7, name={name}, Timeout after 45s of waiting for RPC"
        for i, name in enumerate(processes)
    ]
    assert verdicts("\n".join(lines))["klog.xid"] == verdict
