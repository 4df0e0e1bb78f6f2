"""Tiny EAGLE-3 drafters with the names, shapes and keys of the real producers; values random, dimensions free."""

from __future__ import annotations

import json
import random
import struct
import zipfile
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

WIDTH = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "F8_E4M3": 1}


@dataclass(frozen=True)
class Dims:
    """heads * head_dim differs from hidden on purpose, as in the Kimi drafters."""

    hidden: int = 48
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 12
    intermediate: int = 80
    draft: int = 64
    vocab: int = 320
    layers: int = 61
    aux: int = 3


@dataclass
class Raw:
    """One tensor before it is written."""

    dtype: str
    shape: Sequence[int]
    data: bytes


@dataclass
class Drafter:
    """A checkpoint in memory: change what you like, then write it."""

    dims: Dims
    config: dict[str, Any]
    tensors: dict[str, Raw]
    target: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        write_safetensors(folder / "model.safetensors", self.tensors)
        return folder

    def rename(self, old: str, new: str) -> None:
        """Replace a prefix in every tensor name."""
        self.tensors = {new + n.removeprefix(old) if n.startswith(old) else n: t for n, t in self.tensors.items()}


def weight(rng: random.Random, shape: Sequence[int], dtype: str = "BF16") -> Raw:
    count = 1
    for dim in shape:
        count *= dim
    if dtype == "F32":
        return Raw(dtype, shape, array("f", [rng.uniform(-1, 1) for _ in range(count)]).tobytes())
    # Exponents well inside the range of both 16-bit float types, either sign: finite and never zero.
    return Raw(
        dtype,
        shape,
        array("H", [rng.randrange(0x3000, 0x3F00) | rng.getrandbits(1) << 15 for _ in range(count)]).tobytes(),
    )


def sorted_ids(rng: random.Random, dims: Dims) -> list[int]:
    """Target ids as real tables have them: rising, with neighbours, the last special tokens inside."""
    special = range(dims.vocab - 4, dims.vocab)
    return sorted({*rng.sample(range(dims.vocab - 4), dims.draft - 4), *special})


def offsets(ids: Sequence[int]) -> Raw:
    return Raw("I64", [len(ids)], array("q", [target - i for i, target in enumerate(ids)]).tobytes())


def absolute(ids: Sequence[int]) -> Raw:
    return Raw("I64", [len(ids)], array("q", ids).tobytes())


def mask(ids: Sequence[int], vocab: int) -> Raw:
    data = bytearray(vocab)
    for target in ids:
        data[target] = 1
    return Raw("BOOL", [vocab], bytes(data))


def specforge(dims: Dims = Dims(), seed: int = 1) -> Drafter:
    """SpecForge 0.1: midlayer names, d2t and t2d, no eagle_config."""
    rng = random.Random(seed)
    h, wide = dims.hidden, 2 * dims.hidden
    q, kv = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    at = "midlayer."
    shapes = {
        "fc.weight": [h, dims.aux * h],
        f"{at}input_layernorm.weight": [h],
        f"{at}hidden_norm.weight": [h],
        f"{at}post_attention_layernorm.weight": [h],
        f"{at}self_attn.q_proj.weight": [q, wide],
        f"{at}self_attn.k_proj.weight": [kv, wide],
        f"{at}self_attn.v_proj.weight": [kv, wide],
        f"{at}self_attn.o_proj.weight": [h, q],
        f"{at}mlp.gate_proj.weight": [dims.intermediate, h],
        f"{at}mlp.up_proj.weight": [dims.intermediate, h],
        f"{at}mlp.down_proj.weight": [h, dims.intermediate],
        "norm.weight": [h],
        "lm_head.weight": [dims.draft, h],
    }
    ids = sorted_ids(rng, dims)
    tensors = {name: weight(rng, shape) for name, shape in shapes.items()}
    tensors |= {"d2t": offsets(ids), "t2d": mask(ids, dims.vocab)}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": h,
        "num_attention_heads": dims.heads,
        "num_key_value_heads": dims.kv_heads,
        "head_dim": dims.head_dim,
        "intermediate_size": dims.intermediate,
        "num_hidden_layers": 1,
        "vocab_size": dims.vocab,
        "draft_vocab_size": dims.draft,
        "max_position_embeddings": 131072,
        "rope_theta": 50000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    return Drafter(dims, config, tensors, target(dims))


def target(dims: Dims, hidden: int | None = None) -> dict[str, Any]:
    """A Kimi-K2-like text target."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": hidden or dims.hidden,
        "num_hidden_layers": dims.layers,
        "num_attention_heads": 64,
        "vocab_size": dims.vocab,
        "max_position_embeddings": 131072,
        "rope_theta": 50000.0,
        "torch_dtype": "bfloat16",
    }


def multimodal(text: Mapping[str, Any]) -> dict[str, Any]:
    """The same target inside the K2.5 wrapper."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": dict(text),
        "vision_config": {"hidden_size": 32},
    }


