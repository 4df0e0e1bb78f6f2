"""Read what nvidia-smi prints for people and scripts, drivers 418 to 610: `-q`, `-L`, `--format=csv`, and its table."""

from __future__ import annotations

import re
from collections.abc import Iterable

from opsctl.gpu.model import Gpu, GpuRef, Reading
from opsctl.gpu.read import fields

MARK = "NVSMI LOG"
_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s*$")
_PAIR = re.compile(r"^(\s*)(\S.*?)\s*:(?:\s+(.*))?$")
_PAIR_SPACED = re.compile(r"^(\s*)(\S.*?)\s+:(?:\s+(.*))?$")
# A heading's cells, and everything below them, in order of appearance.
_Rows = list[tuple[str, str]]


def read(text: str) -> Reading:
    head: dict[str, str] = {}
    blocks: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if opened := _GPU.match(line):
            blocks.append((opened[1], []))
        elif blocks:
            blocks[-1][1].append(line)
        elif pair := _PAIR.match(line):
            head.setdefault(pair[2].lower(), (pair[3] or "").strip())
    parsed = [_rows(lines) for _, lines in blocks]
    attached = fields.number(head.get("attached gpus"))
    cut = _cut(parsed, attached)
    if cut and blocks and not text.endswith("\n"):
        # The last line may be half of one: "Used : 65" of "Used : 65720 MiB".
        parsed[-1] = _rows(blocks[-1][1][:-1])
    return Reading(
        source="text",
        gpus=tuple(_gpu(i, bus, rows) for i, ((bus, _), rows) in enumerate(zip(blocks, parsed, strict=True))),
        driver=_version(head.get("driver version") or head.get("kmd version")),
        cuda=_version(head.get("cuda version") or head.get("cuda umd version")),
        attached=None if attached is None else int(attached),
        truncated=cut,
    )


def _gpu(index: int, bus_id: str, rows: _Rows) -> Gpu:
    cells: dict[str, str] = {}
    for path, value in rows:
        cells.setdefault(path, value)
    told = any(path.split("/")[0] == "processes" for path, _ in rows)
    listed = fields.processes(_processes(rows)) if told else None
    return fields.gpu(cells, "text", index=index, listed_as=bus_id, processes=listed)


def _rows(lines: Iterable[str]) -> _Rows:
    """(path, value) per line, in order: lower case, levels joined by '/'. A heading is a row with an empty value."""
    rows: _Rows = []
    stack: list[tuple[int, str]] = []
    for line in lines:
        if not line.strip():
            continue
        pair = _PAIR_SPACED.match(line)
        indent = len(line) - len(line.lstrip())
        name = (pair[2] if pair else line.strip()).lower()
        while stack and stack[-1][0] >= indent:
            stack.pop()
        stack.append((indent, name))
        rows.append(("/".join(n for _, n in stack), (pair[3] or "").strip() if pair else ""))
    return rows


def _processes(rows: _Rows) -> list[tuple[str, str, str, str]]:
    found: list[dict[str, str]] = []
    for path, value in rows:
        top, _, rest = path.partition("/")
        if top != "processes" or not rest:
            continue
        name = rest.rpartition("/")[2]
        if name == "process id":
            found.append({"process id": value})
        elif found:
            found[-1].setdefault(name, value)
    return [(p["process id"], p.get("type", ""), p.get("name", ""), p.get("used gpu memory", "")) for p in found]


def _cut(blocks: list[_Rows], attached: float | None) -> str | None:
    """How it shows that the text breaks off: a full listing ends each GPU with its processes."""
    if not blocks:
        return "no GPU follows the heading" if attached else None
    names = {path.split("/")[0] for path, _ in blocks[-1]}
    if "product name" in names and "processes" not in names:
        return f"breaks off in GPU {len(blocks)} of {attached:.0f}" if attached else "breaks off"
    if attached and len(blocks) < attached:
        # Unlike XML, text has no end mark: this may be a cut between two GPUs.
        return f"ends after GPU {len(blocks)} of {attached:.0f}"
    return None


def _version(cell: str | None) -> str | None:
    """610 appends a remark in brackets to the number."""
    said = fields.text(cell)
    return said.split()[0] if said else None


_LINE = re.compile(r"^GPU (\d+): (.+) \(UUID: (GPU-[0-9A-Za-z-]+)\)\s*$", re.MULTILINE)
_LINK = re.compile(r"^\s+Link \d+: ", re.MULTILINE)
# Outputs of other calls of nvidia-smi: matrices, monitors, per-process CSV, versions.
_OTHER = re.compile(
    r"^(?:\s*(?:\x1b\[4m)?GPU0\s.*CPU Affinity|# gpu\s|(?:[\w.]+, )*pid, process_name|(?:[\w.]+, )*retired_pages\."
    r"|NVIDIA-SMI version\s*:)",
    re.MULTILINE,
)


