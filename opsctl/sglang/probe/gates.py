"""Gates on a probe's figures: `accept_length>=3.0` must hold, or the command ends with its own exit code."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.errors import UsageError
from opsctl.text import did_you_mean

_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_GATE = re.compile(r"\s*([a-z_0-9]+(?:@\d+)?)\s*(>=|<=|==|>|<)\s*([-+]?\d+(?:\.\d+)?)\s*")

Result = Mapping[str, Any]  # the object of `opsctl probe --json`


def _of(*path: str | int) -> Callable[[Result], float | None]:
    def read(result: Result) -> float | None:
        value: Any = result
        for key in path:
            if value is None:
                return None
            value = value[key]
        return float(value) if value is not None else None

    return read


# What a gate may name, and where the figure stands in the result.
FIGURES: dict[str, Callable[[Result], float | None]] = {
    "accept_length": _of("accept_length", "mean"),
    "accept_length_low": _of("accept_length", "ci95", 0),
    "accept_rate": _of("accept_rate"),
    "verify_steps": _of("verify_steps"),
    "speedup": _of("speedup"),
    "break_even": _of("break_even"),
    "cycle_ms": _of("cycle_ms"),
    "first_token_ms": _of("latency", "first_token", "median"),
    "first_token_p95_ms": _of("latency", "first_token", "p95"),
    "inter_token_ms": _of("latency", "inter_token", "median"),
    "inter_token_p95_ms": _of("latency", "inter_token", "p95"),
}
# Figures by concurrency: `total_tps@16`; without a number, the first level.
BY_CONCURRENCY = {"tps": "per_request", "total_tps": "total"}


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    concurrency: int | None
    compare: str
    limit: float

    def __str__(self) -> str:
        level = f"@{self.concurrency}" if self.concurrency else ""
        return f"{self.name}{level}{self.compare}{self.limit:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """value: None when the figure was not measured, which never satisfies a gate."""

    gate: Gate
    value: float | None
    holds: bool

    def __str__(self) -> str:
        seen = "not measured" if self.value is None else f"{self.value:.4g}"
        return f"{self.gate}: {seen}, {'holds' if self.holds else 'fails'}"


def parse_gate(text: str) -> Gate:
    """One gate. Raises UsageError with the nearest valid name."""
    match = _GATE.fullmatch(text)
    if not match:
        raise UsageError(
            f"not a gate: {text!r}", hint="write NAME, a comparison and a number, such as accept_length>=3.0"
        )
    name, _, level = match[1].partition("@")
    if name not in FIGURES and name not in BY_CONCURRENCY:
        raise UsageError(f"a gate on an unknown figure: {name!r}", hint=did_you_mean(name, [*FIGURES, *BY_CONCURRENCY]))
    if level and name not in BY_CONCURRENCY:
        raise UsageError(f"{name} is not measured by concurrency", hint=f"write {name}{match[2]}{match[3]}")
    return Gate(name, int(level) if level else None, match[2], float(match[3]))


def judge(gates: Sequence[Gate], result: Result) -> list[Outcome]:
    return [_outcome(gate, _value(gate, result)) for gate in gates]


def _value(gate: Gate, result: Result) -> float | None:
    if gate.name in FIGURES:
        return FIGURES[gate.name](result)
    levels = result["throughput"]
    key = str(gate.concurrency) if gate.concurrency else next(iter(levels), None)
    value = levels.get(key, {}).get(BY_CONCURRENCY[gate.name])
    return float(value) if value is not None else None


def _outcome(gate: Gate, value: float | None) -> Outcome:
    return Outcome(gate, value, value is not None and _COMPARE[gate.compare](value, gate.limit))
