"""What SGLang's drafter classes do with the tensors of a checkpoint, worked out from names and shapes.

Follows `load_weights` of llama_eagle3.py and kimi_k25_eagle3.py, and the weight loaders of layers/linear.py and
layers/vocab_parallel_embedding.py: a name without a slot is dropped, a slot without a tensor keeps what memory held,
and several loaders cut or pad a tensor that does not fit, without a word. Each rank is covered: the last one reads to
the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from opsctl.drafter import versions as v
from opsctl.drafter.folder import Tensor
from opsctl.drafter.settings import Settings
from opsctl.drafter.versions import Version


class How(Enum):
    """How a slot takes a tensor of another shape."""

    EXACT = "exact"  # assertion
    COLUMN = "column"  # rows: too few raise on the last rank, too many are cut; width: assertion
    MERGED = "merged"  # rows: too few are padded with zeros, too many are cut; width: assertion
    ROW = "row"  # width: too few are padded with zeros, too many are cut; rows: assertion


class Fit(Enum):
    EXACT = "exact"
    CUT = "cut"
    PADDED = "padded"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter, or the part of a fused one, that one checkpoint tensor fills.

    Args:
        name: in checkpoint style, the first layer being `midlayer.`.
        why: the sizes the shape comes from, in words.
        required: False when the server replaces it anyway.
    """

    name: str
    shape: tuple[int, ...]
    how: How
    why: str
    required: bool = True

    @property
    def norm(self) -> bool:
        return len(self.shape) == 1 and self.name.endswith("norm.weight")


@dataclass(frozen=True, slots=True)
class Filled:
    slot: Slot
    tensor: Tensor
    fit: Fit


@dataclass(frozen=True, slots=True)
class Loaded:
    """The outcome of a load: slots that got a tensor, slots that got none, tensors that found no slot."""

    filled: tuple[Filled, ...]
    empty: tuple[Slot, ...]
    unused: tuple[Tensor, ...]
    d2t: Tensor | None
    t2d: Tensor | None

    @property
    def width(self) -> int:
        """The hidden size that the norms of the checkpoint agree on, or 0."""
        sizes = {f.tensor.shape for f in self.filled if f.slot.norm and f.slot.why == "hidden_size"}
        only = next(iter(sizes)) if len(sizes) == 1 else ()
        return only[0] if len(only) == 1 else 0

    @property
    def captured_width(self) -> int:
        """How wide `fc` was trained to be, all captured states together, or 0."""
        return next((f.tensor.shape[-1] for f in self.filled if f.slot.name == "fc.weight" and f.tensor.shape), 0)


def aux_count(s: Settings, version: Version) -> int:
    """How many hidden states the server's `fc` takes."""
    if version not in v.FREE_AUX_COUNT:
        return 3
    if s.mla:
        ids = s.aux_ids if s.aux_ids is not None else s.aux_ids_at_top
        return 3 if ids is None else len(ids)
    named = s.integer("num_aux_hidden_states")
    return named if named is not None else len(s.aux_ids or ()) or 3


def slots(s: Settings, version: Version) -> dict[str, Slot]:
    """The parameters the class builds for this config, by name."""
    h, wide = s.hidden, 2 * s.hidden
    width = aux_count(s, version) * s.target_hidden
    fc_how = How.COLUMN if s.mla and version in v.FC_SPLIT_MLA else How.EXACT
    found = [
        Slot("fc.weight", (h, width), fc_how, "[hidden_size, aux layers x target hidden size]"),
        Slot("norm.weight", (h,), How.EXACT, "hidden_size"),
        Slot("embed_tokens.weight", (s.vocab, h), How.EXACT, "[vocab_size, hidden_size]", s.own_embedding),
    ]
    if not s.tied:
        head = "[vocab_size, hidden_size]" if s.headless else "[draft_vocab_size, hidden_size]"
        found.append(Slot("lm_head.weight", (s.draft_vocab, h), How.EXACT, head, not s.headless))
    if s.mla:
        found += _mla_attention(s)
        found += _layer("midlayer.", s)
    else:
        for layer in range(min(s.layers, 64)):
            prefix = f"layers.{layer}." if layer else "midlayer."
            found += _llama_attention(prefix, s, h if layer else wide)
            found += _layer(prefix, s)
            if s.output_bias:
                starts_random = version not in v.ZERO_BIAS
                found.append(Slot(f"{prefix}self_attn.o_proj.bias", (h,), How.EXACT, "hidden_size", starts_random))
    if s.raw.get("bias"):
        found.append(Slot("fc.bias", (h,), How.EXACT, "hidden_size"))
    if fc_norm(s, version):
        found += [
            Slot(f"fc_norm.{i}.weight", (s.target_hidden,), How.EXACT, "target hidden size")
            for i in range(min(aux_count(s, version), 256))
        ]
    if norm_before_fc(s, version):
        found.append(Slot("input_norm.weight", (width,), How.EXACT, "aux layers x target hidden size"))
    return {slot.name: slot for slot in found}


