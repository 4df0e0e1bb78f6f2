"""Read `lspci`, `-nn` and `-vvv`: GPUs, their links, and the bridges above them with their ACS bits."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from opsctl.gpu.model import PciDevice

HEADER = re.compile(
    r"^(?P<bus>(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "
    r"(?P<kind>[A-Z0-9][^:\[]*?)(?: \[(?P<class>[0-9a-f]{4})\])?: (?P<name>.*)$",
    re.MULTILINE,
)
_GPU_CLASSES = {"3D controller", "VGA compatible controller"}
_WIDTH = re.compile(r"\b(LnkCap|LnkSta):.*?Width x(\d+)")
_BUSES = re.compile(r"Bus: primary=[0-9a-f]+, secondary=([0-9a-f]+), subordinate=([0-9a-f]+)")
_NUMA = re.compile(r"NUMA node: (-?\d+)")
_ACS = re.compile(r"ACSCtl:.*?ReqRedir([+-])")
_DRIVER = re.compile(r"Kernel driver in use: (\S+)")
_SLOT = re.compile(r"Physical Slot: (\S+)")


@dataclass(frozen=True, slots=True)
class _Block:
    device: PciDevice
    domain: str
    bus: int
    below: tuple[int, int] | None  # bus numbers behind a bridge


def read(text: str) -> tuple[PciDevice, ...]:
    blocks = _blocks(text)
    bridges = [b for b in blocks if b.below]
    return tuple(replace(b.device, parents=_above(b, bridges)) for b in blocks)


def _blocks(text: str) -> list[_Block]:
    heads = list(HEADER.finditer(text))
    ends = [h.start() for h in heads[1:]] + [len(text)]
    return [_block(head, text[head.end() : end]) for head, end in zip(heads, ends, strict=True)]


def _block(head: re.Match[str], body: str) -> _Block:
    full = head["bus"] if head["bus"].count(":") == 2 else f"0000:{head['bus']}"
    domain, bus, _ = full.split(":")
    widths = {kind: int(width) for kind, width in _WIDTH.findall(body)}
    numa, acs, slot, buses = _NUMA.search(body), _ACS.search(body), _SLOT.search(body), _BUSES.search(body)
    driver = _DRIVER.search(body)
    nvidia = "NVIDIA" in head["name"] or "[10de:" in head["name"]
    device = PciDevice(
        bus_id=full,
        gpu=nvidia and (head["class"] in ("0300", "0302") or head["kind"] in _GPU_CLASSES),
        switch=nvidia and (head["class"] == "0680" or head["kind"] == "Bridge"),
        driver=driver[1] if driver else None,
        answering="(rev ff)" not in head["name"],
        name=head["name"],
        slot=slot[1] if slot else None,
        numa_node=int(numa[1]) if numa else None,
        width_current=widths.get("LnkSta"),
        width_max=widths.get("LnkCap"),
        acs_redirect=acs[1] == "+" if acs else None,
    )
    return _Block(device, domain, int(bus, 16), (int(buses[1], 16), int(buses[2], 16)) if buses else None)


def _above(block: _Block, bridges: list[_Block]) -> tuple[str, ...]:
    """The bridges on the way to this device, nearest first."""
    found = [b for b in bridges if b.below and b.domain == block.domain and b.below[0] <= block.bus <= b.below[1]]
    return tuple(b.device.bus_id for b in sorted(found, key=lambda b: (b.below or (0, 0))[0], reverse=True))
