"""What a campaign is: many cases that try to break one promise, of which CI runs a few and anybody can run more.

A campaign is a module of this package with

    SHORT = 12                                             how many of its cases CI runs
    def cases(rng: random.Random) -> Iterator[Case]: ...   a table, or as many as are asked for; `rng` alone decides

`python -m tests.campaigns NAME --count N --seed S` runs it for longer.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import ModuleType

import tests.campaigns

_NOT_CAMPAIGNS = ("campaign", "__main__")


@dataclass(frozen=True)
class Case:
    """One attempt. `hold` gets an empty folder and raises AssertionError with what did not hold."""

    name: str
    hold: Callable[[Path], None]


def names() -> list[str]:
    """Every campaign there is."""
    found = (module.name for module in pkgutil.iter_modules(tests.campaigns.__path__))
    return sorted(name for name in found if name not in _NOT_CAMPAIGNS and not name.startswith(("test_", "_")))


def load(name: str) -> ModuleType:
    return importlib.import_module(f"tests.campaigns.{name}")


def chosen(name: str, count: int | None, seed: int) -> Iterator[Case]:
    """The first `count` cases (None: all of them) of a campaign for a seed."""
    return islice(load(name).cases(random.Random(seed)), count)
