"""Quantities as people write them: durations and sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, WithJsonSchema

_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_BYTES = {
    "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def seconds(value: Any) -> float:
    """A duration: `90`, `30s`, `20m`, `1h30m`, `500ms`. Raises ValueError."""
    return _sum(value, _SECONDS, "s", "a duration such as 30s, 20m or 1h30m")


def size_in_bytes(value: Any) -> int:
    """A size: `4096`, `64KiB`, `1.5G` (binary), `2GB` (decimal). Raises ValueError."""
    return int(_sum(value, _BYTES, "b", "a size such as 64KiB, 1.5G or 2GB"))


def _sum(value: Any, units: Mapping[str, float], bare: str, expected: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"expected {expected}")
    text = str(value)
    total, position = 0.0, 0
    while position < len(text):
        part = _PART.match(text, position)
        unit = (part[2].lower() or bare) if part else ""
        if not part or unit not in units or (position and not part[2]):  # 1h30: of what?
            raise ValueError(f"expected {expected}, got {text!r}")
        total += float(part[1]) * units[unit]
        position = part.end()
    if not text.strip():
        raise ValueError(f"expected {expected}, got nothing")
    return total


Duration = Annotated[float, BeforeValidator(seconds), WithJsonSchema({"type": ["number", "string"]})]
"""Seconds, written as a number or with units: 90, 30s, 1h30m."""


def _some(value: float) -> float:
    if value <= 0:
        raise ValueError("expected more than 0: nothing is done in no time; leave it out for the usual limit")
    return value


TimeLimit = Annotated[Duration, AfterValidator(_some)]
"""A duration after which something is given up."""
