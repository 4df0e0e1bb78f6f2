"""What a host is judged against: thresholds with their sources, and the expected profile. Both can be set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from opsctl.errors import UsageError
from opsctl.gpu.profile import Profile
from opsctl.gpu.read.fields import table
from opsctl.text import did_you_mean

LONGEST_SMI = 600  # seconds that one look may wait for nvidia-smi


@dataclass(frozen=True, slots=True)
class Threshold:
    name: str
    value: float
    unit: str
    meaning: str
    source: str


@cache
def thresholds() -> dict[str, Threshold]:
    return {
        r["name"]: Threshold(r["name"], float(r["value"]), r["unit"], r["meaning"], r["source"])
        for r in table("thresholds.csv")
    }


def _check_range(known: Threshold, value: float) -> None:
    """A value in another unit makes a check always fail, or never: shares are at most 1, only degrees go below 0."""
    said = f"health threshold {known.name!r}: {value:g}"
    usual = f"shipped: {known.value:g} {known.unit}".rstrip()
    if not known.unit and not 0 <= value <= 1:
        raise UsageError(f"{said} is no share between 0 and 1", hint=f"5 % is 0.05; {usual}")
    if known.unit != "C" and value < 0:
        raise UsageError(f"{said} is below 0", hint=usual)
    if known.name == "smi.fail" and not 1 <= value <= LONGEST_SMI:
        raise UsageError(f"{said} s is not between 1 and {LONGEST_SMI}", hint=usual)


@dataclass(frozen=True, slots=True)
class Settings:
    """limits: by threshold name; only what differs from data/thresholds.csv needs to be said."""

    profile: Profile = field(default_factory=Profile)
    limits: Mapping[str, float] = field(default_factory=dict)
    unit: str | None = None  # the systemd unit of our server

    def __post_init__(self) -> None:
        for name, value in self.limits.items():
            if name not in thresholds():
                raise UsageError(f"unknown health threshold {name!r}", hint=did_you_mean(name, thresholds()))
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UsageError(f"health threshold {name!r} must be a number, not {value!r}")
            _check_range(thresholds()[name], value)

    def limit(self, name: str) -> float:
        return self.limits.get(name, thresholds()[name].value)
