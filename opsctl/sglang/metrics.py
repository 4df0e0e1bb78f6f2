"""The figures of a server's /metrics page that a measurement is compared with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

PREFIX = "sglang:"


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
    """The figures of a page in the Prometheus text format; a page cut short gives those that came before the cut."""
    sums: dict[str, list[float]] = {}
    for name, value in _samples(page):
        sums.setdefault(name, []).append(value)

    def mean(name: str) -> float | None:
        values = [v for v in sums.get(PREFIX + name, []) if v == v]  # not NaN
        return sum(values) / len(values) if values else None

    def total(name: str) -> float | None:
        return sum(sums[PREFIX + name]) if PREFIX + name in sums else None

    return Metrics(
        mean("spec_accept_length") or None,  # 0 until the first decode log interval has passed
        mean("spec_accept_rate"),
        total("generation_tokens_total"),
        total("spec_verify_calls_total"),
    )


def _samples(page: str) -> Iterable[tuple[str, float]]:
    from prometheus_client.parser import text_string_to_metric_families

    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                yield sample.name, sample.value
    except ValueError:
        return
