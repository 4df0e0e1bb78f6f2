"""What a conversion would write, or why there is none. Pure: from a gathered folder to a plan."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case, converted_name
from opsctl.drafter.checks.files import refused
from opsctl.drafter.features import obstacle
from opsctl.drafter.folder import Tensor
from opsctl.drafter.settings import LLAMA, Settings
from opsctl.drafter.vocab_map import Kind
from opsctl.errors import Exit, OpsctlError, Unreadable

_DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_FEATURES = {"norm_before_fc": v.NORM_BEFORE_FC, "fc_norm": v.FC_NORM, "norm_output": v.FC_NORM}
_MAX_VOCAB = 1 << 20  # several times the largest there is; both mapping tables are made in memory
# What a llama layer of speculators is configured by; the rest of a flat config is not the layer's.
_LAYER_KEYS = (
    "attention_bias", "attention_dropout", "head_dim", "hidden_act", "hidden_size", "initializer_range",
    "intermediate_size", "max_position_embeddings", "mlp_bias", "model_type", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "rope_scaling", "rope_theta",
    "use_cache", "vocab_size",
)  # fmt: skip


class Refused(OpsctlError):
    """The conversion would not give a sound drafter, or would break a sound one."""

    exit_code = Exit.UNFIT


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the result: bytes of the source, or bytes made here.

    Args:
        rows: the source rows in the order they are wanted; None for all as they are.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Tensor | None = None
    data: bytes = b""
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The result: config, tensors in order, and every change in words."""

    layout: str
    config: Mapping[str, Any]
    parts: tuple[Part, ...]
    changes: tuple[str, ...]


def plan(case: Case, layout: str) -> Plan:
    """Plan the conversion of `case` to `layout`, sglang or speculators. Raises Refused, Unreadable."""
    folder = case.folder
    for finding in refused(case):
        raise Unreadable(f"{finding.subject}: {finding.detail}", where=folder.path, hint=finding.remedy)
    if case.draft is None:
        why = folder.config_problem.text if folder.config_problem else "missing"
        _refuse(case, f"config.json cannot be used: {why}", "correct it first")
    if folder.missing_shards():
        _refuse(case, f"shard {folder.missing_shards()[0]} is missing", "copy it first")
    if not case.tensors:
        _refuse(case, "there are no weights", "copy them first")
    return _to_sglang(case) if layout == "sglang" else _to_speculators(case)


def _refuse(case: Case, reason: str, hint: str) -> NoReturn:
    raise Refused(f"not converted: {reason}", where=case.folder.path, hint=hint or None)


def _to_sglang(case: Case) -> Plan:
    draft, folder = case.draft, case.folder
    assert draft is not None and folder.raw_config is not None
    if found := obstacle(case):
        _refuse(case, *found)
    changes: list[str] = []
    config = dict(draft.raw)
    parts = [_renamed(tensor, changes) for tensor in case.tensors.values()]
    parts = _mapping_as_offsets(case, parts, changes)
    if folder.speculators:
        changes.append("config.json: transformer_layer_config lifted to the top level")
        if draft.aux_ids is not None:
            given = [i + 1 for i in draft.aux_ids]
            changes.append(f"aux layer ids {given} (input style) -> eagle_config {list(draft.aux_ids)} (output style)")
            if draft.aux_ids[:1] != (1,):
                changes.append(
                    f"aux layer ids do not begin with 1: from SGLang {v.IDS_AS_WRITTEN.since} on, DeepSeek and Kimi"
                    f" targets take them as input style; for those write {given}"
                )
    if folder.pickled:
        changes.append(f"{folder.containers[0].file} (pickle) -> model.safetensors")
    _set_keys(case, draft, config, parts, changes)
    if not changes:
        _refuse(
            case, _nothing_to_do(case), "it is in SGLang's layout already; opsctl drafter check says whether it fits"
        )
    if not draft.own_embedding and any(part.name == "embed_tokens.weight" for part in parts):
        parts = [part for part in parts if part.name != "embed_tokens.weight"]
        trained = " (it was trained, embed_requires_grad; expect a little less acceptance)" if _trained(case) else ""
        changes.append(f"embed_tokens.weight dropped: the server shares the target's{trained}")
    return Plan("sglang", config, tuple(parts), tuple(dict.fromkeys(changes)))


