"""Checks of the drafter against how the server is started: division, context, dtype, quantisation, rope."""

from __future__ import annotations

import math
from collections.abc import Iterator

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.loader import mapping_name
from opsctl.drafter.settings import Settings, rope_base
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version

_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_TORCH = {"F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_VOCAB_PAD = 64  # vocab_parallel_embedding.py DEFAULT_VOCAB_PADDING_SIZE


def context(case: Case, version: Version) -> Iterator[Remark]:
    """Row 4: the drafter's context length against the server's."""
    draft, serving = case.draft, case.serving
    reads = version in v.ROPE_PARAMETERS
    wanted = serving.context_length or (case.text.context_length(reads) if case.text else None)
    own = draft.context_length(reads) if draft is not None else 0
    if draft is None or wanted is None or own >= wanted:
        return
    detail = f"{own}, the server's context length is {wanted}"
    if serving.overwrite_longer:
        detail += (
            "; SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN overwrites it: acceptance falls beyond the trained length"
        )
        remedy = f"--context-length {own}, or a drafter trained on longer texts"
        yield Remark("context-length", Verdict.DEGRADED, "max_position_embeddings", detail, remedy)
        return
    yield Remark(
        "context-length",
        Verdict.LOAD_ERROR,
        "max_position_embeddings",
        f"{detail}: ValueError after the target was loaded",
        f"--context-length {own}, or SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1",
    )


def divisible(case: Case, version: Version) -> Iterator[Remark]:
    """Row 23: what tensor parallelism splits."""
    draft, tp = case.draft, case.serving.tp
    if draft is None or not case.builds(version):
        return
    for key, size, how in _indivisible(draft, version, tp):
        fits = next(
            n for n in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1) if n < tp and not _indivisible(draft, version, n)
        )
        detail = f"{size}{how} cannot be split over tensor parallel {tp}: assertion when the class is built"
        if case.serving.tp_known:
            yield Remark("tp-division", Verdict.LOAD_ERROR, key, detail, f"--tp {fits} splits all of it")
        else:
            remedy = f"say the size with --tp; {fits} splits all of it"
            yield Remark("tp-division", Verdict.NOTE, key, f"{detail}; but {tp} is only assumed", remedy)