def specforge_export(dims: Dims = Dims(), seed: int = 2) -> Drafter:
    """SpecForge 0.2 export: eagle_config in output style, rope in both places."""
    made = specforge(dims, seed)
    n = dims.layers
    made.config |= {
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, n // 2 - 1, n - 4], "use_aux_hidden_state": True},
        "rope_parameters": {"rope_type": "default", "rope_theta": 50000.0},
        "dtype": made.config.pop("torch_dtype"),
    }
    return made


def modelopt(dims: Dims = Dims(), seed: int = 3, *, layers0: bool = False) -> Drafter:
    """ModelOpt: ids in frequency order, no t2d; `layers.0.` names from 0.42 on."""
    made = specforge_export(dims, seed)
    rng = random.Random(seed)
    ids = sorted_ids(rng, dims)
    rng.shuffle(ids)
    made.tensors["d2t"] = offsets(ids)
    del made.tensors["t2d"]
    made.config["eagle_config"]["use_last_layernorm"] = True
    if layers0:
        made.rename("midlayer.", "layers.0.")
    return made


def torchspec(dims: Dims = Dims(), seed: int = 4) -> Drafter:
    """TorchSpec: the whole vocabulary, no mapping, own embedding."""
    made = specforge(replace(dims, draft=dims.vocab), seed)
    for name in ("d2t", "t2d"):
        del made.tensors[name]
    made.tensors["embed_tokens.weight"] = weight(random.Random(seed), [dims.vocab, dims.hidden])
    return made


def headless(dims: Dims = Dims(), seed: int = 5) -> Drafter:
    """`draft_vocab_size: null`: the head of the target is borrowed."""
    made = torchspec(dims, seed)
    made.config["draft_vocab_size"] = None
    del made.tensors["lm_head.weight"], made.tensors["embed_tokens.weight"]
    return made


def mla(dims: Dims = Dims(), seed: int = 6) -> Drafter:
    """ModelOpt's MLA drafter: layers.0 names, no draft_vocab_size key."""
    made = headless(dims, seed)
    rng = random.Random(seed)
    h, q_lora, kv_lora, nope, rope, value = dims.hidden, 20, 16, 16, 8, 12
    made.tensors = {name: t for name, t in made.tensors.items() if "self_attn" not in name}
    at = "midlayer.self_attn."
    made.tensors |= {
        f"{at}q_a_proj.weight": weight(rng, [q_lora, 2 * h]),
        f"{at}q_a_layernorm.weight": weight(rng, [q_lora]),
        f"{at}q_b_proj.weight": weight(rng, [dims.heads * (nope + rope), q_lora]),
        f"{at}kv_a_proj_with_mqa.weight": weight(rng, [kv_lora + rope, 2 * h]),
        f"{at}kv_a_layernorm.weight": weight(rng, [kv_lora]),
        f"{at}kv_b_proj.weight": weight(rng, [dims.heads * (nope + value), kv_lora]),
        f"{at}o_proj.weight": weight(rng, [h, dims.heads * value]),
        "lm_head.weight": weight(rng, [dims.vocab, h]),
    }
    made.rename("midlayer.", "layers.0.")
    for key in ("draft_vocab_size", "head_dim"):
        del made.config[key]
    made.config |= {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "kimi_k2",
        "num_key_value_heads": dims.heads,
        "q_lora_rank": q_lora,
        "kv_lora_rank": kv_lora,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": value,
    }
    return made


def speculators(dims: Dims = Dims(), seed: int = 7, **top: Any) -> Drafter:
    """A speculators checkpoint: nested config, input-style ids, own embedding."""
    made = specforge(dims, seed)
    layer = {k: v for k, v in made.config.items() if k not in ("architectures", "draft_vocab_size", "torch_dtype")}
    n = dims.layers
    made.config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": ["DeepseekV3ForCausalLM"]}},
        "transformer_layer_config": layer,
        "draft_vocab_size": dims.draft,
        "norm_before_residual": False,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": [2, n // 2, n - 3],
        "torch_dtype": "bfloat16",
        **top,
    }
    made.tensors["embed_tokens.weight"] = weight(random.Random(seed), [dims.vocab, dims.hidden])
    made.rename("midlayer.", "layers.0.")
    return made