def _trained(case: Case) -> bool:
    return bool(case.folder.raw_config and case.folder.raw_config.get("embed_requires_grad"))


def _nothing_to_do(case: Case) -> str:
    found = case.mapping
    if found is None:
        return "there is nothing to convert"
    return f"there is nothing to convert, and d2t must stay as it is: it holds {found.kind.value}s ({found.proof})"


def _renamed(tensor: Tensor, changes: list[str]) -> Part:
    name = converted_name(tensor.name)
    if name != tensor.name:
        changes.append("layers.0.* renamed to midlayer.*, which every version loads")
    return Part(name, tensor.dtype, tensor.shape, tensor)


def _mapping_as_offsets(case: Case, parts: list[Part], changes: list[str]) -> list[Part]:
    """`parts` with d2t in offsets. Raises Refused when the table is not certainly one or the other."""
    found, d2t = case.mapping, case.d2t
    if d2t is None:
        return parts
    if found is None:
        _refuse(case, f"d2t is {d2t.dtype} {list(d2t.shape)}: no mapping", "get d2t of the run that trained this head")
    if found.kind in (Kind.OFFSET, Kind.IDENTITY, Kind.AMBIGUOUS):
        return parts
    rising = found.ids is not None and all(a < b for a, b in zip(found.ids, found.ids[1:], strict=False))
    if found.kind is not Kind.ABSOLUTE or not (found.certain and rising) or found.ids is None:
        sure = "" if found.certain else ", though not certainly"
        order = ", with rows out of order" if found.kind is Kind.ABSOLUTE and not rising else ""
        _refuse(
            case,
            f"d2t is {found.kind.value}{sure}{order}: {found.proof}",
            "get d2t of the run that trained this head; a table is turned into offsets only when it is proven absolute",
        )
    offsets = array("q", [target - i for i, target in enumerate(found.ids)]).tobytes()
    changes.append(f"d2t: absolute ids -> offsets, d2t[i] - i (proof: {found.proof})")
    made = Part(d2t.name, "I64", d2t.shape, None, offsets)
    return [made if part.source == d2t else part for part in parts]


