"""What a conversion would write, or why there is none. Pure: from a gathered folder to a plan."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case, converted_name
from opsctl.drafter.checks.files import obstacle, refused
from opsctl.drafter.folder import Tensor
from opsctl.drafter.settings import LLAMA, Settings
from opsctl.drafter.vocab_map import TableKind
from opsctl.errors import Exit, OpsctlError, Unreadable

_DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32"}
_FEATURES = {"norm_before_fc": v.NORM_BEFORE_FC, "fc_norm": v.FC_NORM, "norm_output": v.FC_NORM}


class Refused(OpsctlError):
    """The conversion would not give a sound drafter, or would break a sound one."""

    exit_code = Exit.UNFIT


@dataclass(frozen=True, slots=True)
class Part:
    """One tensor of the result: bytes of the source, or bytes made here."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    source: Tensor | None = None
    data: bytes = b""


@dataclass(frozen=True, slots=True)
class Plan:
    """The result: config, tensors in order, and every change in words."""

    config: Mapping[str, Any]
    parts: tuple[Part, ...]
    changes: tuple[str, ...]


def plan(case: Case) -> Plan:
    """Plan the conversion of `case` to the layout of SGLang. Raises Refused, Unreadable."""
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
    return _to_sglang(case)


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
        changes.append(f"embed_tokens.weight dropped: the server shares the target's{_embedding(case)}")
    return Plan(config, tuple(parts), tuple(dict.fromkeys(changes)))


def _embedding(case: Case) -> str:
    """What was seen of the embedding that is dropped."""
    found = case.embedding
    if found is not None:
        return f"; {found}" + ("" if found.same else ", so expect less acceptance than in training (vllm #27732)")
    trained = bool(case.folder.raw_config and case.folder.raw_config.get("embed_requires_grad"))
    said = "embed_requires_grad says that it was trained" if trained else "whether it differs was not seen"
    return f"; {said}, and --target FOLDER with the target's weights compares them"


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
    if found.kind in (TableKind.OFFSET, TableKind.IDENTITY, TableKind.AMBIGUOUS):
        return parts
    rising = found.ids is not None and all(a < b for a, b in zip(found.ids, found.ids[1:], strict=False))
    if found.kind is not TableKind.ABSOLUTE or not (found.certain and rising) or found.ids is None:
        sure = "" if found.certain else ", though not certainly"
        order = ", with rows out of order" if found.kind is TableKind.ABSOLUTE and not rising else ""
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
        if draft.intermediate_key == "intermediate_size":  # else the MLP's width would be taken from another key
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
