"""The profile expected of a host: recorded from a healthy one, compared afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from opsctl.errors import UsageError
from opsctl.gpu.model import Gpu
from opsctl.text import did_you_mean

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
