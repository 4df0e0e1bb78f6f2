"""Tiny models of many families, by their configs alone: SGLang fills them with random weights (`--load-format dummy`).

All have the width and the vocabulary of the kit's sound draft model for Llama, so that it drafts for each of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MODELS = Path(__file__).resolve().parent / "models"
WIDTH, LAYERS = 64, 8

_TEXT: Mapping[str, Any] = {
    **{"hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": LAYERS, "vocab_size": 512},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048},
    **{"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False},
    **{"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "torch_dtype": "float32"},
}
_EXPERTS: Mapping[str, Any] = {
    **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True},
    **{"decoder_sparse_step": 1, "mlp_only_layers": []},
}
_GROUPED: Mapping[str, Any] = {
    **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    **{"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0},
    **{"first_k_dense_replace": 1, "moe_layer_freq": 1, "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}
_LATENT: Mapping[str, Any] = {
    **{"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 16},
    **{"qk_rope_head_dim": 16, "v_head_dim": 16, "qk_head_dim": 32, "head_dim": 16},
    "rope_scaling": {
        **{"type": "yarn", "rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
}
_TURNS = {"rope_type": "default", "mrope_section": [4, 2, 2], "mrope_interleaved": True}
_LINEAR: Mapping[str, Any] = {
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16},
    **{"linear_value_head_dim": 16, "linear_conv_kernel_dim": 4, "full_attention_interval": 4},
    "layer_types": ["full_attention" if n % 4 == 3 else "linear_attention" for n in range(LAYERS)],
    **{"attn_output_gate": True, "partial_rotary_factor": 0.5, "mamba_ssm_dtype": "float32"},
}


def _seeing(model_type: str, text_type: str, **more: Any) -> dict[str, Any]:
    """The config of a model that sees, around a text model."""
    vision = {
        **{"model_type": model_type, "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2},
        **{"in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
        **{"out_hidden_size": WIDTH, "num_position_embeddings": 16, "deepstack_visual_indexes": []},
        "hidden_act": "gelu_pytorch_tanh",
    }
    return {
        "model_type": model_type,
        "text_config": {**_TEXT, "model_type": text_type, **more},
        "vision_config": vision,
        **{"image_token_id": 5, "video_token_id": 6, "vision_start_token_id": 7, "vision_end_token_id": 8},
        **{"tie_word_embeddings": False, "torch_dtype": "float32"},
    }


@dataclass(frozen=True)
class Family:
    """name: as people say. architecture: its class in SGLang. flags: what a server of it needs beside the usual."""

    name: str
    architecture: str
    config: Mapping[str, Any]
    flags: Sequence[str] = ()

    def make(self, folder: Path) -> Path:
        """Write what stands in for its checkpoint."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"architectures": [self.architecture], **self.config}))
        for file in MODELS.joinpath("target-k25").iterdir():
            if file.name not in ("config.json", "model.safetensors"):
                shutil.copy(file, folder)
        return folder


FAMILIES = (
    Family("Llama", "LlamaForCausalLM", {**_TEXT, "model_type": "llama"}),
    Family("Qwen2", "Qwen2ForCausalLM", {**_TEXT, "model_type": "qwen2"}),
    Family("Qwen3", "Qwen3ForCausalLM", {**_TEXT, "model_type": "qwen3"}),
    Family("Qwen3-MoE", "Qwen3MoeForCausalLM", {**_TEXT, **_EXPERTS, "model_type": "qwen3_moe"}),
    Family(
        "Qwen3-VL",
        "Qwen3VLForConditionalGeneration",
        _seeing("qwen3_vl", "qwen3_vl_text", rope_scaling=_TURNS),
    ),
    Family("DeepSeek-V3", "DeepseekV3ForCausalLM", {**_TEXT, **_GROUPED, **_LATENT, "model_type": "deepseek_v3"}),
    Family(
        "KimiK25",
        "KimiK25ForConditionalGeneration",
        json.loads((MODELS / "target-k25" / "config.json").read_text()),
    ),
    Family(
        "GLM-4-MoE",
        "Glm4MoeForCausalLM",
        {**_TEXT, **_GROUPED, "model_type": "glm4_moe", "partial_rotary_factor": 0.5, "use_qk_norm": True},
    ),
    Family(
        "gpt-oss",
        "GptOssForCausalLM",
        {
            **{**_TEXT, "model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2},
            **{"sliding_window": 128, "attention_bias": True, "rope_scaling": None},
            "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
            **{"swiglu_limit": 7.0, "experts_per_token": 2},
        },
    ),
    Family(
        "Gemma3",
        "Gemma3ForCausalLM",
        {
            **{**_TEXT, "model_type": "gemma3_text", "query_pre_attn_scalar": 16, "sliding_window": 128},
            **{"sliding_window_pattern": 2, "hidden_activation": "gelu_pytorch_tanh", "rope_local_base_freq": 10000.0},
            "layer_types": ["sliding_attention", "full_attention"] * (LAYERS // 2),
            **{"tie_word_embeddings": True, "attention_bias": False},
        },
    ),
    Family("Phi-3", "Phi3ForCausalLM", {**_TEXT, "model_type": "phi3", "sliding_window": None}),
    Family(
        "Mixtral",
        "MixtralForCausalLM",
        {**_TEXT, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    Family("MiMo", "MiMoForCausalLM", {**_TEXT, "model_type": "qwen2"}),
    Family(
        "Qwen3-Next",
        "Qwen3NextForCausalLM",
        {**_TEXT, **_EXPERTS, **_LINEAR, "model_type": "qwen3_next", "shared_expert_intermediate_size": 32},
    ),
    Family(
        "Qwen3.5",
        "Qwen3_5ForConditionalGeneration",
        _seeing(
            "qwen3_5", "qwen3_5_text", **_LINEAR,
            rope_parameters={**_TURNS, "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        ),
    ),
)  # fmt: skip
