"""What a host is judged against: thresholds with their sources, and the expected profile. Both can be set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from opsctl.errors import UsageError
from opsctl.gpu.fields import table
from opsctl.gpu.profile import Profile
from opsctl.text import did_you_mean


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

    def limit(self, name: str) -> float:
        return self.limits.get(name, thresholds()[name].value)
