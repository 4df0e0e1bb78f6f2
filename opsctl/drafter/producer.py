"""Which producer's layout a checkpoint has, by its config keys and tensor names."""

from __future__ import annotations

import re

from opsctl.drafter.case import Case
from opsctl.drafter.kind import Kind

_MODELOPT_KEYS = (
    "use_last_layernorm",
    "use_mtp_layernorm",
    "parallel_draft_step",
    "use_input_layernorm_in_first_layer",
)


def name(case: Case) -> str:
    """The layout's name, as `specforge-0.1`; `unknown` when nothing tells."""
    folder = case.folder
    if folder.speculators and folder.raw_config is not None:
        version = re.match(r"\d+\.\d+", str(folder.raw_config.get("speculators_version", "")), re.ASCII)
        return f"speculators-{version.group()}" if version else "speculators"
    draft = case.draft
    kind = case.recognised.kind
    if not kind.eagle3 and kind is not Kind.UNKNOWN:
        return str(kind.value)
    if draft is None or not case.tensors:
        return "unknown"
    if folder.pickled:
        return "eagle-safeailab" if draft.architecture == "LlamaForCausalLM" else "torch-pickle"
    layers0 = any(tensor.startswith("layers.0.") for tensor in case.tensors)
    modelopt = any(key in draft.eagle for key in _MODELOPT_KEYS)
    if draft.mla:
        return "modelopt-mla" if modelopt else "torchspec-mla"
    if any(tensor.startswith("model.") for tensor in case.tensors):
        return "automodel"
    if draft.headless:
        return "modelopt-headless"
    if modelopt or (case.d2t is not None and case.t2d is None):
        return "modelopt>=0.42" if layers0 else "modelopt<=0.41"
    if case.d2t is None and draft.draft_vocab == draft.vocab:
        return "torchspec"
    if case.d2t is not None and case.t2d is not None and not layers0:
        return "specforge-0.2" if draft.eagle and "rope_parameters" in draft.raw else "specforge-0.1"
    return "unknown"
