"""The causes that opsctl knows, in the order in which they are preferred when several explain what is seen.

Sources: the released packages 0.4.6 to 0.5.23, runs of 0.5.9 and 0.5.23 with one fault at a time, and the threads that
are named beside an entry (numbers of sgl-project/sglang).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from opsctl.drafter.folder import convert_command
from opsctl.drafter.kind import Kind, recognise
from opsctl.sglang.diagnosis.evidence import DrafterFault, Evidence, SourceFact, Symptom
from opsctl.sglang.diagnosis.hypotheses import Condition, Hypothesis
from opsctl.sglang.releases import Range, Version

_CRASH = frozenset({Symptom.CRASH})
_ENDS = _CRASH | {Symptom.ELSEWHERE}
_DEAD = frozenset({Symptom.DEAD, Symptom.CHANCE})
_LOW = frozenset({Symptom.CHANCE, Symptom.FAINT, Symptom.PARTIAL})
_GARBAGE = _DEAD | {Symptom.FAINT}
_ANY_LOW = _GARBAGE | {Symptom.PARTIAL}
_LOOK = "`opsctl source facts` on the host tells"


def _no_speculation(e: Evidence) -> Condition:
    if e.flags.algorithm is None:
        off = e.verifies is False
        return Condition(
            off or None,
            "the server runs without --speculative-algorithm" if off else "launch flags not known",
            remedy="opsctl deploy drafter FOLDER",
            decide="the flags of the running process tell",
        )
    return Condition(False, f"--speculative-algorithm {e.flags.algorithm}")


def _simulated(e: Evidence) -> Condition:
    value = e.flags.simulated
    if value is None:
        return Condition(None, "environment of the process not read", decide="read it on the host")
    if not value:
        return Condition(False, "SGLANG_SIMULATE_ACC_LEN is not set")
    return Condition(
        True,
        f"SGLANG_SIMULATE_ACC_LEN={value} in the environment of the process",
        remedy="take it out of the server's environment (`env` of the host, or its unit), then `opsctl server restart`",
    )


def _old_code(e: Evidence) -> Condition:
    if e.old_code is None:
        return Condition(None, "start of the process and age of the source not compared")
    if not e.old_code:
        return Condition(False, "the process started after the last change of its source")
    return Condition(
        True,
        "the process started before its source was last changed: it runs the old code",
        remedy="opsctl server restart",
    )


def _of_eagle3(condition: Callable[[Evidence], Condition]) -> Callable[[Evidence], Condition]:
    """`condition`, which only a draft model of EAGLE-3 can meet."""

    def look(e: Evidence) -> Condition:
        kind = _draft_kind(e)
        if kind is not None and kind is not Kind.UNKNOWN and not kind.eagle3:
            return Condition(False, f"the draft model is {kind.value}, not EAGLE-3", applies=False)
        return condition(e)

    return look


_WITHOUT = re.compile(r"'(\w+)' object has no attribute '(?:set_embed|hot_token_id)'")


def _draft_kind(e: Evidence) -> Kind | None:
    """The kind of the draft model, else of the class that a worker could not use as one of EAGLE-3."""
    if e.draft_kind is not None:
        return e.draft_kind
    named = next((found[1] for x in e.errors if (found := _WITHOUT.search(x.text))), None)
    return recognise({"architectures": [named]}, {}).kind if named else None


@_of_eagle3
def _target_methods(e: Evidence) -> Condition:
    text = next(
        (x for x in e.errors if "set_eagle3_layers_to_capture" in x.text or "get_embed_and_head" in x.text), None
    )
    if text:
        return Condition(True, text.text, (text.place,) if text.place else (), "opsctl patch sglang")
    if e.alive and e.flags.algorithm:
        return Condition(False, f"the server started with --speculative-algorithm {e.flags.algorithm}")
    return _from_source(e.source.target_methods, "opsctl patch sglang", "the target's class has what EAGLE-3 calls")


def _algorithm(e: Evidence) -> Condition:
    name = e.flags.algorithm
    if name is None:
        return Condition(None, "launch flags not known", decide="the flags of the running process tell")
    flag, kind = f"--speculative-algorithm {name}", _draft_kind(e)
    if kind is None or kind is Kind.UNKNOWN:
        # Only a class of EAGLE-3 comes up under EAGLE3.
        fine = name.upper() == "EAGLE3" and e.alive is not False
        return Condition(False if fine else None, flag, decide="`opsctl drafter check` tells the draft model's kind")
    if name.upper() in (*kind.algorithms, "NONE"):
        return Condition(False, f"{flag} is that of {kind.value}")
    if not kind.algorithms:
        return Condition(False, f"no algorithm is that of a draft model that is {kind.value}")
    starts = kind.eagle3 and name.upper() in ("EAGLE", "NEXTN")
    if starts and e.alive is False:
        return Condition(False, f"{flag} with a draft model of {kind.value} starts, and accepts nothing")
    effect = "no features are captured, `fc` is skipped" if starts else "the worker is made for another kind"
    return Condition(
        True,
        f"{flag} with a draft model that is {kind.value}: {effect}",
        (flag,),
        f"say speculative-algorithm: {kind.algorithms[0]} in `launch` of the host, then `opsctl server restart`",
    )


@_of_eagle3
def _hot_ids(e: Evidence) -> Condition:
    both = (e.source.d2t_offsets, e.source.hot_ids)
    broken = next((f for f in both if f.holds is False), None)
    fact = broken or next((f for f in both if f.holds is None), both[0])
    return _from_source(fact, _as_released(e, fact), "`d2t` is applied to drafted ids")


@_of_eagle3
def _head(e: Evidence) -> Condition:
    fact = e.source.own_head
    return _from_source(fact, _as_released(e, fact), "the worker leaves the drafter's own head alone")


@_of_eagle3
def _graph_ids(e: Evidence) -> Condition:
    """Graphs captured with the default aux layers, whatever the drafter asks for: up to 0.5.10.post1 (#22836)."""
    if e.flags.cuda_graphs is False:
        return Condition(False, "the server runs without CUDA graphs")
    if e.default_ids:
        return Condition(False, "the drafter uses the aux layers that graphs are captured with")
    old = _before(e, e.source.ids_in_graphs, Version(0, 5, 11))
    if old is False:
        return Condition(False, "graphs are captured with the configured aux layers")
    if old is None or e.default_ids is None or e.flags.cuda_graphs is None:
        return Condition(None, "aux layers in graphs not known", decide=_LOOK)
    return Condition(
        True,
        "CUDA graphs are captured with the default aux layers, and the drafter was trained on others",
        tuple(p for p in (e.source.ids_in_graphs.place,) if p),
        "SGLang 0.5.11 or later (opsctl run pin-sglang); to confirm, say disable-cuda-graph in `launch` of the host, "
        "then `opsctl server restart`",
    )


@_of_eagle3
def _all_reduce(e: Evidence) -> Condition:
    """Aux states taken before the all-reduce are partial sums: up to 0.5.13, with fusion on and tp > 1 (#28343)."""
    if e.flags.tp < 2:
        return Condition(False, "one tensor-parallel rank: nothing to reduce")
    if e.fused_all_reduce is False:
        return Condition(False, "all-reduce fusion is not in use")
    old = _before(e, e.source.aux_complete, Version(0, 5, 14))
    if old is False:
        return Condition(False, "aux states are taken after the all-reduce")
    if old is None or e.fused_all_reduce is None:
        return Condition(None, "use of all-reduce fusion not known", decide="`/server_info` tells on a running server")
    return Condition(
        True,
        f"all-reduce fusion is on with {e.flags.tp} ranks, and aux states are taken before the all-reduce",
        tuple(p for p in (e.source.aux_complete.place,) if p),
        "SGLang 0.5.14 or later (opsctl run pin-sglang)",
    )


def _dp_attention(e: Evidence) -> Condition:
    """The pass over accepted tokens takes a part of them with DP attention and overlap: up to 0.5.7 (#16310)."""
    if e.flags.dp_attention is False:
        return Condition(False, "the server runs without DP attention")
    if e.flags.overlap is False:
        return Condition(False, "the worker that does not overlap batches takes all accepted tokens")
    old = _before(e, e.source.dp_whole, Version(0, 5, 8))
    if old is False:
        return Condition(False, "the draft model's pass takes all accepted tokens of each rank")
    if old is None or e.flags.dp_attention is None or e.flags.overlap is None:
        return Condition(None, "use of DP attention not known", decide="`/server_info` tells on a running server")
    return Condition(
        True,
        "with --enable-dp-attention and overlapped batches the draft model takes one of the tokens accepted at a time",
        tuple(p for p in (e.source.dp_whole.place,) if p),
        "SGLang 0.5.8 or later (opsctl run pin-sglang); until then take SGLANG_ENABLE_SPEC_V2 out of the server's "
        "environment, then `opsctl server restart`",
    )


# Targets whose class for their own drafting layers asked for the flag alone, from and up to (#19246, #22823).
_DROPPED = {"Glm4MoeForCausalLM": Range(Version(0, 5, 10), Version(0, 5, 10, 1))}


def _layer_quantisation(e: Evidence) -> Condition:
    if (kind := _draft_kind(e)) is not None and kind is not Kind.MTP:
        return Condition(False, f"the draft model is {kind.value}, not the target's own layers", applies=False)
    if e.quant_method == "":
        return Condition(False, "the target's checkpoint is not quantised")
    if e.flags.draft_quantization:
        return Condition(False, f"--speculative-draft-model-quantization {e.flags.draft_quantization}")
    dropped = None if e.source.layer_quantized.holds is None else not e.source.layer_quantized.holds
    if dropped is None and e.target_class is not None and e.version is not None:
        releases = _DROPPED.get(e.target_class)
        dropped = False if releases is None else _within(e.version, releases)
    if dropped is False:
        return Condition(False, e.source.layer_quantized.detail or "this release keeps the quantisation of such layers")
    if dropped is None or kind is None or e.quant_method is None:
        return Condition(None, "target or SGLang's source not known", decide="the target's config.json and source tell")
    fact = e.source.layer_quantized
    return Condition(
        True,
        f"the checkpoint is quantised ({e.quant_method}), and the layers that draft are read as if they were not",
        tuple(part for part in (fact.place, fact.detail) if part),
        f"say speculative-draft-model-quantization: {e.quant_method} in `launch` of the host, then "
        "`opsctl server restart`; or SGLang 0.5.11 or later (opsctl run pin-sglang)",
    )


def _linear_states(e: Evidence) -> Condition:
    """States that the radix cache took from a verify step before it was known what it accepts (#36537)."""
    if e.flags.radix_cache is False:
        return Condition(False, "the server runs without the radix cache")
    if e.flags.mamba_strategy not in (None, "extra_buffer"):
        return Condition(False, f"states of linear attention: {e.flags.mamba_strategy or 'none are kept'}")
    if e.flags.mamba_strategy is None or e.flags.radix_cache is None:
        return Condition(None, "launch flags not known", decide="the flags of the running process tell")
    if e.once is None or e.once < e.flags.sound_from:
        # The default for such targets: that it is so explains nothing by itself.
        return Condition(
            None,
            "the radix cache keeps states by extra_buffer, and the log shows no better acceptance since the start",
            decide="acceptance that a POST to /flush_cache brings back was lost to it",
        )
    return Condition(
        True,
        f"it accepted {e.once:.2f} since the same start, and the radix cache keeps states by extra_buffer",
        ("--mamba-radix-cache-strategy extra_buffer",),
        "say mamba-radix-cache-strategy: extra_buffer_lazy in `launch` of the host (SGLang 0.5.17 or later; before, "
        "disable-radix-cache: true), then `opsctl server restart`",
    )


def _within(version: Range, releases: Range) -> bool | None:
    """Whether a server is of these releases; None where its log allows others as well."""
    if version.last < releases.first or releases.last < version.first:
        return False
    return True if version.first in releases and version.last in releases else None


def _quantised(e: Evidence) -> Condition:
    """A drafter without a setting of its own takes over the target's `--quantization`."""
    if not e.flags.quantization:
        return Condition(False, "the target's quantization is not set by a flag")
    if e.flags.draft_quantization:
        return Condition(False, f"--speculative-draft-model-quantization {e.flags.draft_quantization}")
    return Condition(
        True,
        f"the drafter takes over --quantization {e.flags.quantization}",
        (f"--quantization {e.flags.quantization}",),
        "say speculative-draft-model-quantization: unquant in `launch` of the host, then `opsctl server restart`",
    )


def _known_error(e: Evidence) -> Condition:
    error = next(iter(e.errors), None)
    if error is None or not error.meaning:
        return Condition(None, "the log's first error has more than one cause" if error else "no error in a log")
    return Condition(True, error.text, (error.place,) if error.place else (), error.meaning)


def _unsuited(e: Evidence) -> Condition:
    return Condition(
        None,
        "the wiring explains nothing worse",
        decide="compare workloads, and the figure in the drafter's model card; check that prompts are chat-templated",
    )


def _as_released(e: Evidence, fact: SourceFact) -> str:
    """What no release since 0.4.8 does was changed by hand: the commit has it right. Patches may share the file."""
    if e.source.checkout is None or not fact.place:
        return "the files of the release: install SGLang anew, then `opsctl server restart`"
    where, file = shlex.quote(e.source.checkout), shlex.quote(fact.place.rpartition(":")[0])
    return f"`git -C {where} checkout -- {file}` on the host, then `opsctl patch sglang --restart`"


def _from_source(fact: SourceFact, remedy: str, sound: str) -> Condition:
    places = (fact.place,) if fact.place else ()
    if fact.holds is None:
        return Condition(None, fact.detail or "source not read", decide=_LOOK)
    if fact.holds:
        return Condition(False, fact.detail or sound, places)
    return Condition(True, fact.detail or f"not so: {sound}", places, remedy)


def _before(e: Evidence, fact: SourceFact, fixed: Version) -> bool | None:
    """Whether the server behaves as before `fixed`: by its source where that was read, else by its version."""
    if fact.holds is not None:
        return not fact.holds
    if e.version is None or (fixed in e.version and fixed != e.version.first):
        return None  # the log allows releases on both sides
    return e.version.last < fixed


_BACK = "acceptance as the drafter was trained for"
_FAINT_OR_PARTIAL = frozenset({Symptom.FAINT, Symptom.PARTIAL})

# Verdict words of the drafter check by what the server then does.
_STOPS = frozenset({"cuda-error", "runtime-error", "load-error", "needs-conversion"})
_GARBLES = frozenset({"silent-garbage"})
_SLOWS = frozenset({"degraded"})


@dataclass(frozen=True, slots=True)
class Group:
    """Checks that find the same kind of fault.

    prefixes: of check names. spared: subjects another group is about. converts: `opsctl drafter convert` mends it.
    deploys: another draft model does. eagle3: the checks are of EAGLE-3 alone.
    """

    id: str
    claim: str
    prefixes: tuple[str, ...]
    verdicts: frozenset[str]
    predicts: frozenset[Symptom]
    spared: tuple[str, ...] = ()
    converts: bool = False
    deploys: bool = True
    eagle3: bool = False

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
    Group("d2t-crash", "`d2t` leads to token ids that do not exist", _MAPPING, _STOPS, _CRASH, eagle3=True),
    Group("kind-unsupported", "SGLang has no algorithm for a draft model of this kind",
          ("draft-kind",), frozenset({"unsupported"}), _ANY_LOW | _CRASH),
    Group("drafter-stops-server", "SGLang cannot load or run this drafter",
          ("",), _STOPS, _CRASH, ("d2t", "t2d", "--speculative-algorithm")),
    Group("lm-head-missing", "the drafter's output head is not in its files and stays uninitialised",
          ("lm-head", "draft-vocab", "tied"), _GARBLES | _SLOWS, _DEAD, eagle3=True),
    Group("aux-disabled", "the drafter's config switches the target's features off, and `fc` is skipped",
          ("use-aux",), _GARBLES | _SLOWS, _GARBAGE, eagle3=True),
    Group("d2t-wrong", "`d2t` maps draft ids to the wrong tokens", _MAPPING, _GARBLES | _SLOWS, _GARBAGE, eagle3=True),
    Group("draft-layers-missing", "the target's own layers that draft are not in its files and stay uninitialised",
          ("draft-layers",), _GARBLES, _GARBAGE, deploys=False),
    Group(_NAMES, "tensors have names that this loader drops without a word",
          ("tensor",), _GARBLES | _SLOWS, _ANY_LOW, _OF_OTHERS, converts=True, eagle3=True),
    Group("drafter-garbage", "the drafter's weights or config make it draft garbage",
          ("",), _GARBLES, _ANY_LOW, ("--speculative-algorithm",)),
    Group("drafter-degraded", "the drafter's weights or config lose acceptance", ("",), _SLOWS, _FAINT_OR_PARTIAL),
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

    return _of_eagle3(look) if group.eagle3 else look


def _remedy(group: Group, e: Evidence, first: DrafterFault) -> str:
    """A command, where there is one: of the finding, of another finding about the same, or the conversion."""
    related = [first, *(f for f in e.drafter or () if any(f.check.startswith(p) for p in group.prefixes if p))]
    command = next((f.remedy for f in related if f.remedy.startswith("opsctl ")), None)
    if command is None and group.converts:
        command = convert_command(e.flags.draft_model or "the draft model", there=True)
    if command is None and first.remedy:
        return f"{first.remedy}; then `opsctl deploy drafter FOLDER`" if group.deploys else first.remedy
    return command or "opsctl drafter check DIR --full"


def _group_of(fault: DrafterFault) -> Group | None:
    """The one group a fault is counted in: the first that is about it."""
    return next((g for g in GROUPS if g.mine(fault)), None)


DRAFTER_CAUSES: tuple[Hypothesis, ...] = tuple(
    Hypothesis(g.id, g.claim, g.predicts, _condition(g), "acceptance as the drafter was trained for") for g in GROUPS
)


CAUSES: tuple[Hypothesis, ...] = (
    Hypothesis(
        "no-speculation",
        "the server does not speculate",
        frozenset({Symptom.IDLE}),
        _no_speculation,
        "drafts are made at all",
    ),
    Hypothesis(
        "simulated-acceptance",
        "acceptance is simulated",
        frozenset(Symptom) - _ENDS,
        _simulated,
        "real figures, and text that was verified",
    ),
    Hypothesis(
        "target-methods-missing",
        "the target's class lacks methods that EAGLE-3 calls",
        _CRASH,
        _target_methods,
        "the server starts with EAGLE-3",
    ),
    *(h for h in DRAFTER_CAUSES if Symptom.CRASH in h.predicts),
    Hypothesis(
        "algorithm-not-eagle3", "the algorithm flag is not that of the drafter", _GARBAGE | _CRASH, _algorithm, _BACK
    ),
    *(h for h in DRAFTER_CAUSES if Symptom.CRASH not in h.predicts),
    Hypothesis("d2t-not-applied", "the source does not map draft ids to target ids", _GARBAGE, _hot_ids, _BACK),
    Hypothesis(
        "head-overwritten", "the worker overwrites the drafter's lm_head with the target's", _GARBAGE, _head, _BACK
    ),
    Hypothesis(
        "aux-layers-in-graphs",
        "CUDA graphs capture other layers than the drafter was trained on",
        _LOW,
        _graph_ids,
        _BACK,
    ),
    Hypothesis("aux-partial-sums", "the drafter gets partial sums of the target's states", _LOW, _all_reduce, _BACK),
    Hypothesis(
        "layer-quantization-dropped",
        "the target's own layers that draft are loaded without their quantisation",
        _DEAD,
        _layer_quantisation,
        _BACK,
    ),
    Hypothesis(
        "dp-attention-tokens",
        "with DP attention the draft model misses accepted tokens",
        _FAINT_OR_PARTIAL,
        _dp_attention,
        _BACK,
    ),
    Hypothesis(
        "linear-states-evicted",
        "the radix cache gives the target states that the draft model has not seen",
        _ANY_LOW,
        _linear_states,
        _BACK,
    ),
    Hypothesis("quantization-inherited", "the drafter is quantised like the target", _GARBAGE, _quantised, _BACK),
    Hypothesis(
        "old-code",
        "the process runs code from before the last patch",
        _ANY_LOW,
        _old_code,
        "what was patched takes effect",
    ),
    Hypothesis(
        "error-in-log", "the log's first error tells the cause itself", _ENDS, _known_error, "it does not come back"
    ),
    Hypothesis(
        "drafter-unsuited",
        "the drafter works, and does not suit these prompts",
        frozenset({Symptom.FAINT, Symptom.PARTIAL}),
        _unsuited,
        "more drafts are right",
    ),
)
