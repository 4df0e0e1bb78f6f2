"""Why does it accept what it accepts? The tree of hypotheses, walked over gathered evidence. Pure.

A hypothesis says what would be the case (its condition) and what one would then see (its symptoms). It is confirmed
only when the condition holds *and* what was measured may be one of the symptoms it predicts: a fault that would give
1.00 is no explanation of 1.85, however real it is. What was measured loosely may be several, and rules out fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from opsctl.sglang.diagnosis.evidence import Evidence, Measured, Symptom, shown

_LENGTH = "acceptance length "


class Verdict(StrEnum):
    RULED_OUT = "ruled-out"
    CONFIRMED = "confirmed"
    UNDECIDABLE = "undecidable"


@dataclass(frozen=True, slots=True)
class Condition:
    """Whether a hypothesis's condition holds; None: not known, and `decide` says what would tell.

    applies: whether there was anything to look at; a condition that does not apply does not hold.
    """

    holds: bool | None
    seen: str
    evidence: tuple[str, ...] = ()
    remedy: str = ""
    decide: str = ""
    applies: bool = True


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One possible cause. effect: what its remedy brings."""

    id: str
    claim: str
    predicts: frozenset[Symptom]
    condition: Callable[[Evidence], Condition]
    effect: str


@dataclass(frozen=True, slots=True)
class Judged:
    """A hypothesis after the walk. fine: its condition was looked at and does not hold."""

    id: str
    claim: str
    verdict: Verdict
    predicts: str
    seen: str
    evidence: tuple[str, ...]
    remedy: str
    effect: str
    fine: bool


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """cause: the most likely confirmed hypothesis; None when nothing explains what was measured, or need be.

    symptoms: those that what was seen allows; empty when nothing was measured.
    """

    symptoms: frozenset[Symptom]
    measured: Measured | None
    hypotheses: tuple[Judged, ...]
    cause: Judged | None

    @property
    def sound(self) -> bool:
        """Whether what was seen is certainly that of a drafter that works, and nothing is known against it."""
        return self.cause is None and self.symptoms == {Symptom.SOUND}

    @property
    def seen(self) -> str | None:
        """The symptoms in words; None when nothing was measured."""
        return _words(self.symptoms) or None


def diagnose(e: Evidence, tree: Sequence[Hypothesis]) -> Diagnosis:
    """Judge every hypothesis of `tree`, which is in order of preference."""
    symptoms = shown(e)
    judged = tuple(_judge(h, e, symptoms) for h in tree)
    cause = next((j for j in judged if j.verdict is Verdict.CONFIRMED), None)
    return Diagnosis(symptoms, e.measured, judged, cause)


def to_json(d: Diagnosis) -> dict[str, Any]:
    """The object `opsctl diagnose --json` prints."""
    return {
        "cause": d.cause.id if d.cause else None,
        "symptom": d.seen,
        "measured": asdict(d.measured) if d.measured else None,
        "hypotheses": [
            {
                "id": j.id,
                "claim": j.claim,
                "verdict": str(j.verdict),
                "predicts": j.predicts,
                "seen": j.seen,
                "evidence": list(j.evidence),
            }
            for j in d.hypotheses
        ],
        "remedy": d.cause.remedy or None if d.cause else None,
        "effect": d.cause.effect if d.cause else None,
    }


def _judge(h: Hypothesis, e: Evidence, symptoms: frozenset[Symptom]) -> Judged:
    c = h.condition(e)
    fits = not symptoms or not symptoms.isdisjoint(h.predicts)
    seen = c.seen
    if c.holds is False:
        verdict = Verdict.RULED_OUT
    elif not fits:
        verdict = Verdict.RULED_OUT
        is_seen = _words(symptoms)
        seen = f"{c.seen}; but what is seen is: {is_seen}" if c.holds else f"not this: {is_seen}"
    elif c.holds:
        verdict = Verdict.CONFIRMED
    else:
        verdict = Verdict.UNDECIDABLE
        seen = f"{c.seen}; {c.decide}" if c.decide else c.seen
    return Judged(
        h.id, h.claim, verdict, _words(h.predicts), seen, c.evidence, c.remedy, h.effect, c.holds is False and c.applies
    )


def _words(predicts: frozenset[Symptom]) -> str:
    words = [s.value for s in Symptom if s in predicts]
    # One "acceptance length" for all: "acceptance length 1.00 exactly, up to 1.02".
    return ", ".join(
        w.removeprefix(_LENGTH) if n and words[n - 1].startswith(_LENGTH) else w for n, w in enumerate(words)
    )
