"""Check of the quantisation that the drafter's folder claims against the tensors in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.drafter.case import Case
from opsctl.drafter.checks.files import REMEDY
from opsctl.drafter.folder import QUANTIZATION
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version

_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
# layers/quantization/__init__.py, all versions together.
_METHODS = frozenset({
    "fp8", "mxfp8", "mxfp4", "blockwise_int8", "modelopt", "modelopt_fp8", "modelopt_fp4", "modelopt_mixed",
    "nvfp4_online", "w8a8_int8", "w8a8_fp8", "awq", "awq_marlin", "bitsandbytes", "gguf", "gptq", "gptq_marlin",
    "moe_wna16", "compressed-tensors", "qoq", "w4afp8", "petit_nvfp4", "fbgemm_fp8", "quark", "quark_mxfp4",
    "quark_int4fp8_moe", "auto-round", "auto-round-int8", "modelslim", "humming", "mxfp_w4a8",
    "minimax_m3_nvfp4",
})  # fmt: skip
_REMOVE = "remove quantization_config from config.json"


def quantization(case: Case, version: Version) -> Iterator[Remark]:
    """Row 32: what the config says about quantisation, and what the tensors are."""
    draft = case.draft
    if draft is None:
        return
    targets = [config for config in (case.target, case.text) if config is not None]
    if case.serving.draft_quantization is None and any(t.section("quantization_config") for t in targets):
        detail = "the target is quantised; started with --quantization, the drafter would inherit it"
        remedy = "--speculative-draft-model-quantization unquant"
        yield Remark("quantization", Verdict.NOTE, "--quantization", detail, remedy)
    if not case.builds(version):
        return
    given = draft.raw.get("quantization_config")
    by_file = given is None and draft.raw.get("compression_config") is None
    problem = case.folder.quantization_problem
    if by_file and problem is not None:
        detail = f"{problem.text}; the server reads this file at start, as config.json says nothing of quantisation"
        remedy = REMEDY.get(problem.code, f"remove {QUANTIZATION} if the drafter is not quantised, or get it again")
        yield Remark("quantization", Verdict.LOAD_ERROR, QUANTIZATION, detail, remedy)
    if case.serving.draft_quantization == "unquant":
        return
    if given is not None:
        yield _claimed(case, "quantization_config", given, _REMOVE)
    elif by_file and _algorithm(case.folder.raw_quantization):
        yield _claimed(case, QUANTIZATION, case.folder.raw_quantization, f"remove {QUANTIZATION}")


def _claimed(case: Case, subject: str, config: Any, remedy: str) -> Remark:
    def finding(verdict: Verdict, detail: str) -> Remark:
        return Remark("quantization", verdict, subject, detail, "" if verdict is Verdict.NOTE else remedy)

    if not isinstance(config, dict):
        return finding(Verdict.LOAD_ERROR, f"{config!r:.40}: an object is expected, AttributeError")
    method = _method(config)
    if not isinstance(method, str) or method.lower() not in _METHODS:
        known = "quant_method is missing" if method == "" else f"quant_method {method!r:.40}"
        return finding(Verdict.LOAD_ERROR, f"{known}: no method of SGLang, the start fails")
    if method == "fp8" and "activation_scheme" not in config:
        return finding(Verdict.LOAD_ERROR, f"{method} without activation_scheme: ValueError")
    weights = [t for name, t in case.tensors.items() if name.endswith("proj.weight")]
    scales = [name for name in case.tensors if "scale" in name or "qweight" in name or "packed" in name]
    block = config.get("weight_block_size")
    uneven = _uneven(case, block) if method == "fp8" and isinstance(block, list) else ""
    plain = all(t.dtype in _FLOATS for t in weights)
    if uneven:
        tensors = f"all {len(weights)} projections are {weights[0].dtype}" if plain and weights else "blocks do not fit"
        if case.serving.tp_known:
            return finding(Verdict.LOAD_ERROR, f"{method}, but {tensors}; {uneven}: ValueError")
        return finding(Verdict.NOT_JUDGED, f"{method}; {uneven}: ValueError, if tensor parallel is {case.serving.tp}")
    if scales or not weights or (not plain and method != "fp8"):
        return finding(Verdict.NOTE, f"{method}: a quantised drafter, values not judged")
    tensors = f"{method}, but all {len(weights)} projections are {weights[0].dtype} and there is no scale"
    if method == "modelopt_fp4" and plain:
        if case.draft is not None and case.draft.mla:
            return finding(Verdict.NOTE, f"{method}: this class takes its weights as they are")
        return finding(Verdict.LOAD_ERROR, f"{tensors}: no weights packed in four bits, the loader raises")
    return finding(Verdict.SILENT_GARBAGE, f"{tensors}: weights are cast, scales keep their fill value")


def _method(config: Mapping[str, Any]) -> Any:
    """The method that SGLang takes it for (model_config.py _parse_quant_hf_config)."""
    given = config.get("quant_method", "")
    if given not in ("", "modelopt"):
        return given
    algorithm = _algorithm(config)
    if algorithm == "MIXED_PRECISION":
        return "w4afp8"
    return next((f"modelopt_{kind}" for kind in ("fp4", "fp8") if kind in algorithm.lower()), given)


def _algorithm(config: Mapping[str, Any] | None) -> str:
    """The algorithm of a ModelOpt config, be it the flat one of config.json or that of its file of its own."""
    inner = (config or {}).get("quantization", config)
    found = inner.get("quant_algo") if isinstance(inner, dict) else None
    return found if isinstance(found, str) else ""


def _uneven(case: Case, block: list[object]) -> str:
    """The first projection of one rank that fp8 blocks do not divide (fp8.py create_weights)."""
    draft, tp = case.draft, case.serving.tp
    if draft is None or len(block) != 2 or not all(isinstance(b, int) and b > 0 for b in block):
        return ""
    rows, columns = (int(str(b)) for b in block)
    kv = max(1, draft.kv_heads // tp) * draft.head_dim
    parts = [
        ("intermediate_size / tp", draft.intermediate // tp, rows),
        ("intermediate_size / tp", draft.intermediate // tp, columns if tp > 1 else 1),
    ]
    if not draft.mla:
        parts += [
            ("query rows / tp", draft.heads * draft.head_dim // tp, rows),
            ("key rows / tp", kv, rows),
        ]
    for label, size, unit in parts:
        if size % unit:
            return f"{label} = {size} is no multiple of the block {unit}"
    return ""
