"""The figures of a server's /metrics page that a measurement is compared with."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "sglang:"
_MOST_SAMPLES = 65_536  # of one figure: one for each rank of each engine


@dataclass(frozen=True, slots=True)
class Metrics:
    """None where this version, or this moment, has no such figure.

    accept_length, accept_rate: of the last decode log interval (default 40 cycles), not of the server's life.
    generated_tokens, verify_steps: counted since the start; their growth over a probe tells whether others were served.
    """

    accept_length: float | None
    accept_rate: float | None
    generated_tokens: float | None
    verify_steps: float | None  # 0.5.18 and later


def read_metrics(page: str) -> Metrics:
    """The figures of a page in the Prometheus text format; a page cut short gives those that came before the cut.

    Raises ValueError where one of them is negative, infinite or, where it is counted, no number.
    """
    lengths, rates = _values(page, "spec_accept_length"), _values(page, "spec_accept_rate")
    return Metrics(
        _mean(lengths) or None,  # 0 until the first decode log interval has passed
        _mean(rates),
        _total(page, "generation_tokens_total"),
        _total(page, "spec_verify_calls_total"),
    )


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]  # NaN: there was nothing to take a mean of
    return sum(known) / len(known) if known else None


def _total(page: str, name: str) -> float | None:
    values = _values(page, name)
    if any(value != value for value in values):
        raise ValueError(f"{PREFIX}{name} is counted, and is NaN")
    return sum(values) if values else None


def _values(page: str, name: str) -> list[float]:
    values = [value for found, value in _samples(page, PREFIX + name) if found == PREFIX + name]
    for value in values:
        if value < 0 or math.isinf(value):
            raise ValueError(f"{PREFIX}{name} cannot be {value:g}")
    return values


def _samples(page: str, name: str) -> Iterable[tuple[str, float]]:
    """The samples of one figure. The parser is slow, so it gets only their lines."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in page.splitlines() if line.startswith(name)]
    if len(lines) > _MOST_SAMPLES:
        raise ValueError(f"{name} is there {len(lines)} times")
    for line in lines:
        try:
            found = [(s.name, s.value) for f in text_string_to_metric_families(line + "\n") for s in f.samples]
        except (ValueError, LookupError):
            return  # cut in the middle of it
        yield from found
