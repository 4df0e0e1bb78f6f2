"""What the practice server acts out.

A scenario is named by the key `practice_scenario` in the `config.json` of the draft model, else of the target model,
else it is `healthy`. The server knows nothing about drafters: it does what the file says.
"""

import json
import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    accept: float = 0.82  # chance that a drafted token is accepted, given that those before it were
    start_seconds: float = 1.5  # from start to ready
    step_seconds: float = 0.004  # one decode or verify step
    ends_in: str = ""  # how loading ends, where it does not end well: oom | hang | port
    dies_after: int = 0  # answers after which the process ends by itself; 0: never


SCENARIOS = {
    "healthy": Scenario(),
    "strong": Scenario(accept=0.88),
    "weak": Scenario(accept=0.5),
    "zero-acceptance": Scenario(accept=0.0),
    "oom-while-loading": Scenario(ends_in="oom"),
    "hangs-while-loading": Scenario(ends_in="hang"),
    "dies-after-ready": Scenario(dies_after=1),
    "quick": Scenario(start_seconds=0.1),
    "slow": Scenario(start_seconds=6.0, step_seconds=0.05),
}


def choose(*folders):
    """The scenario that the first of these model folders names."""
    for folder in folders:
        name = _named(folder)
        if name is not None:
            if name not in SCENARIOS:
                raise SystemExit(f"practice server: no scenario {name!r}; there are: {', '.join(SCENARIOS)}")
            return name, SCENARIOS[name]
    return "healthy", SCENARIOS["healthy"]


def _named(folder):
    if not folder:
        return None
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            return json.load(file).get("practice_scenario")
    except FileNotFoundError:
        return None