def fc_norm(s: Settings, version: Version) -> bool:
    """Whether the server normalises each captured state before `fc`."""
    asked = bool(s.raw.get("fc_norm")) or bool(s.raw.get("use_aux_norm"))
    return asked and version in (v.FC_NORM_MLA if s.mla else v.FC_NORM)


def norm_before_fc(s: Settings, version: Version) -> bool:
    """Whether the server normalises the joined states before `fc`."""
    return s.flag("norm_before_fc") and not s.mla and version in v.NORM_BEFORE_FC


def load(tensors: Iterable[Tensor], s: Settings, version: Version) -> Loaded:
    """Load `tensors`, in order, into the class that `s` names."""
    tensors = list(tensors)
    wanted = _fused(slots(s, version), {slot_name(t.name, s.mla, version) for t in tensors})
    filled: dict[str, Filled] = {}
    unused = []
    d2t = t2d = None
    for tensor in tensors:
        name = slot_name(tensor.name, s.mla, version)
        if name == "d2t":
            d2t = tensor
        elif name == "t2d":
            t2d = tensor
        elif name in wanted:
            slot = wanted[name]
            if name not in filled or filled[name].fit is not Fit.FAILS:  # one that fails is not made good by another
                filled[name] = Filled(slot, tensor, fit(slot, tensor.shape))
        else:
            unused.append(tensor)
    if s.mla:
        _pair(filled)
    empty = tuple(slot for name, slot in wanted.items() if name not in filled)
    return Loaded(tuple(filled.values()), empty, tuple(unused), d2t, t2d)


def slot_name(name: str, mla: bool, version: Version) -> str:
    """The slot a checkpoint name reaches, in the style of `Slot.name`; empty when it reaches none."""
    if mla:
        return mapping_name(name, mla) or re.sub(r"^layers\.0\.", "midlayer.", name)
    if version in v.LAYERS_0_NAMES:
        for old, new in _RENAMED.items():
            name = name.replace(old, new)
    if kind := mapping_name(name, mla):
        return kind
    if name.startswith("model."):
        name = name.removeprefix("model.")
        if name.startswith("lm_head."):
            return ""
    if version in v.LAYERS_0_NAMES:
        return re.sub(r"^layers\.0\.", "midlayer.", name)
    return name


def mapping_name(name: str, mla: bool) -> str:
    """`d2t` or `t2d` when the class takes the tensor for that table, else nothing."""
    kinds = ("d2t", "t2d")
    return next((kind for kind in kinds if (name.split(".")[-1] == kind if mla else kind in name)), "")


def _fused(wanted: dict[str, Slot], names: set[str]) -> dict[str, Slot]:
    """`wanted` with one slot for several where the checkpoint has them joined, as the server's own parameters are."""
    for name in names:
        for whole, parts in _FUSED.items():
            slots_of = [wanted.get(name.replace(whole, part)) for part in parts] if whole in name else []
            found = [slot for slot in slots_of if slot is not None]
            if found and len(found) == len(parts):
                rows = sum(slot.shape[0] for slot in found)
                joined = Slot(name, (rows, found[0].shape[1]), How.COLUMN, " + ".join(slot.why for slot in found))
                gone = {slot.name for slot in found}
                wanted = {key: slot for key, slot in wanted.items() if key not in gone} | {name: joined}
    return wanted


_FUSED = {
    "self_attn.qkv_proj.": ("self_attn.q_proj.", "self_attn.k_proj.", "self_attn.v_proj."),
    "mlp.gate_up_proj.": ("mlp.gate_proj.", "mlp.up_proj."),
}


