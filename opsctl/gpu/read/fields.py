"""From the cells of one GPU, under the names of any driver, to a `Gpu`. The names are data/fields.csv.

A cell says a value, nothing, or that it could not be read.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from opsctl.gpu.model import Gpu, GpuRef, Process

Naming = Literal["xml", "text", "csv"]

_HEALTH = "fabric_health_"
# NVML's clocksEventReasons bits; the names are fields of Gpu.
MASK = {
    "locked_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str
    paths: Mapping[str, tuple[str, ...]]  # by naming; `**` stands for any levels between


def table(name: str) -> list[dict[str, str]]:
    """The rows of a data table of this package."""
    text = files("opsctl.gpu").joinpath("data", name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


@cache
def fields() -> tuple[Field, ...]:
    return tuple(
        Field(row["field"], row["kind"], {n: tuple(filter(None, row[n].split("|"))) for n in ("xml", "text", "csv")})
        for row in table("fields.csv")
    )


def gpu(
    cells: Mapping[str, str],
    naming: Naming,
    *,
    index: int,
    listed_as: str | None,
    processes: tuple[Process, ...] | None,
) -> Gpu:
    """The GPU that `cells` (path -> words) describe. listed_as: the bus id in the heading."""
    raw = {f.name: _cells(cells, f.paths[naming]) for f in fields()}
    values: dict[str, Any] = {f.name: _value(f.kind, raw[f.name]) for f in fields()}
    for total, field in (("ecc_volatile_total", "ecc_volatile"), ("ecc_aggregate_total", "ecc_aggregate")):
        # The total counts memories too that have no line of their own: texture, L2.
        values[field] = max((v for v in (values.pop(total), values[field]) if v is not None), default=None)
    values.update(_from_mask(values.pop("throttle_mask"), values))
    health = {name: values.pop(name) for name in list(values) if name.startswith(_HEALTH)}
    values["fabric_health"] = tuple(
        (name.removeprefix(_HEALTH).replace("_", " "), said) for name, said in health.items() if said is not None
    )
    # What joining the fabric came to, and `Unknown Error` is one of the answers.
    unknown = next(filter(is_odd, raw["fabric_status"]), None)
    values["fabric_status"] = plain(unknown) if unknown else values["fabric_status"]
    ref = GpuRef(index, values.pop("uuid"), values.pop("bus_id") or listed_as)
    found = Gpu(ref=ref, processes=processes, **values)
    return replace(found, lost=_lost(cells, raw), odd=_odd(cells))


def _cells(cells: Mapping[str, str], paths: tuple[str, ...]) -> list[str]:
    found = [cells[p] for p in paths if p in cells]
    for path in paths:
        if "**" in path:
            pattern = _pattern(path)
            found += [cell for key, cell in cells.items() if pattern.fullmatch(key)]
    return found


@cache
def _pattern(path: str) -> re.Pattern[str]:
    return re.compile("(?:.*/)?".join(re.escape(part) for part in path.split("**/")))


def _value(kind: str, cells: list[str]) -> Any:
    if kind == "sum":
        numbers = [n for n in map(number, cells) if n is not None]
        return sum(numbers) if numbers else None
    if kind == "flag" and any(map(flag, cells)):
        return True  # one name of several says it
    read = {"text": text, "number": number, "flag": flag, "active": active}[kind]
    return next((v for v in map(read, cells) if v is not None), None)


def _from_mask(mask: str | None, values: Mapping[str, Any]) -> dict[str, bool]:
    if not mask or not mask.lower().startswith("0x"):
        return {}
    try:
        bits = int(mask, 16)
    except ValueError:
        return {}
    return {name: bool(bits & bit) for name, bit in MASK.items() if values.get(name) is None}


def _lost(cells: Mapping[str, str], raw: Mapping[str, list[str]]) -> str | None:
    """Why the GPU cannot be trusted: it says so, or its name, or two of its vital values cannot be read."""
    said = [(path, cell) for path, cell in cells.items() if is_lost(cell)]
    if said:
        return f"{plain(said[0][1])!r} in {len(said)} values ({', '.join(path for path, _ in said[:4])})"
    if any(map(is_odd, raw["name"])):
        return f"{plain(raw['name'][0])!r} in its name"
    vital = ("utilization", "memory_used", "power_draw", "temperature")
    unreadable = [name for name in vital if any(map(is_odd, raw[name]))]
    if len(unreadable) >= 2:
        return f"{plain(raw[unreadable[0]][0])!r} in {', '.join(unreadable)}"
    return None


def _odd(cells: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((path, plain(cell)) for path, cell in cells.items() if is_odd(cell))


def processes(entries: list[tuple[str, str, str, str]]) -> tuple[Process, ...]:
    """Processes from (pid, type, name, memory) cells; lines without a pid are dropped."""
    return tuple(
        Process(int(pid), text(kind), name, number(memory))
        for pid, kind, name, memory in entries
        if pid.strip().isdigit()
    )


ABSENT = frozenset(
    {
        "", "n/a", "not supported", "requested functionality has been deprecated", "none reported", "not available",
        "insufficient permissions",
    }
)  # fmt: skip
LOST = ("gpu is lost", "gpu requires reset", "gpu has fallen off the bus")
ODD = ("err!", "unknown error")

_NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")


def plain(cell: str) -> str:
    """The cell without surrounding blanks and brackets: '[N/A]' -> 'N/A'."""
    cell = cell.strip()
    return cell[1:-1].strip() if cell.startswith("[") and cell.endswith("]") else cell


def is_absent(cell: str) -> bool:
    return plain(cell).lower() in ABSENT


def is_lost(cell: str) -> bool:
    return plain(cell).lower().startswith(LOST)


def is_odd(cell: str) -> bool:
    return plain(cell).lower().startswith(ODD)


def is_broken(cell: str) -> bool:
    return is_lost(cell) or is_odd(cell)


def text(cell: str | None) -> str | None:
    """The cell's words, None when absent or unreadable."""
    if cell is None or is_absent(cell) or is_broken(cell):
        return None
    return plain(cell)


def number(cell: str | None) -> float | None:
    """The cell's number without its unit: '65720 MiB' -> 65720, '16x' -> 16, '1.5 GiB' is not met in practice."""
    said = text(cell)
    found = _NUMBER.match(said) if said else None
    return float(found[0]) if found else None


def flag(cell: str | None) -> bool | None:
    """Yes or No; also the 1 and 0 of CSV."""
    said = (text(cell) or "").lower()
    return {"yes": True, "1": True, "true": True, "no": False, "0": False, "false": False}.get(said)


def active(cell: str | None) -> bool | None:
    """Active or Not Active."""
    return {"active": True, "not active": False}.get((text(cell) or "").lower())
