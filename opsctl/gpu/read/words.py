"""What a cell of nvidia-smi says: a value, nothing, or that it could not be read.

Words: captures of drivers 418 to 610. Absent is not broken: on a healthy card many cells are N/A.
"""

from __future__ import annotations

import re

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