def read_list(text: str) -> Reading | None:
    """The listing, None when it is none. `nvlink -s` has the same headings, with links below them."""
    gpus = [Gpu(GpuRef(int(m[1]), m[3], None), name=m[2]) for m in _LINE.finditer(text)]
    if not gpus or _LINK.search(text):
        return None
    return Reading("list", tuple(gpus))


def uninformative(text: str) -> bool:
    """Output of nvidia-smi all the same: nothing in it answers a check."""
    return bool(_OTHER.search(text) or (_LINE.search(text) and _LINK.search(text)))


_UNIT = re.compile(r"\s*\[[^\]]*\]$")
# A header must name at least two columns that only --query-gpu has.
_KNOWN = frozenset(
    {"uuid", "gpu_uuid", "name", "pci.bus_id", "driver_version", "vbios_version", "index", "serial", "memory.used",
     "memory.total", "temperature.gpu", "power.draw", "utilization.gpu", "pstate", "persistence_mode", "compute_mode"}
)  # fmt: skip


def header(line: str) -> list[str] | None:
    """The column names without units, None when this is no such header."""
    names = [_UNIT.sub("", cell.strip()).lower() for cell in line.split(",")]
    return names if len(_KNOWN.intersection(names)) >= 2 and "pid" not in names else None


def read_csv(text: str) -> Reading:
    lines = [line for line in text.splitlines() if line.strip()]
    names = header(lines[0]) or []
    rows = [dict(zip(names, (c.strip() for c in line.split(",")), strict=False)) for line in lines[1:]]
    cut = bool(rows) and len(rows[-1]) < len(names)
    gpus = tuple(
        fields.gpu(row, "csv", index=_index(row, i), listed_as=None, processes=None) for i, row in enumerate(rows)
    )
    drivers = {g.driver for g in gpus}
    count = fields.number(rows[0].get("count")) if rows else None
    return Reading(
        source="csv",
        gpus=gpus,
        driver=drivers.pop() if len(drivers) == 1 else None,
        attached=None if count is None else int(count),
        truncated="the last row has fewer cells than the header" if cut else None,
    )


def _index(row: dict[str, str], position: int) -> int:
    said = fields.number(row.get("index"))
    return position if said is None else int(said)


TABLE = re.compile(r"^\| NVIDIA-SMI \d", re.MULTILINE)
_DRIVER = re.compile(r"(?:Driver|KMD) Version: (\d[\d.]*)")
_CUDA = re.compile(r"CUDA (?:UMD )?Version: (\d[\d.]*)")
_FIRST = re.compile(r"^\s*(\d+)\s+(.*?)\s+(On|Off|N/A|WDDM|TCC|MCDM|ERR!)\s*$")
_BUS = re.compile(r"^\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+(\S+)\s*$")
_STATE = re.compile(r"^\s*(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s*/\s*(\S+)\s*$")
_MEMORY = re.compile(r"^\s*(\S+)\s*/\s*(\S+)\s*$")
_USE = re.compile(r"^\s*(ERR!|N/A|\d+\s*%)\s+(\S.*?)\s*$")
_PROCESS = re.compile(r"^\|\s+(\d+)\s+(?:\S+\s+\S+\s+)?(\d+)\s+(G|C|C\+G|M\+C|M)\s+(.*?)\s+(\d+MiB|N/A)\s*\|$")


def read_table(text: str) -> Reading:
    top, heading, bottom = text.partition("Processes:")
    gpus = [_gpu_of_table(lines) for lines in _groups(top.partition("MIG devices:")[0])]
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


def _gpu_of_table(lines: list[list[str]]) -> tuple[int, dict[str, str]]:
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
        elif fields.is_broken(lines[1][0]):
            cells["fan speed"] = lines[1][0].strip()
        if memory:
            cells["fb memory usage/used"], cells["fb memory usage/total"] = memory.groups()
        elif fields.is_broken(lines[1][1]):  # "GPU is lost" in place of both numbers
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
    compute = fields.text(cells.get("compute mode"))
    if compute:
        short = compute.replace(" ", "")
        cells["compute mode"] = {"E.Process": "Exclusive_Process", "E.Thread": "Exclusive_Thread"}.get(short, compute)
    return fields.gpu(cells, "text", index=index, listed_as=cells["pci/bus id"], processes=listed)
