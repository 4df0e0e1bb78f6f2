"""What the `config.json` of a drafter and of its target say, as SGLang and transformers read it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

LLAMA: Final = "LlamaForCausalLMEagle3"
MLA: Final = "Eagle3DeepseekV2ForCausalLM"

_DTYPES = {
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
    "float16": "float16",
    "half": "float16",
    "float": "float32",
    "float32": "float32",
}
# hf_transformers_utils.py CONTEXT_LENGTH_KEYS, in the order they are looked at.
_CONTEXT_KEYS = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
_ROPE_DEFAULT = 10000.0
# transformers 5 gives these kinds of scaling an original length, so their factor is not used (modeling_rope_utils.py).
_WITH_ORIGINAL = ("yarn", "llama3", "longrope")
# What transformers takes where a key is absent: LlamaConfig, Llama4TextConfig, and DeepseekV3Config, which also reads
# kimi_k2.
_LLAMA_DEFAULTS = MappingProxyType({
    "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32, "num_hidden_layers": 32,
    "vocab_size": 32000,
})  # fmt: skip
_DEEPSEEK_DEFAULTS = MappingProxyType({
    "hidden_size": 7168, "intermediate_size": 18432, "num_attention_heads": 128, "num_hidden_layers": 61,
    "vocab_size": 129280, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128,
})  # fmt: skip
_LLAMA4_DEFAULTS = MappingProxyType({
    "hidden_size": 5120, "intermediate_size_mlp": 16384, "num_attention_heads": 40, "num_key_value_heads": 8,
    "head_dim": 128, "num_hidden_layers": 48, "vocab_size": 202048,
})  # fmt: skip
_DEFAULTS: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {
        "llama": _LLAMA_DEFAULTS,
        "llama4_text": _LLAMA4_DEFAULTS,
        "deepseek_v3": _DEEPSEEK_DEFAULTS,
        "kimi_k2": _DEEPSEEK_DEFAULTS,
        "qwen3": MappingProxyType({"head_dim": 128}),
    }
)
# Names that SGLang has a class for; those of other engines' drafters (Eagle3LlamaForCausalLM, ...) it has not.
_SERVED = re.compile(r"(?!Eagle).+For(CausalLM|ConditionalGeneration)(NextN|Eagle)?")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rope base and scaling as one generation of readers sees them. `theta` None: no base named, 10000 is used."""

    theta: float | None
    scaling: str