def _indivisible(draft: Settings, version: Version, tp: int) -> list[tuple[str, int, str]]:
    """Key, size and how it is counted of all that `tp` does not divide."""
    heads, kv, padding = draft.heads, draft.kv_heads, f" (padded to a multiple of {_VOCAB_PAD})"
    vocabularies = {"vocab_size": draft.vocab, "draft_vocab_size": draft.draft_vocab}
    padded = {key: -(-size // _VOCAB_PAD) * _VOCAB_PAD for key, size in vocabularies.items()}
    split = draft.mla and version in v.FC_SPLIT_MLA
    return [
        *([("num_attention_heads", heads, "")] if heads % tp else []),
        *([("num_key_value_heads", kv, "")] if not draft.mla and kv and kv % tp and tp % kv else []),
        *([(draft.intermediate_key, draft.intermediate, "")] if draft.intermediate % tp else []),
        *([("hidden_size", draft.hidden, "")] if split and draft.hidden % tp else []),
        *((key, size, padding) for key, size in padded.items() if size % tp),
    ]


def dtype(case: Case, version: Version) -> Iterator[Remark]:
    """Row 31: nothing is cast between target and drafter."""
    draft, text = case.draft, case.text
    if draft is None:
        return
    named = draft.dtype_named
    if text is not None and draft.dtype != text.dtype and case.builds(version):
        said = named or "no dtype or torch_dtype (reads as float32)"
        yield Remark(
            "dtype",
            Verdict.RUNTIME_ERROR,
            "torch_dtype",
            f"{said}: the drafter runs in {draft.dtype}, the target in {text.dtype}; mat1 and"
            " mat2 must have the same dtype",
            f'"torch_dtype": "{text.dtype}" (weights are cast when loaded)',
        )
    if draft.section("quantization_config") or case.folder.raw_quantization:
        return
    weights = [t for t in case.tensors.values() if t.name.endswith(".weight") and not mapping_name(t.name, draft.mla)]
    kinds = {t.dtype for t in weights}
    odd = sorted(kinds - _FLOATS)
    if odd:
        first = next(t.name for t in weights if t.dtype == odd[0])
        detail = (
            f"weights in {', '.join(odd)} without a quantization_config: they are cast to numbers without their scales"
        )
        yield Remark(
            "quantization", Verdict.SILENT_GARBAGE, first, detail, "add the quantization_config of the producer"
        )
    cast = sorted(k for k in kinds & _FLOATS if _TORCH[k] != draft.dtype)
    if cast:
        detail = f"weights are stored in {', '.join(cast)} and cast to {draft.dtype} when loaded"
        yield Remark("dtype", Verdict.NOTE, "weights", detail)


def rope(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 33 and 34: rope base and scaling as this version reads them."""
    draft = case.draft
    if draft is None:
        return
    seen = draft.rope(version in v.ROPE_PARAMETERS)
    meant = draft.rope(True)
    base, wanted = rope_base(seen), rope_base(meant)
    if not (math.isfinite(base) and base > 0):
        detail = f"{base:g}: every position is rotated to NaN or not at all"
        yield Remark("rope-base", Verdict.SILENT_GARBAGE, "rope_theta", detail, "the base it was trained with")
        return
    if seen.theta is None and meant.theta is not None and (base, seen.scaling) != (wanted, meant.scaling):
        yield Remark(
            "rope-base",
            Verdict.DEGRADED,
            "rope_theta",
            f"only in rope_parameters ({wanted:g}, {meant.scaling[:20]}): SGLang before"
            f" {v.ROPE_PARAMETERS.since} does not read"
            f" that and uses {base:g}",
            f'"rope_theta": {wanted:g} at the top level too',
        )
    elif seen != meant and seen.theta is not None:
        detail = (
            f"rope_theta {base:g} ({seen.scaling[:20]}) and rope_parameters {wanted:g} ({meant.scaling[:20]}) disagree"
        )
        yield Remark("rope-base", Verdict.NOTE, "rope_theta", f"{detail}; this version reads {base:g}")
    text = case.text
    if text is None:
        return
    theirs = text.rope(True)
    if seen.theta is None and meant.theta is None and theirs.theta not in (None, rope_base(meant)):
        yield Remark(
            "rope-base",
            Verdict.NOTE,
            "rope_theta",
            f"no base named: 10000 is used, the target has {rope_base(theirs):g}: right if it was trained so",
            "",
        )
    elif meant.theta is not None and theirs.theta is not None and meant.theta != theirs.theta:
        detail = f"{meant.theta:g}, the target has {theirs.theta:g}: right if it was trained so"
        yield Remark("rope-base", Verdict.NOTE, "rope_theta", detail)
    if meant.scaling == "default" and theirs.scaling != "default":
        detail = (
            f"the target scales rope ({theirs.scaling[:20]}), the drafter does not: right if it was"
            " trained so, as many are"
        )
        yield Remark("rope-scaling", Verdict.NOTE, "rope_scaling", detail)


def launch(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 39 and 40: arguments the server changes or lacks."""
    serving = case.serving
    if not serving.draft_path:
        detail = "missing: the target is loaded twice, then AttributeError (#36528)"
        yield Remark(
            "draft-path", Verdict.LOAD_ERROR, "--speculative-draft-model-path", detail, "name the drafter's folder"
        )
    if serving.topk == 1 and None not in (serving.steps, serving.draft_tokens):
        forced = (serving.steps or 0) + 1
        if serving.draft_tokens != forced:
            detail = f"{serving.draft_tokens}: with topk 1 it is forced to steps + 1 = {forced}"
            yield Remark("draft-tokens", Verdict.NOTE, "--speculative-num-draft-tokens", detail)
