"""What a trainer can have switched on that no SGLang version has."""

from __future__ import annotations

from opsctl.drafter.case import Case


def obstacle(case: Case) -> tuple[str, str] | None:
    """Why the drafter cannot be converted to SGLang's layout, and what to do instead; None when it can."""
    draft, raw = case.draft, case.folder.raw_config or {}
    if draft is None:
        return None
    if not case.recognised.kind.eagle3:
        hint = "get it from its producer in a layout that SGLang reads, or serve it with vLLM"
        return f"it is {case.recognised.told}, and only EAGLE-3 is converted", hint
    if draft.flag("norm_before_residual"):
        reason = "norm_before_residual is true: the residual was trained on normalised states"
        return f"{reason}, which no SGLang version has", "serve it with vLLM, or train with norm_before_residual false"
    if case.folder.speculators and "norm_before_residual" not in raw:
        return (
            "norm_before_residual is not in config.json, and readers disagree on its default",
            'write "norm_before_residual": false into the source if it was trained so',
        )
    kind = draft.text("model_type")
    if case.folder.speculators and kind not in ("", "llama"):
        return f"the layer is {kind[:40]}'s, SGLang's drafter layer is llama's", "serve it with vLLM"
    for name in case.tensors:
        if ".q_norm." in name or ".k_norm." in name:
            return f"{name}: llama_eagle3 has no query and key norms in any version", "serve it with vLLM"
        if name.endswith(("q_proj.bias", "k_proj.bias", "v_proj.bias")):
            return f"{name}: SGLang's drafter has no such bias", "serve it with vLLM, or train without bias"
    return None
