"""What a probe's measurement says: pure functions from a `Measurement` to figures, and the JSON of the interface.

Break-even is one of them: how many tokens a cycle must bring for speculation to be worth its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.sglang.probe.acceptance import Acceptance, acceptance, by_position, rate, rate_in_log
from opsctl.sglang.probe.measure import Level, Measurement, Sample
from opsctl.sglang.probe.prompts import digest_of
from opsctl.sglang.releases.version import Version

# Acceptance length at 3 draft steps that published EAGLE-3 drafters of Kimi-K2.x reach: sgl-project/sglang#26506.
REFERENCE_LENGTH = 3.2


@dataclass(frozen=True, slots=True)
class Throughput:
    """Tokens/s at one concurrency. per_request: while decoding. total: of the whole server, prompt passes included."""

    concurrency: int
    per_request: float | None
    total: float
    accept_length: float | None


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Milliseconds."""

    median: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Baseline:
    """The speed of one request without speculation; outputs (digest by prompt) where it was measured by a probe."""

    tps: float
    outputs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one probe.

    cycle_ms: time from one verify step to the next, at the first concurrency.
    agree: (prompts whose greedy output equals the baseline's, prompts compared), where both are known.
    """

    accept: Acceptance | None
    accept_rate: float | None
    rate_in_log: float | None
    rate_in_log_words: str
    workloads: tuple[tuple[str, Acceptance | None], ...]
    sampled: Acceptance | None
    sampled_temperature: float | None
    throughput: tuple[Throughput, ...]
    first_token: Quantiles | None
    inter_token: Quantiles | None
    cycle_ms: float | None
    break_even: BreakEven | None
    baseline: float | None
    speedup: float | None
    agree: tuple[int, int] | None
    outputs: tuple[tuple[str, str], ...]


def summarise(m: Measurement, baseline: Baseline | None = None) -> Summary:
    """The figures of `m`, with break-even where a baseline is known."""
    info, first = m.info, m.levels[0]
    steps, tokens = info.speculative_num_steps, info.speculative_num_draft_tokens
    accept = accept_of(first.samples, steps)
    release = Version.told(info.version)
    in_log = rate_in_log(release) if release and accept else None
    tps = _per_request(first.samples)
    cycle = _cycle_ms(first.samples)
    even = break_even(accept.length, tps, baseline.tps, cycle) if accept and tps and baseline else None
    outputs = tuple(sorted({s.prompt: s.digest for s in first.samples}.items()))
    return Summary(
        accept=accept,
        accept_rate=rate(accept, tokens) if accept else None,
        rate_in_log=in_log.of(accept.length, steps, tokens) if in_log and accept and steps and tokens else None,
        rate_in_log_words=in_log.words if in_log else "",
        workloads=tuple(
            (name, accept_of([s for s in first.samples if s.workload == name], steps)) for name in _names(first)
        ),
        sampled=accept_of(m.sampled.samples, steps) if m.sampled else None,
        sampled_temperature=m.sampled.temperature if m.sampled else None,
        throughput=tuple(_throughput(level, steps) for level in m.levels if level.samples),
        first_token=quantiles([s.first_token for s in first.samples]),
        inter_token=quantiles([gap for s in first.samples for gap in s.gaps]),
        cycle_ms=cycle,
        break_even=even,
        baseline=baseline.tps if baseline else None,
        speedup=tps / baseline.tps if baseline and tps else None,
        agree=_agreement(outputs, baseline.outputs) if baseline else None,
        outputs=outputs,
    )


def accept_of(samples: Sequence[Sample], num_steps: int | None) -> Acceptance | None:
    return acceptance([s.counters for s in samples if s.counters], num_steps)


def quantiles(seconds: Sequence[float]) -> Quantiles | None:
    """Nearest-rank quantiles, in milliseconds."""
    if not seconds:
        return None
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return 1000 * ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]

    return Quantiles(at(0.5), at(0.95), at(0.99))


def words(s: Summary, num_steps: int | None) -> str | None:
    """The break-even in a sentence, with a reference length the server could reach."""
    if not s.break_even:
        return None
    possible = num_steps is None or num_steps + 1 >= REFERENCE_LENGTH
    return in_words(s.break_even, REFERENCE_LENGTH if possible else None)


def accept_json(a: Acceptance | None) -> dict[str, Any] | None:
    if a is None:
        return None
    return {
        "mean": round(a.length, 4),
        "ci95": [round(a.low, 4), round(a.high, 4)],
        "min": round(a.least, 4),
        "max": round(a.most, 4),
        "histogram": list(a.histogram),
        "by_position": [round(share, 4) for share in by_position(a.histogram)],
        "exact": a.exact,
        "bias": round(a.bias, 4),
        "requests": a.requests,
        "verify_steps": a.verify_steps,
    }


def to_json(m: Measurement, s: Summary) -> dict[str, Any]:
    """The object `opsctl probe --json` prints, less its findings. Rates in tokens/s, times in ms."""
    info = m.info
    return {
        "accept_length": accept_json(s.accept),
        "accept_rate": _rounded(s.accept_rate),
        "accept_rate_in_log": _rounded(s.rate_in_log),
        "verify_steps": s.accept.verify_steps if s.accept else 0,
        "workloads": {name: accept_json(a) for name, a in s.workloads},
        "sampled": {"temperature": s.sampled_temperature, "accept_length": accept_json(s.sampled)}
        if s.sampled_temperature
        else None,
        "throughput": {
            str(t.concurrency): {
                "per_request": _rounded(t.per_request),
                "total": _rounded(t.total),
                "accept_length": _rounded(t.accept_length),
            }
            for t in s.throughput
        },
        "latency": {"first_token": _quantiles_json(s.first_token), "inter_token": _quantiles_json(s.inter_token)},
        "cycle_ms": _rounded(s.cycle_ms),
        "baseline": _rounded(s.baseline),
        "speedup": _rounded(s.speedup),
        "break_even": _rounded(s.break_even.needed if s.break_even else None),
        "break_even_words": words(s, info.speculative_num_steps),
        "outputs_agree": list(s.agree) if s.agree else None,
        "outputs": dict(s.outputs),
        "requests": sum(len(level.samples) for level in m.levels),
        "templated": str(m.templated),
        "plan": {
            "prompts": digest_of(m.plan.prompts),
            "max_tokens": m.plan.max_tokens,
            "concurrency": m.plan.concurrency[0],
        },
        "server": {
            "version": info.version,
            "algorithm": info.speculative_algorithm,
            "steps": info.speculative_num_steps,
            "topk": info.speculative_eagle_topk,
            "draft_tokens": info.speculative_num_draft_tokens,
            "tp": info.tp_size,
            "quantization": info.quantization,
            "attention_backend": info.attention_backend,
            "model": info.model_path,
            "draft_model": info.speculative_draft_model_path,
            "own_accept_length": _rounded(m.own_accept_length),
        },
    }


def _names(level: Level) -> list[str]:
    return list(dict.fromkeys(s.workload for s in level.samples))


def _per_request(samples: Sequence[Sample]) -> float | None:
    seconds = sum(s.decode_seconds for s in samples)
    return sum(s.decode_tokens for s in samples) / seconds if seconds > 0 else None


def _cycle_ms(samples: Sequence[Sample]) -> float | None:
    counted = [s for s in samples if s.counters]
    steps = sum(s.counters.verify_steps for s in counted if s.counters)
    return 1000 * sum(s.decode_seconds for s in counted) / steps if steps else None


def _throughput(level: Level, num_steps: int | None) -> Throughput:
    found = accept_of(level.samples, num_steps)
    tokens = sum(s.completion_tokens for s in level.samples)
    return Throughput(
        level.concurrency, _per_request(level.samples), tokens / level.seconds, found.length if found else None
    )


def _agreement(ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]]) -> tuple[int, int] | None:
    other = dict(theirs)
    both = [digest == other[prompt] for prompt, digest in ours if prompt in other]
    return (sum(both), len(both)) if both else None


def _quantiles_json(q: Quantiles | None) -> dict[str, float] | None:
    return {"median": round(q.median, 2), "p95": round(q.p95, 2), "p99": round(q.p99, 2)} if q else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


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