@dataclass(frozen=True, slots=True)
class Settings:
    """A config.json with typed access. `raw` holds text of unknown origin: escape before printing.

    `defaults`: what the config class takes for keys that are absent.
    """

    raw: Mapping[str, Any]
    defaults: Mapping[str, int] = field(default_factory=dict)

    def integer(self, key: str, default: int | None = None) -> int | None:
        """An integer key; the class's default when absent; `default` when there is none, or for null or no integer."""
        value = self.raw.get(key, self.defaults.get(key))
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def text(self, key: str) -> str:
        value = self.raw.get(key)
        return value if isinstance(value, str) else ""

    def section(self, key: str) -> Mapping[str, Any]:
        value = self.raw.get(key)
        return value if isinstance(value, dict) else {}

    @property
    def architecture(self) -> str:
        """The class that is built: of several the first one that SGLang has (models/registry.py)."""
        given = self.raw.get("architectures")
        names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        texts = [name for name in names if isinstance(name, str)]
        served = (name for name in texts if name in (LLAMA, MLA) or _SERVED.fullmatch(name))
        return next(served, texts[0] if texts else "")

    @property
    def has_class(self) -> bool:
        """Whether SGLang has a class of that name, be it one for whole models."""
        return self.architecture in (LLAMA, MLA) or _SERVED.fullmatch(self.architecture) is not None

    @property
    def mla(self) -> bool:
        return self.architecture == MLA

    @property
    def speculators(self) -> bool:
        return "speculators_model_type" in self.raw or "speculators_config" in self.raw

    @property
    def dtype_named(self) -> str:
        value = self.raw.get("dtype") or self.raw.get("torch_dtype") or ""
        return value if isinstance(value, str) else ""

    @property
    def dtype(self) -> str:
        """The dtype `--dtype auto` gives: none reads as float32, which becomes float16 (model_config.py)."""
        named = _DTYPES.get(self.dtype_named, "float32")
        return "float16" if named == "float32" else named

    def context_length(self, reads_parameters: bool) -> int:
        """The length SGLang derives (hf_transformers_utils.py get_context_length)."""
        scaling = self.rope_section(reads_parameters)
        factor: Any = scaling.get("factor", 1)
        filled = reads_parameters and scaling.get("rope_type", scaling.get("type")) in _WITH_ORIGINAL
        if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3" or filled:
            factor = 1
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1e6:
            factor = 1
        for key in _CONTEXT_KEYS:
            value = self.raw.get(key)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15:
                return int(factor * value)
        return 2048  # also the default of transformers' LlamaConfig

    def rope(self, reads_parameters: bool) -> Rope:
        """Rope for readers that know `rope_parameters` (transformers 5) or do not."""
        source = self.rope_section(reads_parameters)
        theta = self.raw.get("rope_theta")
        if reads_parameters:
            theta = source.get("rope_theta", theta)
        kind = source.get("rope_type", source.get("type", "default"))
        known = float(theta) if isinstance(theta, int | float) and not isinstance(theta, bool) else None
        return Rope(known, kind if isinstance(kind, str) else "default")

    def rope_section(self, reads_parameters: bool) -> Mapping[str, Any]:
        """Where rope is described. transformers 5 takes rope_scaling before rope_parameters when both are given."""
        scaling = self.section("rope_scaling")
        return scaling or self.section("rope_parameters") if reads_parameters else scaling

    # What the drafter classes build from. Names of tensors and shapes: llama_eagle3.py, kimi_k25_eagle3.py.

    @property
    def hidden(self) -> int:
        return self.integer("hidden_size") or 0

    @property
    def heads(self) -> int:
        return self.integer("num_attention_heads") or 0

    @property
    def kv_heads(self) -> int:
        return self.integer("num_key_value_heads", self.heads) or 0

    @property
    def head_dim(self) -> int:
        named = self.integer("head_dim")
        if not named and "head_dim" not in self.raw and self.defaults is _DEEPSEEK_DEFAULTS:
            named = self.integer("qk_rope_head_dim")  # DeepseekV3Config makes it so, whatever the drafter's class
        return named or (self.hidden // self.heads if self.heads else 0)

    @property
    def intermediate(self) -> int:
        return self.integer(self.intermediate_key) or 0

    @property
    def intermediate_key(self) -> str:
        """The key that the width of the MLP is taken from (llama_eagle3.py): llama4_text has one for dense layers."""
        return "intermediate_size_mlp" if self.text("model_type") == "llama4_text" else "intermediate_size"

    @property
    def layers(self) -> int:
        return self.integer("num_hidden_layers") or 0

    @property
    def vocab(self) -> int:
        return self.integer("vocab_size") or 0

    @property
    def target_hidden(self) -> int:
        """Width of one captured hidden state, as the drafter expects it."""
        return self.integer("target_hidden_size") or self.hidden

    @property
    def own_embedding(self) -> bool:
        """Whether the target's embedding cannot be shared (llama.py set_embed returns early)."""
        return self.target_hidden != self.hidden

    @property
    def headless(self) -> bool:
        """Whether the target's lm_head is borrowed."""
        if self.mla:
            return self.raw.get("draft_vocab_size") is None
        return "draft_vocab_size" in self.raw and self.raw["draft_vocab_size"] is None

    @property
    def draft_vocab(self) -> int:
        """Rows of the head the server builds."""
        return self.vocab if self.headless or self.tied else self.integer("draft_vocab_size") or 0

    @property
    def tied(self) -> bool:
        return self.raw.get("tie_word_embeddings") is True

    @property
    def output_bias(self) -> bool:
        """Whether o_proj has a bias. It is the only projection that can: the drafter's own qkv_proj never has one."""
        return not self.mla and bool(self.raw.get("attention_bias") or self.raw.get("bias"))

    @property
    def eagle(self) -> Mapping[str, Any]:
        return self.section("eagle_config")

    @property
    def aux_ids(self) -> tuple[int, ...] | None:
        """Aux layer ids where SGLang looks for them: inside `eagle_config`."""
        return _ids(self.eagle.get("eagle_aux_hidden_state_layer_ids"))

    @property
    def aux_ids_at_top(self) -> tuple[int, ...] | None:
        return _ids(self.raw.get("eagle_aux_hidden_state_layer_ids"))

    def flag(self, key: str) -> bool:
        """A feature flag, at the top or inside eagle_config."""
        return bool(self.raw.get(key)) or bool(self.eagle.get(key))

    @property
    def target_text(self) -> Settings:
        """The text model of a target: `text_config` of a multimodal wrapper, or the config itself."""
        text = self.section("text_config")
        if not text:
            return self
        inner = Settings(text)
        return inner if inner.dtype_named else Settings({**text, "dtype": self.dtype_named})


def of_drafter(raw: Mapping[str, Any]) -> Settings:
    """The settings of a drafter, a speculators config lifted to the flat layout."""
    flat = lift_speculators(raw) if Settings(raw).speculators else raw
    kind = flat.get("model_type")
    return Settings(flat, _DEFAULTS.get(kind, {}) if isinstance(kind, str) else {})


def _ids(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and len(value) <= 256 and all(type(item) is int for item in value):
        return tuple(value)
    return None


def rope_base(rope: Rope) -> float:
    """The base that is used."""
    return _ROPE_DEFAULT if rope.theta is None else rope.theta


def lift_speculators(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A speculators config as a flat one: layer settings at the top, ids in `eagle_config`, output style."""
    layer = raw.get("transformer_layer_config")
    flat = dict(layer) if isinstance(layer, dict) else {}
    flat["draft_vocab_size"] = raw.get("draft_vocab_size")
    for key in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"):
        if raw.get(key):
            flat[key] = raw[key]
    if raw.get("target_hidden_size") is not None:
        flat["target_hidden_size"] = raw["target_hidden_size"]
    ids = _ids(raw.get("eagle_aux_hidden_state_layer_ids"))
    if ids is not None:
        flat["eagle_config"] = {
            "eagle_aux_hidden_state_layer_ids": [i - 1 for i in ids],
            "use_aux_hidden_state": True,
        }
    dtype = raw.get("dtype") or raw.get("torch_dtype")
    if dtype:
        flat["torch_dtype"] = dtype
    flat |= {"architectures": [LLAMA], "tie_word_embeddings": False}
    return flat
