"""Tiny model folders for the practice host: shapes and names as their producers write them, values at random."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 8, 4, 16, 96
VOCAB, DRAFT_VOCAB = 512, 128
AUX_LAYERS = (1, 29, 57)  # output of these layers of 61, as SpecForge writes them

_YARN = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 64.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
    "rope_type": "yarn",
}

TARGET_CONFIG: dict[str, Any] = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "hidden_size": HIDDEN,
        "num_hidden_layers": 61,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "vocab_size": VOCAB,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "rope_scaling": _YARN,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    },
}

CHAT_TEMPLATE = """\
{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}<|assistant|>"""

DRAFTER_CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "vocab_size": VOCAB,
    "draft_vocab_size": DRAFT_VOCAB,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "rope_theta": 50000.0,
    "rope_scaling": _YARN,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS), "use_aux_hidden_state": True},
}


@dataclass(frozen=True, slots=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def write_target(folder: Path) -> None:
    folder.mkdir(parents=True)
    _write_config(folder, TARGET_CONFIG)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_drafter(folder: Path, *, seed: int, scenario: str, rename: Callable[[str], str] = lambda name: name) -> None:
    """A drafter that fits the practice target. `rename` changes tensor names, to plant a fault."""
    folder.mkdir(parents=True)
    tensors = {rename(name): tensor for name, tensor in _drafter_tensors(random.Random(seed)).items()}
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    _write_config(folder, DRAFTER_CONFIG | {"practice_scenario": scenario})


def safetensors(tensors: dict[str, Tensor]) -> bytes:
    """A safetensors file: u64 length of the header, the header as JSON, the data in header order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in sorted(tensors.items()):
        end = offset + len(tensor.data)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(tensor.data for _, tensor in sorted(tensors.items()))


def _drafter_tensors(dice: random.Random) -> dict[str, Tensor]:
    layer = {
        "input_layernorm.weight": (HIDDEN,),
        "hidden_norm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, 2 * HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    shapes = {f"midlayer.{name}": shape for name, shape in layer.items()}
    shapes |= {
        "fc.weight": (HIDDEN, len(AUX_LAYERS) * HIDDEN),
        "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    }
    tensors = {name: Tensor("BF16", shape, _bf16(dice, shape)) for name, shape in shapes.items()}
    kept = sorted(dice.sample(range(VOCAB), DRAFT_VOCAB))
    offsets = [target - draft for draft, target in enumerate(kept)]
    tensors["d2t"] = Tensor("I64", (DRAFT_VOCAB,), struct.pack(f"<{DRAFT_VOCAB}q", *offsets))
    tensors["t2d"] = Tensor("BOOL", (VOCAB,), bytes(token in set(kept) for token in range(VOCAB)))
    return tensors


def _bf16(dice: random.Random, shape: tuple[int, ...]) -> bytes:
    """Small normal numbers: the high byte is sign and most of the exponent, 0x3c about 0.01 and 0x3d about 0.06."""
    count = 1
    for side in shape:
        count *= side
    low = dice.randbytes(count)
    high = bytes((0x3C, 0x3D, 0xBC, 0xBD)[byte & 3] for byte in dice.randbytes(count))
    return bytes(byte for pair in zip(low, high, strict=True) for byte in pair)


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
