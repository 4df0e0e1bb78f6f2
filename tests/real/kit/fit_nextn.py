"""Fits the layer that predicts the next token but one for the text model of `models/target-k25`: `models/nextn-layer`.

Runs in the environment of a release (torch, safetensors, transformers). Nothing is trained. The layer all but ignores
the hidden state, attention and its routed experts; of the embedding of token t its shared expert makes random features,
and the weights that turn them into the target's state after t are solved for. So its greedy draft is right each time.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

MODELS = Path(__file__).resolve().parent / "models"
WIDTH, HEADS, EXPERTS, FEATURES = 64, 4, 2, 128
LAYER = 8


def state(target: DeepseekV3ForCausalLM, tokens: torch.Tensor) -> torch.Tensor:
    """What the target's head sees after each of the tokens, alone."""
    with torch.no_grad():
        return target.model(tokens[:, None]).last_hidden_state[:, 0].double()


def main() -> None:
    torch.manual_seed(0)
    text = json.loads((MODELS / "target-k25" / "config.json").read_text())["text_config"]
    target = DeepseekV3ForCausalLM(DeepseekV3Config(**text)).float()
    weights = load_file(MODELS / "target-k25" / "model.safetensors")
    target.load_state_dict({name.removeprefix("language_model."): t for name, t in weights.items()})
    tokens = torch.arange(0, 512, 4)  # what the target was trained on
    embedded = target.model.embed_tokens.weight[tokens].double()
    normed = embedded / embedded.pow(2).mean(-1, keepdim=True).sqrt()
    gate, up = (torch.randn(FEATURES, WIDTH, dtype=torch.float64) / WIDTH**0.5 for _ in range(2))
    features = torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)
    # A hundredth of the embedding goes past the expert: normed again, it is what the expert sees.
    wanted = state(target, tokens) - normed / 100
    down = torch.linalg.lstsq(features, wanted).solution.T
    got = features @ down.T + normed / 100
    head = target.lm_head.weight.double()
    assert torch.equal((got @ head.T).argmax(-1), (state(target, tokens) @ head.T).argmax(-1))

    def small(*shape: int, scale: float = 0.02) -> torch.Tensor:
        return torch.randn(*shape) * scale

    layer = {
        "enorm.weight": torch.ones(WIDTH),
        "hnorm.weight": torch.ones(WIDTH),
        "eh_proj.weight": torch.cat([torch.eye(WIDTH) / 100, small(WIDTH, WIDTH, scale=1e-6)], dim=1),
        "shared_head.norm.weight": torch.ones(WIDTH),
        "input_layernorm.weight": torch.ones(WIDTH),
        "post_attention_layernorm.weight": torch.ones(WIDTH),
        "self_attn.q_a_proj.weight": small(32, WIDTH),
        "self_attn.q_a_layernorm.weight": torch.ones(32),
        "self_attn.q_b_proj.weight": small(HEADS * 32, 32),
        "self_attn.kv_a_proj_with_mqa.weight": small(80, WIDTH),
        "self_attn.kv_a_layernorm.weight": torch.ones(64),
        "self_attn.kv_b_proj.weight": small(HEADS * 32, 64),
        "self_attn.o_proj.weight": small(WIDTH, WIDTH, scale=1e-6),
        "mlp.gate.weight": small(EXPERTS, WIDTH),
        "mlp.gate.e_score_correction_bias": torch.zeros(EXPERTS),
        "mlp.shared_experts.gate_proj.weight": gate.float(),
        "mlp.shared_experts.up_proj.weight": up.float(),
        "mlp.shared_experts.down_proj.weight": down.float(),
    }
    for n in range(EXPERTS):
        layer[f"mlp.experts.{n}.gate_proj.weight"] = small(32, WIDTH)
        layer[f"mlp.experts.{n}.up_proj.weight"] = small(32, WIDTH)
        layer[f"mlp.experts.{n}.down_proj.weight"] = small(WIDTH, 32, scale=1e-6)
    folder = MODELS / "nextn-layer"
    folder.mkdir(exist_ok=True)
    named = {f"model.layers.{LAYER}.{name}": tensor.contiguous() for name, tensor in layer.items()}
    save_file(named, folder / "model.safetensors")


if __name__ == "__main__":
    main()
