"""Read the CSV of `nvidia-smi --query-gpu=... --format=csv`, with its header line; units are optional."""

from __future__ import annotations

import re

from opsctl.gpu.model import Reading
from opsctl.gpu.read import fields, words

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


def read(text: str) -> Reading:
    lines = [line for line in text.splitlines() if line.strip()]
    names = header(lines[0]) or []
    rows = [dict(zip(names, (c.strip() for c in line.split(",")), strict=False)) for line in lines[1:]]
    cut = bool(rows) and len(rows[-1]) < len(names)
    gpus = tuple(
        fields.gpu(row, "csv", index=_index(row, i), listed_as=None, processes=None) for i, row in enumerate(rows)
    )
    drivers = {g.driver for g in gpus}
    count = words.number(rows[0].get("count")) if rows else None
    return Reading(
        source="csv",
        gpus=gpus,
        driver=drivers.pop() if len(drivers) == 1 else None,
        attached=None if count is None else int(count),
        truncated="the last row has fewer cells than the header" if cut else None,
    )


def _index(row: dict[str, str], position: int) -> int:
    said = words.number(row.get("index"))
    return position if said is None else int(said)
