"""Break-even: how many tokens a cycle must bring for speculation to be worth its time. Pure arithmetic."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BreakEven:
    """One operating point with speculation beside the speed without it.

    A cycle (drafting, verifying, overhead) takes nearly the same time whatever is accepted. So one measurement, even of
    a drafter that does not work, tells what any acceptance length would give on this host at this load.

    length: measured acceptance length. tps, baseline_tps: tokens/s of one request with and without speculation.
    """

    length: float
    tps: float
    baseline_tps: float
    cycle_ms: float

    @property
    def token_ms(self) -> float:
        """Time of one token without speculation."""
        return 1000 / self.baseline_tps

    @property
    def needed(self) -> float:
        """The acceptance length at which speculation neither gains nor loses."""
        return self.length * self.baseline_tps / self.tps

    @property
    def speedup(self) -> float:
        return self.tps / self.baseline_tps

    def tps_at(self, length: float) -> float:
        """Tokens/s of one request if a cycle brought `length` tokens."""
        return 1000 * length / self.cycle_ms


def break_even(length: float, tps: float, baseline_tps: float, cycle_ms: float | None = None) -> BreakEven:
    """The break-even from observation. `cycle_ms` where it was timed by itself; otherwise it follows from the rest."""
    return BreakEven(length, tps, baseline_tps, cycle_ms if cycle_ms is not None else 1000 * length / tps)


def in_words(b: BreakEven, reference: float | None = None) -> str:
    """The break-even in one sentence. `reference`: an acceptance length to say the speed for."""
    text = (
        f"a cycle takes {b.cycle_ms:.1f} ms, a token without speculation {b.token_ms:.1f} ms: "
        f"break-even at acceptance length {b.needed:.2f}; measured {b.length:.2f}"
    )
    if reference is None:
        return text
    return f"{text}; at {reference:g} this host would give {b.tps_at(reference):.0f} tok/s"


def curve(b: BreakEven, most: float, points: int = 25) -> list[tuple[float, float]]:
    """(acceptance length, speed-up) from 1 to `most`, for a chart."""
    step = (most - 1) / (points - 1)
    return [(1 + k * step, b.tps_at(1 + k * step) / b.baseline_tps) for k in range(points)]
