"""A DeepSeek-V3 that predicts the next token but one: the text model of `models/target-k25`, and one layer more."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from . import faults
from .families import MODELS

# Those of the layer: the others are dense.
_EXPERTS = {"n_routed_experts": 2, "num_experts_per_tok": 2, "n_shared_experts": 4, "moe_intermediate_size": 32}


def make(fault: str, out: Path) -> Path:
    """Write the model to the folder `out`, with a fault of `faults` or `good`."""
    text = faults.read(MODELS / "target-k25")
    config = {**text.config["text_config"], **_EXPERTS, "num_nextn_predict_layers": 1}
    tensors = {name.removeprefix("language_model."): tensor for name, tensor in text.tensors.items()}
    layer = faults.read(MODELS / "nextn-layer").tensors
    sound = replace(text, config=config, tensors=tensors | layer)
    faults.write(faults.FAULTS[fault](sound) if fault != "good" else sound, out)
    for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(MODELS / "target-k25" / file, out)
    return out
