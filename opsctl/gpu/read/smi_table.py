"""Read the table that plain `nvidia-smi` prints, drivers 418 to 610: two or three lines per GPU, then the processes."""

from __future__ import annotations

import re

from opsctl.gpu.model import Gpu, Reading
from opsctl.gpu.read import fields, words

MARK = re.compile(r"^\| NVIDIA-SMI \d", re.MULTILINE)
_DRIVER = re.compile(r"(?:Driver|KMD) Version: (\d[\d.]*)")
_CUDA = re.compile(r"CUDA (?:UMD )?Version: (\d[\d.]*)")
_FIRST = re.compile(r"^\s*(\d+)\s+(.*?)\s+(On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*$")
_BUS = re.compile(r"^\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+(\S+)\s*$")
_STATE = re.compile(r"^\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*/\s*(\S+)\s*$")
_MEMORY = re.compile(r"^\s*(\S+)\s*/\s*(\S+)\s*$")
_USE = re.compile(r"^\s*(ERR!|N/A|\d+\s*%)\s+(\S.*?)\s*$")
_PROCESS = re.compile(r"^\|\s+(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+(G|C|C\+G|M\+C|M)\s+(.*?)\s+(\d+MiB|N/A)\s*\|$")


def read(text: str) -> Reading:
    top, heading, bottom = text.partition("Processes:")
    gpus = [_gpu(lines) for lines in _groups(top.partition("MIG devices:")[0])]
    driver, cuda = _DRIVER.search(text), _CUDA.search(text)
    return Reading(
        source="table",
        gpus=tuple(_with_processes(i, cells, bottom if heading else None) for i, cells in gpus),
        driver=driver[1] if driver else None,
        cuda=cuda[1] if cuda else None,
        truncated=None if heading else "breaks off before the list of processes",
    )


def _groups(text: str) -> list[list[list[str]]]:
    """The lines of each GPU, each line as its three cells."""
    groups: list[list[list[str]]] = []
    for line in text.splitlines():
        cells = list(line.strip().strip("|").split("|")) if line.startswith("|") else []
        if len(cells) != 3:
            continue
        if _FIRST.match(cells[0]) and _BUS.match(cells[1]):
            groups.append([cells])
        elif groups and not line.startswith("|="):
            groups[-1].append(cells)
    return groups


def _gpu(lines: list[list[str]]) -> tuple[int, dict[str, str]]:
    """The index and the cells, under the names of `-q` text."""
    first, bus = _FIRST.match(lines[0][0]), _BUS.match(lines[0][1])
    assert first and bus
    cells = {"product name": first[2], "pci/bus id": bus[1]}
    if first[3] in ("On", "Off"):
        cells["persistence mode"] = {"On": "Enabled", "Off": "Disabled"}[first[3]]
    if bus[2] in ("On", "Off"):
        cells["display active"] = {"On": "Enabled", "Off": "Disabled"}[bus[2]]
    # With MIG the ECC cell says On: a mode, not a count.
    if lines[0][2].strip() not in ("On", "Off"):
        cells["ecc errors/volatile/double bit/total"] = lines[0][2].strip()
    if len(lines) > 1:
        state, memory, use = _STATE.match(lines[1][0]), _MEMORY.match(lines[1][1]), _USE.match(lines[1][2])
        if state:
            cells["fan speed"], cells["temperature/gpu current temp"], cells["performance state"] = state.groups()[:3]
            cells["power readings/power draw"], cells["power readings/power limit"] = state[4], state[5]
        elif words.is_broken(lines[1][0]):
            cells["fan speed"] = lines[1][0].strip()
        if memory:
            cells["fb memory usage/used"], cells["fb memory usage/total"] = memory.groups()
        elif words.is_broken(lines[1][1]):  # "GPU is lost" in place of both numbers
            cells["fb memory usage/used"] = lines[1][1].strip()
        if use:
            cells["utilization/gpu"], cells["compute mode"] = use.groups()
    if len(lines) > 2:
        cells["mig mode/current"] = lines[2][2].strip().rstrip("*")  # with a star the next reset changes it
    return int(first[1]), cells


def _with_processes(index: int, cells: dict[str, str], listing: str | None) -> Gpu:
    listed = None
    if listing is not None:
        matches = [m for m in map(_PROCESS.match, map(str.rstrip, listing.splitlines())) if m and int(m[1]) == index]
        listed = fields.processes([(m[2], m[3], m[4], m[5]) for m in matches])
    compute = words.text(cells.get("compute mode"))
    if compute:
        short = compute.replace(" ", "")
        cells["compute mode"] = {"E.Process": "Exclusive_Process", "E.Thread": "Exclusive_Thread"}.get(short, compute)
    return fields.gpu(cells, "text", index=index, listed_as=cells["pci/bus id"], processes=listed)
