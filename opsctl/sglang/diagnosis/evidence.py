"""What is known about a server when one asks why it accepts what it accepts. Plain values; None means not looked at."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

from opsctl.drafter.kind import Kind
from opsctl.sglang.releases import Range

_CHANCE = 1.02  # a length below it comes from lucky hits
_FAINT = 1.3
_DEAD = 1.005  # a length of two decimals that is below it reads 1.00
_SOUND_SHARE = 0.45  # of the draft steps accepted, from which a drafter is not called faulty
_DEFAULT_STEPS = 3


class Symptom(Enum):
    """What a fault looks like from outside. Different causes give different ones."""

    CRASH = "the server stops with an error"
    ELSEWHERE = "the server stops with an error that has nothing to do with drafts"
    IDLE = "no verify step at all"
    DEAD = "acceptance length 1.00 exactly"
    CHANCE = "acceptance length up to 1.02"
    FAINT = "acceptance length 1.02 to 1.3"
    PARTIAL = "acceptance length 1.3 to about 2"
    SOUND = "normal acceptance"


@dataclass(frozen=True, slots=True)
class Measured:
    """An acceptance length and where it was read.

    low, high: what the true one may be; `length` itself where None. none_accepted: whether, by exact counts, not one
    draft was accepted; None where nothing was counted exactly.
    """

    length: float
    source: str  # "probe", "request", "server", "log", "metrics"
    none_accepted: bool | None = None
    verify_steps: int | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Flags:
    """Launch settings that bear on acceptance. simulated: value of SGLANG_SIMULATE_ACC_LEN, '' when unset.

    overlap: whether the scheduler works on one batch while the next runs, which takes the second worker of EAGLE.
    mamba_strategy: which states of linear attention the radix cache keeps, by the target's class.
    """

    algorithm: str | None = None
    draft_model: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    tp: int = 1
    cuda_graphs: bool | None = None
    quantization: str | None = None
    draft_quantization: str | None = None
    simulated: str | None = None
    dp_attention: bool | None = None
    overlap: bool | None = None
    radix_cache: bool | None = None
    mamba_strategy: str | None = None

    @property
    def sound_from(self) -> float:
        """The acceptance length from which a drafter is not called faulty."""
        return 1 + _SOUND_SHARE * (self.steps or _DEFAULT_STEPS)


@dataclass(frozen=True, slots=True)
class SourceFact:
    """One thing the source does or does not do. place: file:line that proves it."""

    holds: bool | None
    place: str = ""
    detail: str = ""


_UNKNOWN = SourceFact(None)


@dataclass(frozen=True, slots=True)
class Source:
    """What the tree that the server runs does; every fact is stated so that True is the sound case.

    target_methods: the target's class has the methods that EAGLE-3 calls.
    d2t_offsets: the draft model adds the index to `d2t`. hot_ids: the worker maps drafted ids through it.
    own_head: the worker leaves a drafter's own lm_head alone (`set_embed`, not `set_embed_and_head`).
    takes_layers0: the loader takes tensors named `layers.0.*`.
    ids_in_graphs: graphs are captured with the configured aux layers.
    aux_complete: aux states are taken after the all-reduce.
    layer_quantized: the target's own layer that drafts is built with the quantisation of its checkpoint.
    dp_whole: with DP attention, the draft model's pass over accepted tokens takes all of them.
    checkout: its folder, where git tracks it.
    """

    target_methods: SourceFact = _UNKNOWN
    d2t_offsets: SourceFact = _UNKNOWN
    hot_ids: SourceFact = _UNKNOWN
    own_head: SourceFact = _UNKNOWN
    takes_layers0: SourceFact = _UNKNOWN
    ids_in_graphs: SourceFact = _UNKNOWN
    aux_complete: SourceFact = _UNKNOWN
    layer_quantized: SourceFact = _UNKNOWN
    dp_whole: SourceFact = _UNKNOWN
    checkout: str | None = None


@dataclass(frozen=True, slots=True)
class DrafterFault:
    """A finding of the drafter check: its check, its verdict word, and what it is about."""

    check: str
    verdict: str
    subject: str
    detail: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class LogError:
    """The first error of the running server's log.

    meaning: why it happens and what helps, where its kind tells. elsewhere: that has nothing to do with drafts.
    """

    kind: str
    text: str
    place: str = ""
    meaning: str = ""
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything gathered. drafter: None when it was not checked, empty when nothing was found.

    draft_kind: None when the draft model was not looked at.
    alive: whether the server answers. old_code: the process started before its source was last changed.
    default_ids: whether the drafter's aux layer ids are those the server uses by default.
    fused_all_reduce: whether all-reduce fusion is in use.
    target_class: its name, where the target's config was read. quant_method: of its checkpoint, "" where it is not
    quantised.
    once: the best acceptance length that the log shows since the server's present start.
    """

    version: Range | None = None
    alive: bool | None = None
    measured: Measured | None = None
    verifies: bool | None = None
    flags: Flags = field(default_factory=Flags)
    source: Source = field(default_factory=Source)
    drafter: tuple[DrafterFault, ...] | None = None
    draft_kind: Kind | None = None
    errors: tuple[LogError, ...] = ()
    old_code: bool | None = None
    default_ids: bool | None = None
    fused_all_reduce: bool | None = None
    target_class: str | None = None
    quant_method: str | None = None
    once: float | None = None


def shown(e: Evidence) -> frozenset[Symptom]:
    """What the server may show, by what was seen; empty when nothing was measured."""
    if e.alive is False and e.errors:
        return frozenset({Symptom.ELSEWHERE if e.errors[0].elsewhere else Symptom.CRASH})
    if e.verifies is False:
        return frozenset({Symptom.IDLE})
    if e.measured is None:
        return frozenset({Symptom.CRASH}) if e.alive is False else frozenset()
    m = e.measured
    if m.none_accepted:
        return frozenset({Symptom.DEAD})
    low, high = (m.length if end is None else end for end in (m.low, m.high))
    counted = m.none_accepted is not None
    # Each reaches from its own bound up to that of the next.
    bounds = (
        (Symptom.DEAD, 1.0, 1.0 if counted else _DEAD),
        (Symptom.CHANCE, 1.0 if counted else _DEAD, _CHANCE),
        (Symptom.FAINT, _CHANCE, _FAINT),
        (Symptom.PARTIAL, _FAINT, e.flags.sound_from),
        (Symptom.SOUND, e.flags.sound_from, math.inf),
    )
    return frozenset(s for s, begin, end in bounds if begin <= high and low < end)
