"""One fault at a time, planted in every capture that can show it: its check finds it, and no other check alarms.

Each fault is written once per layout of nvidia-smi, and goes into all captures of that layout, whatever their driver
generation calls the value.
"""

from __future__ import annotations

import json
import re
from functools import cache

import pytest

from tests.gpu.judging import DATA, text_of, verdicts

EXPECTED = json.loads((DATA / "expected.json").read_text())["files"]
XML = [n for n in EXPECTED if n.endswith(".xml") and "lost" not in n]
TEXT = [n for n in EXPECTED if "/nvidia-smi-query." in n]
SEVERAL = [n for n in EXPECTED if "sections" in EXPECTED[n]]  # answers to several calls of nvidia-smi

# pattern, what to write in its place, check, verdicts that are right
Fault = tuple[str, str, str, tuple[str, ...]]

IN_XML: list[Fault] = [
    (r"(<product_name>)[^<]+", r"\1ERR!", "gpu.lost", ("fail",)),
    (r"(<gpu_util>)[^<]+", r"\1GPU requires reset", "gpu.lost", ("fail",)),
    (r"(<fan_speed>)[^<]+", r"\1ERR!", "gpu.lost", ("warn",)),
    (r"(<fan_speed>)[^<]+", r"\1Not Supported", "gpu.lost", ("pass",)),
    (r"(<fan_speed>)[^<]+", r"\1Insufficient Permissions", "gpu.lost", ("pass",)),
    (r"(<gpu_recovery_action>)[^<]+", r"\1BUS_RESET", "gpu.recovery", ("fail",)),
    (r"(<gpu_recovery_action>)[^<]+", r"\1[N/A]", "gpu.recovery", ("pass", "skip")),
    (r"(<reset_required>)No", r"\1Yes", "gpu.recovery", ("fail", "pass")),  # a recovery action wins
    (r"(<current_mig>)[^<]+", r"\1Enabled", "gpu.mode", ("fail",)),
    (r"(<compute_mode>)[^<]+", r"\1Prohibited", "gpu.mode", ("fail",)),
    (r"(<persistence_mode>)[^<]+", r"\1Disabled", "gpu.persistence", ("warn",)),
    (r"(?s)(<volatile>.*?<dram_uncorrectable>)[^<]+", r"\g<1>3", "ecc.uncorrected", ("fail",)),
    (r"(?s)(<volatile>.*?<sram_uncorrectable\w*>)[^<]+", r"\g<1>3", "ecc.uncorrected", ("fail",)),
    (r"(?s)(<volatile>(?:(?!</volatile>).)*?<double_bit>.*?<total>)[^<]+", r"\g<1>3", "ecc.uncorrected", ("fail",)),
    (r"(?s)(<aggregate>(?:(?!</aggregate>).)*?<dram_uncorrectable>)0", r"\g<1>4", "ecc.uncorrected", ("warn",)),
    (r"(<sram_threshold_exceeded>)[^<]+", r"\1Yes", "ecc.uncorrected", ("fail",)),
    (r"(<unrepairable_memory>)[^<]+", r"\1Yes", "ecc.uncorrected", ("fail",)),
    (r"(<current_ecc>Enabled</current_ecc>\s*<pending_ecc>)\w+", r"\1Disabled", "ecc.mode", ("warn",)),
    (r"(<remapped_row_failure>)[^<]+", r"\1Yes", "ecc.rows", ("fail",)),
    (r"(<remapped_row_pending>)[^<]+", r"\1Yes", "ecc.rows", ("warn",)),
    (r"(<remapped_row_unc>)[^<]+", r"\g<1>513", "ecc.rows", ("fail",)),
    (r"(<remapped_row_corr>)\d+", r"\g<1>513", "ecc.rows", ("pass",)),
    (r"(<channel_repair_pending>)[^<]+", r"\1Yes", "ecc.rows", ("warn",)),
    (r"(<tpc_repair_pending>)[^<]+", r"\1Yes", "ecc.rows", ("warn",)),
    (r"(<pending_(?:retirement|blacklist)>)[^<]+", r"\1Yes", "ecc.rows", ("warn",)),
    (r"(?s)(<double_bit_retirement>\s*<retired_count>)[^<]+", r"\g<1>63", "ecc.rows", ("fail",)),
    (r"(<max_link_width>16x</max_link_width>\s*<current_link_width>)[^<]+", r"\g<1>4x", "pcie.width", ("fail",)),
    (r"(<gpu_temp_tlimit>)[^<]+", r"\1-1 C", "gpu.temp", ("fail",)),
    (r"(<memory_temp>)[^<]+", r"\g<1>96 C", "gpu.temp", ("warn",)),
    (r"(_reason_hw_slowdown>)Not Active", r"\1Active", "gpu.throttle", ("fail",)),
    (r"(_reason_hw_thermal_slowdown>)Not Active", r"\1Active", "gpu.throttle", ("fail",)),
    (r"(_reason_hw_power_brake_slowdown>)Not Active", r"\1Active", "gpu.throttle", ("fail",)),
    (r"(_reason_sw_thermal_slowdown>)Not Active", r"\1Active", "gpu.throttle", ("warn",)),
    (r"(_reason_(?:sw_power_cap|sync_boost)>)Not Active", r"\1Active", "gpu.throttle", ("pass",)),
    (r"(<(?:current_)?power_limit>)\d\S*( W<)", r"\g<1>31.00\2", "gpu.power", ("warn",)),
    (r"(?s)(\n\t\t<fb_memory_usage>(?:(?!</fb_mem).)*?<used>)0 MiB", r"\g<1>2000 MiB", "gpu.leftover", ("fail",)),
]  # fmt: skip

