"""Causes that lie in the draft model's files, from the findings of the drafter check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opsctl.drafter.folder import convert_command
from opsctl.sglang.diagnosis.evidence import DrafterFault, Evidence, Symptom
from opsctl.sglang.diagnosis.hypotheses import Condition, Hypothesis

_DEAD = frozenset({Symptom.DEAD, Symptom.CHANCE})
_GARBAGE = _DEAD | {Symptom.FAINT}
_LOW = _GARBAGE | {Symptom.PARTIAL}
_FAINT_OR_PARTIAL = frozenset({Symptom.FAINT, Symptom.PARTIAL})
_CRASH = frozenset({Symptom.CRASH})

# Verdict words of the drafter check by what the server then does.
_STOPS = frozenset({"cuda-error", "runtime-error", "load-error", "needs-conversion"})
_GARBLES = frozenset({"silent-garbage"})
_SLOWS = frozenset({"degraded"})


@dataclass(frozen=True, slots=True)
class Group:
    """Checks that find the same kind of fault.

    prefixes: of check names. spared: subjects another group is about. converts: `opsctl drafter convert` mends it.
    """

    id: str
    claim: str
    prefixes: tuple[str, ...]
    verdicts: frozenset[str]
    predicts: frozenset[Symptom]
    spared: tuple[str, ...] = ()
    converts: bool = False

    def mine(self, fault: DrafterFault) -> bool:
        return (
            fault.verdict in self.verdicts
            and fault.check.startswith(self.prefixes)
            and not fault.subject.startswith(self.spared or ("\0",))
        )


_NAMES = "names-not-loaded"
_MAPPING = ("d2t", "t2d", "mapping")
_OF_OTHERS = ("lm_head", "d2t", "t2d")

# Measured with one fault at a time on 0.5.9 and 0.5.23: names of the wrong kind gave 1.00 to 2.0 (what is not loaded
# keeps what memory held), a missing head 1.00, features switched off 1.00 to 1.2.
GROUPS = (
    Group("d2t-crash", "`d2t` leads to token ids that do not exist", _MAPPING, _STOPS, _CRASH),
    Group("kind-unsupported", "SGLang has no algorithm for a draft model of this kind",
          ("draft-kind",), frozenset({"unsupported"}), _LOW | _CRASH),
    Group("drafter-stops-server", "SGLang cannot load or run this drafter",
          ("",), _STOPS, _CRASH, ("d2t", "t2d", "--speculative-algorithm")),
    Group("lm-head-missing", "the drafter's output head is not in its files and stays uninitialised",
          ("lm-head", "draft-vocab", "tied"), _GARBLES | _SLOWS, _DEAD),
    Group("aux-disabled", "the drafter's config switches the target's features off, and `fc` is skipped",
          ("use-aux",), _GARBLES | _SLOWS, _GARBAGE),
    Group("d2t-wrong", "`d2t` maps draft ids to the wrong tokens", _MAPPING, _GARBLES | _SLOWS, _GARBAGE),
    Group(_NAMES, "tensors have names that this loader drops without a word",
          ("tensor",), _GARBLES | _SLOWS, _LOW, _OF_OTHERS, converts=True),
    Group("drafter-garbage", "the drafter's weights or config make it draft garbage",
          ("",), _GARBLES, _LOW, ("--speculative-algorithm",)),
    Group("drafter-degraded", "the drafter's config loses acceptance", ("",), _SLOWS, _FAINT_OR_PARTIAL),
)  # fmt: skip


def _condition(group: Group) -> Callable[[Evidence], Condition]:
    def look(e: Evidence) -> Condition:
        if e.drafter is None:
            return Condition(None, "drafter not checked", decide="`opsctl drafter check` tells")
        found = [f for f in e.drafter if group.mine(f) and _group_of(f) is group]
        if not found:
            return Condition(False, "the drafter check finds nothing of the kind")
        if group.id == _NAMES and (taken := e.source.takes_layers0).holds:
            found = [f for f in found if not f.subject.startswith("layers.")]
            if not found:
                return Condition(False, f"the loader takes these names: {taken.detail}", (taken.place,))
        first = found[0]
        return Condition(
            True,
            f"{first.subject}: {first.detail}",
            tuple(f"{f.subject}: {f.detail}" for f in found),
            _remedy(group, e, first),
        )

    return look


def _remedy(group: Group, e: Evidence, first: DrafterFault) -> str:
    """A command, where there is one: of the finding, of another finding about the same, or the conversion."""
    related = [first, *(f for f in e.drafter or () if any(f.check.startswith(p) for p in group.prefixes if p))]
    command = next((f.remedy for f in related if f.remedy.startswith("opsctl ")), None)
    if command is None and group.converts:
        command = convert_command(e.flags.draft_model or "the draft model", there=True)
    if command is None and first.remedy:
        return f"{first.remedy}; then `opsctl deploy drafter FOLDER`"
    return command or "opsctl drafter check DIR --full"


def _group_of(fault: DrafterFault) -> Group | None:
    """The one group a fault is counted in: the first that is about it."""
    return next((g for g in GROUPS if g.mine(fault)), None)


DRAFTER_CAUSES: tuple[Hypothesis, ...] = tuple(
    Hypothesis(g.id, g.claim, g.predicts, _condition(g), "acceptance as the drafter was trained for") for g in GROUPS
)
