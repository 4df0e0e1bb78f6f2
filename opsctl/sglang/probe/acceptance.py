"""Acceptance of drafted tokens: what each version counts, and what follows from the counts.

One definition is used everywhere. The acceptance **length** is 1 + accepted drafts / verify steps: the tokens that one
cycle brings, the target's own token included. The acceptance **rate** is accepted drafts / proposed drafts. Servers use
both words for other things too; `RATE_IN_LOG` says for which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from opsctl.sglang.releases.version import Version

# Names of the per-request counters in `meta_info`, newest first: managers/tokenizer_manager.py of 0.4.6 to 0.5.23.
ACCEPTED_NAMES = (
    "spec_num_correct_drafts",  # 0.5.12 and later
    "spec_accepted_drafts",  # 0.5.11, and an alias until 0.5.20
    "spec_accept_token_num",  # 0.5.6 to 0.5.10
)
HISTOGRAM_NAMES = (
    "spec_correct_drafts_histogram",  # 0.5.12 and later
    "spec_accept_histogram",  # 0.5.9 to 0.5.11, and an alias until 0.5.20
)
VERIFY_NAME = "spec_verify_ct"  # every version
RATE_NAME = "spec_accept_rate"  # 0.5.4 and later; in 0.5.4 and 0.5.5 the only trace of the accepted drafts

# Two-sided 95 % points of Student's t for 1, 2, ... degrees of freedom; 1.96 + 2.4/df is right to 0.01 from there on.
_T95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True, slots=True)
class Counters:
    """What the server counted for one request.

    accepted: accepted drafts; None where this version does not tell (up to 0.5.3).
    histogram: verify steps by number of accepted drafts; empty where this version does not tell (up to 0.5.8).
    """

    completion_tokens: int
    verify_steps: int
    accepted: int | None = None
    histogram: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Acceptance over a set of requests.

    low, high: 95 % confidence interval of the length.
    least, most: the lowest and the highest length of a single request.
    exact: counted by the server; otherwise derived from token counts, and `bias` is the most by which it reads low.
    """

    length: float
    low: float
    high: float
    least: float
    most: float
    verify_steps: int
    requests: int
    histogram: tuple[int, ...]
    exact: bool
    bias: float

    @property
    def none_accepted(self) -> bool:
        """Whether not a single draft was accepted. Unlike a length near 1, this has causes of its own."""
        return self.exact and self.length == 1.0


def read_counters(meta: Mapping[str, object], num_steps: int | None = None) -> Counters | None:
    """The counters in one answer's `meta_info`; None when the server did not speculate.

    num_steps: the server's draft steps per cycle; with it 0.5.4 and 0.5.5, which tell a rate only, tell the count too.
    """
    steps = _count(meta.get(VERIFY_NAME))
    if not steps:
        return None
    histogram = next((_counts(meta[name]) for name in HISTOGRAM_NAMES if name in meta), ())
    accepted = next((_count(meta[name]) for name in ACCEPTED_NAMES if name in meta), None)
    if accepted is None and histogram:
        accepted = sum(n * cycles for n, cycles in enumerate(histogram))
    share = meta.get(RATE_NAME)
    if accepted is None and num_steps and isinstance(share, int | float):
        accepted = round(share * steps * num_steps)
    return Counters(_count(meta.get("completion_tokens")) or 0, steps, accepted, histogram)


def acceptance(requests: Iterable[Counters], num_steps: int | None) -> Acceptance | None:
    """The acceptance over `requests`; None without a single verify step.

    num_steps: draft steps per cycle, which bounds what a cycle can bring. Unknown: taken from what was seen.

    Where only tokens were counted, each request's first token is left out (it comes from the prompt pass), and its last
    cycle may have been cut by the token limit: the 24 tokens that six full cycles brought read 23/6 = 3.83, not 4.00.
    """
    used = [c for c in requests if c.verify_steps > 0]
    if not used:
        return None
    exact = all(c.accepted is not None for c in used)
    extra = [float(_extra(c, exact)) for c in used]
    steps = [c.verify_steps for c in used]
    lengths = [1 + e / s for e, s in zip(extra, steps, strict=True)]
    mean = 1 + sum(extra) / sum(steps)
    histogram = _added([c.histogram for c in used]) if all(c.histogram for c in used) else ()
    most_possible = 1.0 + (num_steps if num_steps else max(math.ceil(max(lengths)) - 1, len(histogram) - 1))
    low, high = _interval(mean, extra, steps, histogram, most_possible)
    bias = 0.0 if exact else len(used) * (most_possible - 1) / sum(steps)
    return Acceptance(
        mean,
        low,
        high,
        min(lengths),
        max(lengths),
        sum(steps),
        len(used),
        histogram,
        exact,
        min(bias, most_possible - 1),
    )