def _set_keys(case: Case, draft: Settings, config: dict[str, Any], parts: list[Part], changes: list[str]) -> None:
    def put(key: str, value: Any, why: str) -> None:
        if config.get(key) != value or key not in config:
            before = repr(config[key])[:60] if key in config else "absent"
            config[key] = value
            changes.append(f"config.json: {key} {before} -> {value!r} ({why})")

    if not draft.mla:
        put("model_type", "llama", "the layer SGLang builds")
        put("architectures", [LLAMA], "the class SGLang builds")
    if "tie_word_embeddings" not in config or draft.tied:
        put("tie_word_embeddings", False, "the head is the drafter's own")
    if not draft.integer("head_dim") and not draft.mla:
        rows = {part.name: part.shape[0] for part in parts if len(part.shape) == 2}
        q, k = rows.get("midlayer.self_attn.q_proj.weight", 0), rows.get("midlayer.self_attn.k_proj.weight", 0)
        if draft.heads and draft.kv_heads and q and q // draft.heads == k // draft.kv_heads:
            put("head_dim", q // draft.heads, "rows of q_proj by heads")
    rope = draft.rope(True)
    if rope.theta is not None and "rope_theta" not in config:
        put("rope_theta", rope.theta, "SGLang before 0.5.10 reads it only here")
    stored = Counter(part.dtype for part in parts if part.name.endswith(".weight")).most_common(1)
    dtype = case.text.dtype if case.text is not None else draft.dtype_named or _DTYPE_NAMES.get(stored[0][0], "")
    if dtype and draft.dtype_named != dtype:
        key = "dtype" if "dtype" in config else "torch_dtype"
        put(key, dtype, "the target's; weights are cast when loaded" if case.text else "as the weights are stored")
    for key, feature in _FEATURES.items():
        if config.get(key):
            changes.append(f"config.json: {key} kept; it needs SGLang {feature.since} or later")


def _to_speculators(case: Case) -> Plan:
    draft, folder = case.draft, case.folder
    assert draft is not None
    if folder.speculators:
        _refuse(case, "it is in the speculators layout already", "")
    if draft.mla:
        _refuse(case, "speculators has no MLA drafter", "serve it with SGLang")
    if draft.tied or draft.headless or not any(name.endswith("lm_head.weight") for name in case.tensors):
        _refuse(case, "it has no head of its own, and speculators needs one", "serve it with SGLang")
    if not 0 < draft.vocab <= _MAX_VOCAB:
        _refuse(case, f"vocab_size {draft.vocab} is no size of a vocabulary", "write the target's into config.json")
    changes: list[str] = []
    parts = _mapping_as_offsets(case, [Part(t.name, t.dtype, t.shape, t) for t in case.tensors.values()], changes)
    parts = [replace(part, name=re.sub(r"^midlayer\.", "layers.0.", part.name)) for part in parts]
    changes.append("midlayer.* renamed to layers.0.*")
    parts = _with_tables(case, draft, parts, changes)
    config = _speculators_config(case, draft, changes)
    return Plan("speculators", config, tuple(parts), tuple(changes))


def _with_tables(case: Case, draft: Settings, parts: list[Part], changes: list[str]) -> list[Part]:
    """Both mapping tables, which speculators requires."""
    found, vocab, rows = case.mapping, draft.vocab, draft.draft_vocab
    if case.d2t is None:
        if rows != vocab:
            _refuse(
                case, f"{rows} of {vocab} ids are drafted and there is no d2t", "get d2t of the run that trained it"
            )
        parts = [*parts, Part("d2t", "I64", (rows,), None, bytes(8 * rows))]
        changes.append("d2t of zeros added: the draft vocabulary is the target's")
        ids: tuple[int, ...] = tuple(range(vocab))
    elif found is None or found.ids is None:
        _refuse(case, "d2t cannot be told to be offsets or ids", "compare it with a checkpoint that has t2d")
    else:
        ids = found.ids
    if outside := sum(not 0 <= target < vocab for target in ids):
        _refuse(
            case, f"{outside} ids of d2t lie outside vocab_size {vocab}", "get d2t of the run that trained this head"
        )
    if case.t2d is None:
        parts, ids = _rising(parts, ids, changes)
        mask = bytearray(vocab)
        for target in ids:
            mask[target] = 1
        parts = [*parts, Part("t2d", "BOOL", (vocab,), None, bytes(mask))]
        changes.append(f"t2d added: a mask of {vocab} with the {len(ids)} ids of d2t")
    return parts


def _rising(parts: list[Part], ids: tuple[int, ...], changes: list[str]) -> tuple[list[Part], tuple[int, ...]]:
    """Head rows and mapping in rising order of target ids, as a mask implies: the same drafter, row by row."""
    order = tuple(sorted(range(len(ids)), key=ids.__getitem__))
    if order == tuple(range(len(ids))):
        return parts, ids
    rising = tuple(sorted(ids))
    offsets = array("q", [target - i for i, target in enumerate(rising)]).tobytes()
    changes.append("rows of lm_head and d2t sorted by target id, the order a t2d mask implies")
    sorted_parts = [
        replace(part, rows=order)
        if part.name == "lm_head.weight"
        else Part(part.name, "I64", part.shape, None, offsets)
        if part.name == "d2t"
        else part
        for part in parts
    ]
    return sorted_parts, rising


def _speculators_config(case: Case, draft: Settings, changes: list[str]) -> dict[str, Any]:
    layer = {key: draft.raw[key] for key in _LAYER_KEYS if key in draft.raw} | {"model_type": "llama"}
    ids = [i + 1 for i in draft.aux_ids] if draft.aux_ids is not None else None
    if ids is None and case.text is not None:
        n = case.text.layers
        ids = [2, n // 2, n - 3]
    changes += [
        "config.json: layer settings nested in transformer_layer_config",
        f"aux layer ids -> {ids} (input style, top level)"
        if ids is not None
        else "aux layer ids: none are named, so each engine takes its default; with --target they are written out",
        "norm_before_residual: false, as SGLang's drafters are trained; vLLM takes a missing key for true",
    ]
    target = case.target.architecture if case.target is not None else ""
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.5.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": None, "architectures": [target] if target else []},
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": draft.draft_vocab,
        "target_hidden_size": draft.integer("target_hidden_size"),
        "norm_before_residual": False,
        "norm_before_fc": draft.flag("norm_before_fc"),
        "eagle_aux_hidden_state_layer_ids": ids,
        "torch_dtype": draft.dtype_named or "bfloat16",
    }
