"""Everything that is checked, as one table.

Rows are numbered as in docs/reference/drafter-checks.md; `where` is the place in SGLang's source, or the public report,
a rule was taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opsctl.drafter.case import Case
from opsctl.drafter.checks import (
    config,
    files,
    kind,
    mapping,
    names,
    payload,
    quantization,
    serving,
    shapes,
    target,
    types,
)
from opsctl.drafter.verdict import Remark
from opsctl.drafter.versions import Version


@dataclass(frozen=True, slots=True)
class Check:
    """A function of a case and a version, the rows of the table it answers, and where the rule was read.

    every_kind: whether the rule holds for draft models of every kind; the others are EAGLE-3's.
    """

    rows: tuple[int, ...]
    title: str
    run: Callable[[Case, Version], Iterator[Remark]]
    where: str
    every_kind: bool = False

    def applies(self, case: Case) -> bool:
        return self.every_kind or case.recognised.kind.eagle3


CHECKS = (
    Check((0,), "kind of draft model", kind.draft_kind, "speculative/spec_info.py", every_kind=True),
    Check((3,), "config.json can be read", files.readable, "transformers AutoConfig", every_kind=True),
    Check((2,), "architecture has a class", kind.architecture, "models/registry.py; #5448, #36528", every_kind=True),
    Check((35,), "weight files", files.weights, "model_loader/weight_utils.py", every_kind=True),
    Check((36,), "shards are there", files.shards, "model_loader/weight_utils.py; #32279", every_kind=True),
    Check((1,), "speculative algorithm", kind.algorithm, "llama_eagle3.py forward; #21272, #36829", every_kind=True),
    Check((43,), "layers that draft", kind.own_layers, "deepseek_weight_loader.py", every_kind=True),
    Check((5, 6, 7), "keys of the class", config.keys, "llama_eagle3.py __init__; EAGLE #214, TensorRT-LLM #6492"),
    Check((3,), "values of the keys", types.types, "transformers configs; llama.py"),
    Check((10,), "head not tied", config.tied, "llama_eagle3.py __init__; AngelSlim #16"),
    Check((7,), "head of the target's width", config.borrowed, "eagle_worker.py, llama.py set_embed_and_head"),
    Check((20,), "hidden states used", config.aux_switch, "eagle_worker.py"),
    Check((28, 29, 30), "features of the trainer", config.features, "llama_eagle3.py; #24663, #32334"),
    Check((24, 26, 27, 28, 29), "names find a slot", names.names, "llama_eagle3.py load_weights; #24663"),
    Check((8, 15, 25), "slots find a tensor", names.missing, "load_weights; #27829, #16235, vllm #18906"),
    Check((9, 16, 21, 22), "shapes", shapes.shapes, "layers/linear.py, vocab_parallel_embedding.py; EAGLE #249, #315"),
    Check((11, 12), "d2t", mapping.mapping, "llama_eagle3.py load_weights; vllm #53977, SpecForge #534"),
    Check((11,), "t2d", mapping.witness, "SpecForge and speculators training"),
    Check((13,), "one vocabulary", target.vocabulary, "llama.py set_embed; vllm #34583", every_kind=True),
    Check((15,), "embedding of the target", target.embedding, "llama.py set_embed; vllm #27732"),
    Check((14,), "hidden size of the target", target.hidden, "llama_eagle3.py fc"),
    Check((16, 17, 18, 19), "aux layers", target.aux_layers, "deepseek_v2.py set_eagle3_layers_to_capture; #25454"),
    Check((0,), "target known", target.known, "", every_kind=True),
    Check((0,), "target can capture", target.capture, "kimi_k25.py; #19689, #22836"),
    Check((37,), "trained for this target", target.provenance, "speculators config", every_kind=True),
    Check((38,), "attention backend", target.attention, "#20298, #21969, #23490"),
    Check((42,), "multimodal batches", target.multimodal, "#27647, #27846"),
    Check((4,), "context length", serving.context, "model_config.py _derive_context_length; #6783", every_kind=True),
    Check((23,), "sizes divide by tp", serving.divisible, "llama.py, linear.py"),
    Check((31,), "dtype", serving.dtype, "model_config.py _get_and_verify_dtype"),
    Check((32,), "quantisation", quantization.quantization, "server_args.py, model_config.py, fp8.py"),
    Check((33, 34), "description of rope", types.rope_keys, "layers/rotary_embedding; modeling_rope_utils.py"),
    Check((33, 34), "rope", serving.rope, "llama.py; SpecForge #270, speculators #574"),
    Check((39, 40), "launch arguments", serving.launch, "server_args.py; #36528", every_kind=True),
    Check((41,), "rows of the head", payload.repeats, "TorchSpec --prune-vocab; a half-copied head served by 0.5.9"),
    Check((41,), "payload", payload.payload, "speculators NaN initialisation; cut copies", every_kind=True),
)