def header(tensors: Mapping[str, Raw]) -> dict[str, Any]:
    """The entries of a safetensors header, in the order of `tensors`."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        entries[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + len(tensor.data)],
        }
        at += len(tensor.data)
    return entries


def safetensors(head: str | bytes, data: bytes, length: int | None = None) -> bytes:
    """A container from header text and data; `length` lies about the header's size."""
    raw = head.encode() if isinstance(head, str) else head
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def write_safetensors(path: Path, tensors: Mapping[str, Raw]) -> None:
    path.write_bytes(safetensors(json.dumps(header(tensors)), b"".join(t.data for t in tensors.values())))


def shard(folder: Path, tensors: Mapping[str, Raw], split: int = 5) -> None:
    """Two shards and an index in place of one file."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    names = list(tensors)
    files = {"model-00001-of-00002.safetensors": names[:split], "model-00002-of-00002.safetensors": names[split:]}
    for file, held in files.items():
        write_safetensors(folder / file, {name: tensors[name] for name in held})
    index = {"metadata": {}, "weight_map": {name: file for file, held in files.items() for name in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


_STORAGE = {
    "BF16": "BFloat16Storage",
    "F16": "HalfStorage",
    "F32": "FloatStorage",
    "I64": "LongStorage",
    "BOOL": "BoolStorage",
}


def write_torch(path: Path, tensors: Mapping[str, Raw], extra: bytes = b"") -> None:
    """A `.bin` as torch.save writes it: stored zip, protocol 2 pickle. `extra`: opcodes to run first."""
    ops = b"\x80\x02" + extra + b"ccollections\nOrderedDict\n)R("
    for key, (name, tensor) in enumerate(tensors.items()):
        count = len(tensor.data) // WIDTH[tensor.dtype]
        strides, step = [], 1
        for dim in reversed(tensor.shape):
            strides.insert(0, step)
            step *= dim
        ops += _text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n((" + _text("storage")
        ops += (
            b"ctorch\n"
            + _STORAGE[tensor.dtype].encode()
            + b"\n"
            + _text(str(key))
            + _text("cpu")
            + _number(count)
            + b"tQ"
        )
        ops += _number(0) + b"(" + b"".join(map(_number, tensor.shape)) + b"t(" + b"".join(map(_number, strides)) + b"t"
        ops += b"\x89ccollections\nOrderedDict\n)RtR"
    ops += b"u."
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", ops)
        archive.writestr("archive/byteorder", "little")
        for key, tensor in enumerate(tensors.values()):
            archive.writestr(f"archive/data/{key}", tensor.data)


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def _number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


DELEGATES = """
    def get_embed_and_head(self):
        return self.language_model.get_embed_and_head()

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

    def set_embed_and_head(self, embed, head):
        self.language_model.set_embed_and_head(embed, head)
"""
KIMI = """
from sglang.srt.models.deepseek_v2 import DeepseekV3ForCausalLM


class KimiK25ForConditionalGeneration:
    def __init__(self, config):
        self.language_model = DeepseekV3ForCausalLM(config.text_config)

    def forward(self, input_ids):
        return self.language_model(input_ids)
{methods}

EntryClass = [KimiK25ForConditionalGeneration]
"""
DEEPSEEK = """
class DeepseekV2Model:
    def forward(self, input_ids):
        return input_ids, [i for i, layer in enumerate(self.layers) if i in self.layers_to_capture]


class DeepseekV2ForCausalLM:
    def __init__(self, config):
        self.model = DeepseekV2Model(config)

    def forward(self, input_ids):
        hidden_states = self.model(input_ids)
        if self.capture_aux_hidden_states:
            hidden_states, aux_hidden_states = hidden_states
        return self.logits_processor(hidden_states, aux_hidden_states)

    def get_embed_and_head(self):
        return self.model.embed_tokens.weight, self.lm_head.weight

    def set_embed_and_head(self, embed, head):
        self.model.embed_tokens.weight = embed

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.capture_aux_hidden_states = True
        if layer_ids is None:
            count = self.config.num_hidden_layers
            self.model.layers_to_capture = [2, count // 2, count - 3]
        else:
            self.model.layers_to_capture = [val + 1 for val in layer_ids]


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    pass


EntryClass = [DeepseekV2ForCausalLM, DeepseekV3ForCausalLM]
"""


def checkout(top: Path, version: str, captures: bool = True) -> str:
    """A source tree with a target class and its language model, and with or without what EAGLE-3 asks for."""
    models = top / "sglang/python/sglang/srt/models"
    models.mkdir(parents=True)
    (models.parent.parent / "version.py").write_text(f'__version__ = "{version}"\n')
    (models / "kimi_k25.py").write_text(KIMI.format(methods=DELEGATES if captures else ""))
    (models / "deepseek_v2.py").write_text(DEEPSEEK)
    return str(top / "sglang")