IN_TEXT: list[Fault] = [
    (r"(Product Name\s+: ).*", r"\1ERR!", "gpu.lost", ("fail",)),
    (r"(Fan Speed\s+: ).*", r"\1[Unknown Error]", "gpu.lost", ("warn",)),
    (r"(GPU Recovery Action\s+: ).*", r"\1Drain P2P", "gpu.recovery", ("fail",)),
    (r"(Drain and Reset Recommended\s+: ).*", r"\1Yes", "gpu.recovery", ("fail",)),
    (r"(Compute Mode\s+: ).*", r"\1Exclusive_Process", "gpu.mode", ("fail",)),
    (r"(Persistence Mode\s+: ).*", r"\1Disabled", "gpu.persistence", ("warn",)),
    (r"(Volatile\s+SRAM Correctable\s+: .*\s+SRAM Uncorrectable[^:]*: )\S+", r"\g<1>2", "ecc.uncorrected", ("fail",)),
    (r"(Aggregate\s+SRAM Correctable\s+: .*\s+SRAM Uncorrectable[^:]*: )\S+", r"\g<1>2", "ecc.uncorrected", ("warn",)),
    (r"(Unrepairable Memory\s+: )\S+", r"\1Yes", "ecc.uncorrected", ("fail",)),
    (r"(ECC Mode\s+Current\s+: Enabled\s+Pending\s+: )Enabled", r"\1Disabled", "ecc.mode", ("warn",)),
    (r"(Remapping Failure Occurred\s+: )\S+", r"\1Yes", "ecc.rows", ("fail",)),
    (r"(Remapped Rows\s+(?:.*Correctable.*\s+|.*Uncorrectable.*\s+)+Pending\s+: )\S+", r"\1Yes", "ecc.rows", ("warn",)),
    (r"(Bank Remap Availability Histogram\s+(?:.*\s+){4}None\s+: )\d+", r"\g<1>1", "ecc.rows", ("fail",)),
    (r"(Pending Page Blacklist\s+: )\S+", r"\1Yes", "ecc.rows", ("warn",)),
    (r"(Link Width\s+Max\s+: 16x\s+Current\s+: )\S+", r"\g<1>4x", "pcie.width", ("fail",)),
    (r"(GPU T.Limit Temp\s+: )-?\d+", r"\g<1>1", "gpu.temp", ("fail",)),
    (r"(Memory Current Temp\s+: ).*", r"\g<1>104 C", "gpu.temp", ("fail",)),
    (r"(HW Thermal Slowdown\s+: )Not Active", r"\1Active", "gpu.throttle", ("fail",)),
    (r"(HW Power Brake Slowdown\s+: )Not Active", r"\1Active", "gpu.throttle", ("fail",)),
    (r"(SW Thermal Slowdown\s+: )Not Active", r"\1Active", "gpu.throttle", ("warn", "fail")),
    (r"(Current Power Limit\s+: )\d\S*", r"\g<1>60.00", "gpu.power", ("warn",)),
    (r"(FB Memory Usage\s+Total\s+: \d.*\s+(?:Reserved\s+: .*\s+)?Used\s+: )\d.*", r"\1GPU is lost", "gpu.lost",
     ("fail",)),
]  # fmt: skip

IN_TABLE: list[Fault] = [
    (r"(\|\s+\d+\s+)NVIDIA [^|]*?(\s+O(?:n|ff)\s+\|)", r"\1ERR!   \2", "gpu.lost", ("fail",)),
    (r"\|\s*\d+MiB /\s+\d+MiB \|", r"|       GPU is lost      |", "gpu.lost", ("fail",)),
    (r"(NVIDIA [^|]*?)On (\s*\|)", r"\1Off\2", "gpu.persistence", ("warn",)),
    (r"Default \|", r"E. Process |", "gpu.mode", ("fail",)),
    (r"Disabled \|", r"Enabled* |", "gpu.mode", ("fail",)),
    (r"(O(?:ff|n) \|\s+)0 \|", r"\g<1>3 |", "ecc.uncorrected", ("fail",)),
]