def rate(found: Acceptance, draft_tokens: int | None) -> float | None:
    """Accepted drafts / proposed drafts, where each cycle verifies `draft_tokens` tokens, one of which is no draft."""
    if not draft_tokens or draft_tokens < 2:
        return None
    return (found.length - 1) / (draft_tokens - 1)


def by_position(histogram: Sequence[int]) -> tuple[float, ...]:
    """Share of all cycles in which the first, second, ... draft was accepted. The sum is the length - 1."""
    total = sum(histogram)
    return tuple(sum(histogram[n:]) / total for n in range(1, len(histogram))) if total else ()


@dataclass(frozen=True, slots=True)
class RateInLog:
    """What the log line and the gauge of some versions call "accept rate"."""

    since: Version
    words: str
    of: Callable[[float, int, int], float]  # (length, num_steps, draft_tokens)


# observability and metrics code of the wheels 0.5.3 to 0.5.23; the change of 0.5.11 is sgl-project/sglang#23530.
RATE_IN_LOG = (
    RateInLog(Version(0, 5, 11), "accepted drafts / proposed drafts: 0 when nothing is accepted",
              lambda length, steps, tokens: (length - 1) / (tokens - 1)),
    RateInLog(Version(0, 5, 6), "acceptance length / draft tokens: not 0 when nothing is accepted",
              lambda length, steps, tokens: length / tokens),
    RateInLog(Version(0, 5, 3), "acceptance length / (draft steps + 1): not 0 when nothing is accepted",
              lambda length, steps, tokens: length / (steps + 1)),
)  # fmt: skip


def rate_in_log(version: Version) -> RateInLog | None:
    """The meaning of "accept rate" in the log of `version`; None where the log has no such figure."""
    return next((r for r in RATE_IN_LOG if version >= r.since), None)


def _extra(c: Counters, exact: bool) -> int:
    """Tokens beyond one per cycle."""
    if exact and c.accepted is not None:
        return c.accepted
    return max(c.completion_tokens - 1 - c.verify_steps, 0)


def _interval(
    mean: float, extra: Sequence[float], steps: Sequence[int], histogram: Sequence[int], most: float
) -> tuple[float, float]:
    """95 % interval of the length: the wider of the spread between requests and the spread between cycles.

    Cycles of one request resemble each other, so the spread between requests counts; with few requests it may be small
    by chance, so the other counts too. When all cycles are alike neither says anything: then at most 3/n of them can be
    otherwise (the rule of three), in the worst way possible.
    """
    total, n = sum(steps), len(steps)
    half = 0.0
    if n > 1:
        residual = sum((e - (mean - 1) * s) ** 2 for e, s in zip(extra, steps, strict=True))
        half = _t95(n - 1) * math.sqrt(n / (n - 1) * residual) / total
    if histogram and total > 1:
        spread = sum(count * (k - (mean - 1)) ** 2 for k, count in enumerate(histogram))
        half = max(half, 1.96 * math.sqrt(spread / (total - 1) / total))
    rest = min(1.0, 3 / total)
    if half == 0.0:
        return mean - rest * (mean - 1), mean + rest * (most - mean)
    return max(1.0, mean - half), min(most, mean + half)


def _t95(df: int) -> float:
    return _T95[df - 1] if df <= len(_T95) else 1.96 + 2.4 / df


def _added(histograms: Sequence[Sequence[int]]) -> tuple[int, ...]:
    width = max(map(len, histograms))
    return tuple(sum(h[k] for h in histograms if k < len(h)) for k in range(width))


def _count(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def _counts(value: object) -> tuple[int, ...]:
    return tuple(_count(n) or 0 for n in value) if isinstance(value, list) else ()
