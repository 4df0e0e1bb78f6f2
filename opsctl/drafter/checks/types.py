"""Checks of the kinds of values in config.json.

Tried with the config classes of transformers 4.57, 5.3, 5.6, 5.12 and 5.19, and the drafter classes built from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version

_NONE = type(None)


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_BOOL = _of(bool), "true or false"
_FLOAT = _of(float), "a number with a decimal point"
_TOKEN = _of(int, _NONE), "a whole number"
# Looked at by the class of every version: what it takes, in words.
_ALWAYS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "architectures": (_of(list), "a list of names"),
    "rope_scaling": (_of(dict, _NONE), "an object"),
    "partial_rotary_factor": (_of(int, float), "a number"),
}
# Looked at by the config classes of transformers from 5.6 on, which check the type of each field.
_STRICT: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("tie_word_embeddings", "attention_bias", "use_cache"), _BOOL),
    **dict.fromkeys(("rms_norm_eps", "initializer_range"), _FLOAT),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "pretraining_tp"), _TOKEN),
    "eos_token_id": (
        lambda value: _TOKEN[0](value) or (isinstance(value, list) and all(type(item) is int for item in value)),
        "a whole number, or a list of them",
    ),
    "attention_dropout": (_of(int, float, _NONE), "a number"),
    "max_position_embeddings": (_of(int), "a whole number"),
}
_TORCH_NAMES = frozenset({"bfloat16", "float16", "half", "float32", "float", "float64", "double"})


def types(case: Case, version: Version) -> Iterator[Remark]:
    """Row 3: values of a kind that the config class or the drafter class does not take."""
    draft = case.draft
    if draft is None or not case.builds(version):
        return
    for key, (takes, wanted) in _fields(draft, version).items():
        if key in draft.raw and not takes(draft.raw[key]):
            detail = f"{draft.raw[key]!r:.60}: {wanted} is expected, TypeError"
            yield Remark("config-types", Verdict.LOAD_ERROR, key, detail, f"correct {key}")
    activation = draft.raw.get("hidden_act", "silu")
    if activation != "silu":
        detail = f"{activation!r:.40}: ValueError 'Only silu is supported for now'"
        yield Remark("config-types", Verdict.LOAD_ERROR, "hidden_act", detail, "train with silu, or serve with vLLM")
    if version in v.STRICT_CONFIG:
        yield from _related(draft)
    named = draft.raw.get("dtype", draft.raw.get("torch_dtype"))
    if named is not None and not (isinstance(named, str) and named in _TORCH_NAMES):
        detail = f"{named!r:.40}: torch has no such type of floats, the start fails"
        remedy = 'name it as "bfloat16"'
        yield Remark("config-types", Verdict.LOAD_ERROR, "torch_dtype", detail, remedy)
    if version not in v.TRANSFORMERS_5 and draft.raw.get("quantization_config", {}) is None:
        detail = f"null: transformers before 5 (SGLang before {v.TRANSFORMERS_5.since}) asks it for to_dict"
        yield Remark("config-types", Verdict.LOAD_ERROR, "quantization_config", detail, "remove the key")


def _fields(draft: Settings, version: Version) -> Mapping[str, tuple[Callable[[Any], bool], str]]:
    """What this version looks at, by key."""
    found = dict(_ALWAYS)
    if version in v.STRICT_CONFIG:
        found |= _STRICT
        if not draft.mla:
            found["mlp_bias"] = _BOOL
    if "rope_theta" not in draft.rope_section(version in v.ROPE_PARAMETERS):  # which would win
        found["rope_theta"] = (_of(int, float), "a number")
    if version in v.TRANSFORMERS_5:
        found["rope_parameters"] = _ALWAYS["rope_scaling"]
    if version in v.FREE_AUX_COUNT and not draft.mla:
        found["num_aux_hidden_states"] = (_of(int, _NONE), "a whole number")
    return found


def _related(draft: Settings) -> Iterator[Remark]:
    """Fields that transformers from 5.6 on compares with each other."""
    if not draft.mla and draft.heads > 0 and draft.hidden % draft.heads:
        detail = (
            f"{draft.hidden} is no multiple of num_attention_heads {draft.heads}; transformers from 5.6 on (SGLang"
            f" {v.STRICT_CONFIG.since}) refuses that"
        )
        yield Remark("config-types", Verdict.NOTE, "hidden_size", detail, "start it with an older transformers")
    layer_types = draft.raw.get("layer_types")
    if isinstance(layer_types, list) and len(layer_types) != draft.layers:
        detail = f"{len(layer_types)} entries for num_hidden_layers {draft.layers}: ValueError"
        yield Remark(
            "config-types", Verdict.LOAD_ERROR, "layer_types", detail, "name one for each layer of the drafter"
        )


# layers/rotary_embedding: kinds it has, and the keys it and transformers ask for.
_ROPE_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "mrope": (),
    "proportional": (),
    "deepseek_yarn": ("factor",),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("long_factor", "short_factor"),
}


def rope_keys(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 33 and 34: how rope is described, as far as the rotary embedding can be built from it."""
    draft = case.draft
    if draft is None or draft.mla or not case.builds(version):
        return
    reads = version in v.ROPE_PARAMETERS
    section = draft.rope_section(reads)
    key = "rope_scaling" if draft.section("rope_scaling") or not reads else "rope_parameters"
    wrong = _rope_problem(section, draft.raw.get("rope_scaling") == {}, version)
    if wrong:
        yield Remark("rope-scaling", Verdict.LOAD_ERROR, key, *wrong)
    if reads and "rope_theta" in section and type(section["rope_theta"]) not in (int, float):
        detail = f"rope_theta in it is {section['rope_theta']!r:.40}: a number is expected, TypeError"
        yield Remark("config-types", Verdict.LOAD_ERROR, key, detail, "correct rope_theta")


def _rope_problem(section: Mapping[str, Any], empty: bool, version: Version) -> tuple[str, str] | None:
    """What is wrong with a description of rope, and the remedy."""
    strict = version not in v.ROPE_PARAMETERS  # transformers 5 fills in what transformers 4 asks for
    if not section and not (empty and strict):
        return None
    if any(isinstance(value, dict) for value in section.values()):
        return "one description for each kind of layer: TypeError", "describe rope once, for the one layer there is"
    absent = "rope_type" not in section and "type" not in section
    kind = section.get("rope_type", section.get("type", "default"))
    if absent and strict:
        lacks = ["rope_type"]
    elif not isinstance(kind, str) or kind not in _ROPE_NEEDS:
        known = ", ".join(_ROPE_NEEDS)
        return f"kind {kind!r:.40}: ValueError 'Unknown RoPE scaling type'", f"one of {known}, as it was trained"
    else:
        needs = _ROPE_NEEDS.get(kind, ())
        lacks = [name for name in needs if name not in section]
        if strict and kind in ("yarn", "llama3") and "original_max_position_embeddings" not in section:
            lacks.append("original_max_position_embeddings")
        if "factor" in needs and "factor" in section and type(section["factor"]) not in (int, float):
            return f"factor {section['factor']!r:.40}: a number is expected, TypeError", "correct factor"
    if not lacks:
        return None
    listed = ", ".join(lacks)
    when = f" before SGLang {v.ROPE_PARAMETERS.since}" if set(lacks) <= _FILLED_IN else ""
    return f"no {listed} in it: KeyError{when}", f"add {listed}, or set rope_scaling null"


_FILLED_IN = frozenset({"rope_type", "original_max_position_embeddings"})