# column, cell, check, verdicts
IN_CSV = [
    ("gpu_recovery_action", "Reset", "gpu.recovery", ("fail",)),
    ("compute_mode", "Prohibited", "gpu.mode", ("fail",)),
    ("persistence_mode", "Disabled", "gpu.persistence", ("warn",)),
    ("memory.used", "[GPU is lost]", "gpu.lost", ("fail",)),
    ("temperature.gpu", "[Unknown Error]", "gpu.lost", ("warn",)),
    ("ecc.errors.uncorrected.volatile.total", "2", "ecc.uncorrected", ("fail",)),
    ("ecc.errors.uncorrected.aggregate.total", "2", "ecc.uncorrected", ("warn",)),
    ("remapped_rows.pending", "Yes", "ecc.rows", ("warn",)),
    ("remapped_rows.failure", "Yes", "ecc.rows", ("fail",)),
    ("retired_pages.pending", "Yes", "ecc.rows", ("warn",)),
    ("pcie.link.width.current", "8", "pcie.width", ("warn",)),
    ("power.limit", "31.00 W", "gpu.power", ("warn",)),
    ("clocks_event_reasons.hw_slowdown", "Active", "gpu.throttle", ("fail",)),
]
_SECTION = re.compile(r"^#{20,}\n# ([^\n]*?) :: ([^\n]*)\n(?:# \$[^\n]*\n)?#{20,}\n", re.MULTILINE)


@cache
def judged(text: str) -> dict[str, str]:
    return verdicts(text)


def sections(name: str, call: str) -> list[str]:
    """The answers to one call in a capture of several."""
    text = text_of(name)
    heads = list(_SECTION.finditer(text))
    ends = [h.start() for h in heads[1:]] + [len(text)]
    return [text[h.end() : end] for h, end in zip(heads, ends, strict=True) if h[2].startswith(call)]


def check_planted(before: str, after: str, check: str, right: tuple[str, ...]) -> None:
    found = judged(after)
    assert found[check] in right, f"{check} is {found[check]}"
    # A value that differs on one GPU is also an odd one out, and of a lost GPU nobody knows what it holds.
    also = {check, "gpu.uniform"} | ({"gpu.leftover"} if check == "gpu.lost" else set())
    alarms = {c: v for c, v in found.items() if v in ("warn", "fail") and v != judged(before)[c] and c not in also}
    assert not alarms


def plant(text: str, faults: list[Fault]) -> int:
    """Each fault in the first and in the last place that can show it. How many there were."""
    planted = 0
    for pattern, instead, check, right in faults:
        places = list(re.finditer(pattern, text))
        for place in {m.start(): m for m in (places[:1] + places[-1:])}.values():
            edited = text[: place.start()] + place.expand(instead) + text[place.end() :]
            if edited != text:
                check_planted(text, edited, check, right)
                planted += 1
    return planted


@pytest.mark.parametrize("name", XML)
def test_in_xml(name: str) -> None:
    assert plant(text_of(name), IN_XML) >= 3


@pytest.mark.parametrize("name", [n for n in TEXT if "183.01" not in n])
def test_in_text(name: str) -> None:
    assert plant(text_of(name), IN_TEXT) >= 10


@pytest.mark.parametrize("name", SEVERAL)
def test_in_text_and_table_of_later_drivers(name: str) -> None:
    for text in sections(name, "query (-q)"):
        assert plant(text, IN_TEXT) >= 10
    for text in sections(name, "nvidia-smi (default table)"):
        assert plant(text, IN_TABLE) >= 3


@pytest.mark.parametrize("name", SEVERAL)
def test_in_csv(name: str) -> None:
    for text in sections(name, "query-gpu (csv"):
        heading, first, *_ = text.strip().splitlines()
        names = [re.sub(r"\s*\[.*", "", cell.strip()) for cell in heading.split(",")]
        for column, cell, check, right in IN_CSV:
            cells = [c.strip() for c in first.split(",")]
            cells[names.index(column)] = cell
            check_planted(text, f"{heading}\n{', '.join(cells)}\n", check, right)


def test_of_two_hosts_of_one_kind_only_the_odd_power_limit_is_told() -> None:
    """A table names no VBIOS; what it does name is compared all the same."""
    table = text_of("gpud/nvidia-smi-text/nvidia-smi.550.90.07.out.0.valid")
    check_planted(table, table.replace("/  700W", "/  500W", 1), "gpu.uniform", ("warn",))
    assert judged(table)["gpu.uniform"] == "skip"
