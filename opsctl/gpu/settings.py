"""What a host is judged against: thresholds with their sources, and the expected profile. Both can be set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from typing import Any, TypeVar

from opsctl.errors import UsageError
from opsctl.gpu.model import Gpu
from opsctl.gpu.read.fields import table
from opsctl.text import did_you_mean

LONGEST_SMI = 600  # seconds that one look may wait for nvidia-smi


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Profile:
    """What each GPU should be; None: nothing is expected. MiB, W, lanes."""

    gpus: int | None = None
    name: str | None = None
    memory_mib: float | None = None
    power_limit_w: float | None = None
    width: float | None = None
    driver: str | None = None

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> Profile:
        """From inventory data. Raises UsageError for an unknown key or a value of the wrong type."""
        known = {f.name: f for f in fields(cls)}
        for key, value in data.items():
            if key not in known:
                raise UsageError(f"unknown key {key!r} in the GPU profile", hint=did_you_mean(key, known))
            wanted = str if key in ("name", "driver") else (int, float)
            if value is not None and (isinstance(value, bool) or not isinstance(value, wanted)):
                raise UsageError(
                    f"{key!r} of the GPU profile must be a {'text' if wanted is str else 'number'}: {value!r}"
                )
        return cls(**data)

    def dump(self) -> dict[str, Any]:
        """The keys that say something, for the inventory."""
        return {key: value for key, value in asdict(self).items() if value is not None}


def record(gpus: Iterable[Gpu], driver: str | None) -> Profile:
    """The profile of these GPUs; a value that differs between them is left out."""
    found = tuple(gpus)
    return Profile(
        gpus=len(found),
        name=_same(g.name for g in found),
        memory_mib=_same(g.memory_total for g in found),
        power_limit_w=_same(g.power_limit for g in found),
        width=_same(g.width_current for g in found),
        driver=driver,
    )


def _same(values: Iterable[T | None]) -> T | None:
    counted = Counter(values)
    return next(iter(counted)) if len(counted) == 1 else None


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
