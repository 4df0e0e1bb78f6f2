"""The statuses that NVIDIA's driver names in its messages, by name and number: data/nv_status.csv."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from opsctl.gpu.read.fields import table


@dataclass(frozen=True, slots=True)
class Status:
    """severity: fail, warn or info. remedy: a row of data/remedies.csv."""

    name: str
    code: int
    meaning: str
    severity: str
    remedy: str | None


@cache
def _table() -> dict[str | int, Status]:
    rows = [
        Status(r["name"], int(r["code"]), r["meaning"], r["severity"], r["remedy"] or None)
        for r in table("nv_status.csv")
    ]
    return {status.name: status for status in rows} | {status.code: status for status in rows}


def named(name: str | None, code: str | None) -> Status | None:
    """The status of this name (`NV_ERR_GPU_IS_LOST`) or number (`0x0f`); a name that is not known is a warning."""
    if name:
        return _table().get(name) or Status(name, -1, "not known", "warn", None)
    return _table().get(int(code, 16)) if code else None