def fit(slot: Slot, shape: tuple[int, ...]) -> Fit:
    """What a tensor of `shape` does in `slot`, on the worst rank."""
    if shape == slot.shape:
        return Fit.EXACT
    if slot.how is How.EXACT or len(shape) != 2:
        return Fit.FAILS
    free, fixed = (1, 0) if slot.how is How.ROW else (0, 1)
    if shape[fixed] != slot.shape[fixed]:
        return Fit.FAILS
    if shape[free] > slot.shape[free]:
        return Fit.CUT
    return Fit.FAILS if slot.how is How.COLUMN else Fit.PADDED


# llama_eagle3.py legacy_name_map; midlayer <-> layers.0 is handled by name.
_RENAMED = {"aux_norm_low": "fc_norm.0", "aux_norm_mid": "fc_norm.1", "aux_norm_high": "fc_norm.2"}


def _layer(prefix: str, s: Settings) -> list[Slot]:
    h, i, wide = s.hidden, s.intermediate, s.intermediate_key
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    return [
        *(Slot(f"{prefix}{norm}.weight", (h,), How.EXACT, "hidden_size") for norm in norms),
        Slot(f"{prefix}mlp.gate_proj.weight", (i, h), How.MERGED, f"[{wide}, hidden_size]"),
        Slot(f"{prefix}mlp.up_proj.weight", (i, h), How.MERGED, f"[{wide}, hidden_size]"),
        Slot(f"{prefix}mlp.down_proj.weight", (h, i), How.ROW, f"[hidden_size, {wide}]"),
    ]


def _llama_attention(prefix: str, s: Settings, width: int) -> list[Slot]:
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    wide = "2 x hidden_size" if width == 2 * s.hidden else "hidden_size"
    kv_why = f"[num_key_value_heads x head_dim, {wide}]"
    return [
        Slot(f"{prefix}self_attn.q_proj.weight", (q, width), How.COLUMN, f"[num_attention_heads x head_dim, {wide}]"),
        Slot(f"{prefix}self_attn.k_proj.weight", (kv, width), How.COLUMN, kv_why),
        Slot(f"{prefix}self_attn.v_proj.weight", (kv, width), How.COLUMN, kv_why),
        Slot(
            f"{prefix}self_attn.o_proj.weight", (s.hidden, q), How.ROW, "[hidden_size, num_attention_heads x head_dim]"
        ),
    ]


def _mla_attention(s: Settings) -> list[Slot]:
    def size(key: str) -> int:
        return s.integer(key) or 0

    h, heads, q_lora, kv_lora = s.hidden, s.heads, size("q_lora_rank"), size("kv_lora_rank")
    nope, rope, value = size("qk_nope_head_dim"), size("qk_rope_head_dim"), size("v_head_dim")
    at = "midlayer.self_attn."
    return [
        Slot(f"{at}q_a_proj.weight", (q_lora, 2 * h), How.EXACT, "[q_lora_rank, 2 x hidden_size]"),
        Slot(f"{at}q_a_layernorm.weight", (q_lora,), How.EXACT, "q_lora_rank"),
        Slot(
            f"{at}q_b_proj.weight", (heads * (nope + rope), q_lora), How.COLUMN, "[heads x (nope + rope), q_lora_rank]"
        ),
        Slot(f"{at}kv_a_proj_with_mqa.weight", (kv_lora + rope, 2 * h), How.EXACT, "[kv_lora + rope, 2 x hidden_size]"),
        Slot(f"{at}kv_a_layernorm.weight", (kv_lora,), How.EXACT, "kv_lora_rank"),
        Slot(
            f"{at}kv_b_proj.weight", (heads * (nope + value), kv_lora), How.COLUMN, "[heads x (nope + v), kv_lora_rank]"
        ),
        Slot(f"{at}o_proj.weight", (h, heads * value), How.ROW, "[hidden_size, heads x v_head_dim]"),
    ]


def _pair(filled: dict[str, Filled]) -> None:
    # kimi_k25_eagle3.py loads q_a and kv_a only together: one alone is dropped without a word.
    pair = ["midlayer.self_attn.q_a_proj.weight", "midlayer.self_attn.kv_a_proj_with_mqa.weight"]
    if sum(name in filled for name in pair) == 1:
        for name in pair:
            filled.pop(name, None)
