"""What the `config.json` of a drafter and of its target say, as SGLang and transformers read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Rope:
    """Rope base and scaling as one generation of readers sees them. `theta` None: no base named, 10000 is used."""

    theta: float | None
    scaling: str


@dataclass(frozen=True, slots=True)
class Settings:
    """A config.json with typed access. `raw` holds text of unknown origin: escape before printing."""

    raw: Mapping[str, Any]

    def integer(self, key: str, default: int | None = None) -> int | None:
        """An integer key; `default` when absent, null or no integer."""
        value = self.raw.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else default

    def text(self, key: str) -> str:
        value = self.raw.get(key)
        return value if isinstance(value, str) else ""

    def section(self, key: str) -> Mapping[str, Any]:
        value = self.raw.get(key)
        return value if isinstance(value, dict) else {}

    @property
    def architecture(self) -> str:
        names = self.raw.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""

    @property
    def mla(self) -> bool:
        return self.architecture == MLA

    @property
    def speculators(self) -> bool:
        return "speculators_model_type" in self.raw or "speculators_config" in self.raw

    @property
    def dtype_named(self) -> str:
        value = self.raw.get("dtype") or self.raw.get("torch_dtype") or ""
        return value.removeprefix("torch.") if isinstance(value, str) else ""

    @property
    def dtype(self) -> str:
        """The dtype `--dtype auto` gives: none reads as float32, which becomes float16 (model_config.py)."""
        named = _DTYPES.get(self.dtype_named, "float32")
        return "float16" if named == "float32" else named

    @property
    def context_length(self) -> int:
        """The length SGLang derives (hf_transformers_utils.py get_context_length)."""
        scaling = self.section("rope_scaling")
        factor: Any = scaling.get("factor", 1)
        if "original_max_position_embeddings" in scaling or scaling.get("rope_type") == "llama3":
            factor = 1
        if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 1e6:
            factor = 1
        for key in _CONTEXT_KEYS:
            value = self.integer(key)
            if value is not None:
                return int(factor * value)
        return 2048  # also the default of transformers' LlamaConfig

    def rope(self, reads_parameters: bool) -> Rope:
        """Rope for readers that know `rope_parameters` (transformers 5) or do not."""
        source = dict(self.section("rope_scaling"))
        theta = self.raw.get("rope_theta")
        if reads_parameters and self.section("rope_parameters"):
            source = dict(self.section("rope_parameters"))
            theta = source.get("rope_theta", theta)
        kind = source.get("rope_type", source.get("type", "default"))
        known = float(theta) if isinstance(theta, int | float) and not isinstance(theta, bool) else None
        return Rope(known, kind if isinstance(kind, str) else "default")

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
        return self.integer("head_dim") or (self.hidden // self.heads if self.heads else 0)

    @property
    def intermediate(self) -> int:
        return self.integer("intermediate_size") or 0

    @property
    def layers(self) -> int:
        value = self.integer("num_hidden_layers", 1)
        return 1 if value is None else value

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
