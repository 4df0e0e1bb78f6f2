"""What a probe noticed beside its figures: reasons to distrust them, and what they mean. Pure rules."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.findings import LEVELS, Finding, Level
from opsctl.sglang.probe.measure import ENOUGH_STEPS, Measurement, Sample, Templated
from opsctl.sglang.probe.probe_result import Summary
from opsctl.text import one_line

# Below this nothing worth the name is accepted: chance alone brings a few hits.
NOTHING = 1.05
_OTHERS_SHARE = 0.02  # tokens generated for others, beside ours, that say the server is not ours alone
# speculative/spec_utils.py, 0.4.10 to 0.5.23: simulated steps write this id in place of every verified token.
_SIMULATED_TOKEN = 100
_SIMULATED_MINIMUM = 2  # answers that must consist of it


def findings(m: Measurement, s: Summary, with_key: bool = False, simulated: str = "") -> list[Finding]:
    """All that is to be said, the gravest first. simulated: SGLANG_SIMULATE_ACC_LEN of the process, where known."""
    found = [*_simulation(m, simulated), *_trust(m, s, with_key), *_meaning(m, s)]
    return sorted(found, key=lambda f: LEVELS.index(f.level))


def word(level: Level) -> str:
    """How grave a finding is, in the words of a probe's result."""
    return "note" if level == "notice" else level


def _simulation(m: Measurement, simulated: str) -> Iterator[Finding]:
    seen = f"SGLANG_SIMULATE_ACC_LEN={simulated} is set for the process" if simulated else ""
    if _simulated(m.levels[0].samples):
        seen = seen or f"every answer consists of token {_SIMULATED_TOKEN}"
    if seen:
        yield Finding(
            "simulated-acceptance",
            "error",
            f"{seen}: the server simulates acceptance and does not verify",
            remedy="restart it without SGLANG_SIMULATE_ACC_LEN in its environment; the acceptance here means nothing",
        )


def _trust(m: Measurement, s: Summary, with_key: bool) -> Iterator[Finding]:
    """Whether the figures are what they look like."""
    if m.load_before and (m.load_before.running or m.load_before.waiting):
        yield Finding(
            "busy",
            "warning",
            f"the server was serving others at the start: {m.load_before.running} running, "
            f"{m.load_before.waiting} waiting",
            remedy="acceptance holds all the same; speed and latency do not. Probe again when it is idle",
        )
    elif (others := _for_others(m)) < -m.sent_tokens:
        yield Finding(
            "counters-went-back",
            "warning",
            "the server's count of generated tokens is lower after the probe than before: it was started anew "
            "meanwhile, or counts wrongly",
            remedy="`opsctl server status` tells since when it runs. Probe again",
        )
    elif others > _OTHERS_SHARE * m.sent_tokens:
        yield Finding(
            "busy",
            "warning",
            f"the server generated {others:.0f} tokens for others during the probe, and {m.sent_tokens} for it",
            remedy="acceptance holds all the same; speed and latency do not. Probe again when it is idle",
        )
    if m.metrics_before is None:
        yield Finding(
            "metrics-disabled",
            "notice",
            "the server has no /metrics, so traffic of others during the probe would go unnoticed",
            remedy="start it with --enable-metrics",
        )
    if with_key:
        yield Finding("authenticated", "notice", "the server was asked with an API key")
    if m.templated is Templated.NONE:
        yield Finding(
            "no-chat-template",
            "warning",
            "this server does not render chat messages and its model folder cannot be read from here, so prompts went "
            "without chat template; a drafter trained on chats is then accepted less",
            remedy="give --chat-template DIR (the model's folder), or probe with --host",
        )
    if m.skipped:
        prompt, reason = m.skipped[0]
        count = len(dict(m.skipped))
        yield Finding(
            "prompts-refused",
            "notice",
            f"the server refused {count} of the prompts, among them {prompt}: {one_line(reason, 120)}",
        )
    if s.accept and s.accept.verify_steps < ENOUGH_STEPS:
        yield Finding(
            "too-few-steps",
            "warning",
            f"only {s.accept.verify_steps} verify steps: the true length lies between {s.accept.low:.2f} and "
            f"{s.accept.high:.2f} (95 %)",
            remedy=f"send more or longer answers: {ENOUGH_STEPS} steps or more are worth comparing",
        )
    if s.accept and not s.accept.exact:
        yield Finding(
            "derived-length",
            "notice",
            "this version counts tokens and verify steps only: the first token of each answer, which comes from the "
            "prompt pass, was left out, and the last step, which the token limit may cut, makes the length read low by "
            f"at most {s.accept.bias:.2f}",
            remedy="longer answers make this smaller",
        )


def _meaning(m: Measurement, s: Summary) -> Iterator[Finding]:
    """What the figures mean."""
    if not m.info.speculative_algorithm:
        yield Finding(
            "no-speculation",
            "warning",
            "the server runs without speculative decoding; its speed can serve as a baseline",
            remedy="start it with --speculative-algorithm EAGLE3 --speculative-draft-model-path DIR",
        )
    elif s.accept is None:
        yield Finding(
            "no-counters",
            "warning",
            f"the server says it speculates ({m.info.speculative_algorithm}) and counted no verify step",
            remedy="answers may have been too short: raise --max-tokens",
        )
    if s.accept and s.accept.length < NOTHING:
        exactly = "not one draft was accepted" if s.accept.none_accepted else "next to no draft is accepted"
        yield Finding(
            "nothing-accepted",
            "error",
            f"{exactly}: a fault in the wiring of drafter and server, not a matter of training",
            remedy="`opsctl diagnose` says which",
        )
    if s.rate_in_log is not None and s.accept_rate is not None and abs(s.rate_in_log - s.accept_rate) > 0.005:
        yield Finding(
            "rate-in-log",
            "notice",
            f"the log of this version shows an accept rate of {s.rate_in_log:.2f} for this; it means "
            f"{s.rate_in_log_words}",
        )
    if s.break_even and s.break_even.speedup < 1:
        yield Finding(
            "below-break-even",
            "warning",
            f"speculation loses time: {s.break_even.tps:.1f} tok/s with it, {s.break_even.baseline_tps:.1f} without",
            remedy=f"it pays from an acceptance length of {s.break_even.needed:.2f}",
        )
    if s.agree and s.agree[0] < s.agree[1]:
        yield Finding(
            "outputs-differ",
            "warning",
            f"greedy answers with and without speculation agree for {s.agree[0]} of {s.agree[1]} prompts",
            remedy="rounding at other batch shapes can do this once in a while; a good part of all prompts is a fault",
        )


def _simulated(samples: tuple[Sample, ...]) -> bool:
    """Whether whatever was asked, nothing but the simulated token came."""
    long_enough = [s for s in samples if s.counters and s.completion_tokens > 4]
    return len(long_enough) >= _SIMULATED_MINIMUM and all(s.few_tokens == (_SIMULATED_TOKEN,) for s in long_enough)


def _for_others(m: Measurement) -> float:
    """Tokens generated during the probe that were not asked for by it; 0 where the server does not tell."""
    before, after = m.metrics_before, m.metrics_after
    if not before or not after or before.generated_tokens is None or after.generated_tokens is None:
        return 0.0
    return after.generated_tokens - before.generated_tokens - m.sent_tokens
