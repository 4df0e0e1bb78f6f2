"""Checks of config.json by itself: keys and flags."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version

_NEEDED = ("hidden_size", "num_attention_heads", "vocab_size")
_MAY_BE_NULL = ("num_key_value_heads", "head_dim")
_NEEDED_MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def keys(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 5, 6 and 7: keys the class cannot do without."""
    draft = case.draft
    if draft is None:
        return
    needed = (*_NEEDED, draft.intermediate_key) + (_NEEDED_MLA if draft.mla else ())
    bad = [key for key in needed if (draft.integer(key) or 0) <= 0]
    bad += [key for key in _MAY_BE_NULL if draft.raw.get(key) is not None and (draft.integer(key) or 0) <= 0]
    absent = [key for key in needed if key not in draft.raw and key not in bad]
    if absent:
        detail = ", ".join(f"{key} = {draft.integer(key)}" for key in absent)
        yield Remark("config-keys", Verdict.NOTE, absent[0], f"absent, so transformers takes its default: {detail}")
    if bad:
        detail = f"no positive integer: {', '.join(f'{key}={draft.raw.get(key)!r:.40}' for key in bad)}"
        yield Remark(
            "config-keys", Verdict.LOAD_ERROR, bad[0], detail, "copy them from the config the drafter was trained with"
        )
    if not case.builds(version):
        return
    if not draft.mla and "draft_vocab_size" not in draft.raw:
        yield Remark(
            "draft-vocab-size",
            Verdict.LOAD_ERROR,
            "draft_vocab_size",
            "the key is absent: AttributeError when the class is built",
            f'"draft_vocab_size": {_head_rows(case)} (the rows of lm_head), or null to borrow the head of the target',
        )
    rows = draft.raw.get("draft_vocab_size")
    if rows is not None and (draft.integer("draft_vocab_size") or 0) <= 0:
        detail = f"{rows!r:.40}: no positive integer, so no head can be built"
        remedy = f'"draft_vocab_size": {_head_rows(case)} (the rows of lm_head)'
        yield Remark("draft-vocab-size", Verdict.LOAD_ERROR, "draft_vocab_size", detail, remedy)
    yield from _eagle_section(case, version)
    ids = draft.eagle.get("eagle_aux_hidden_state_layer_ids")
    if ids is not None and draft.aux_ids is None:
        detail, key = f"{ids!r:.60}: not a list of whole numbers", "eagle_config.eagle_aux_hidden_state_layer_ids"
        yield Remark("aux-layers", Verdict.LOAD_ERROR, key, detail, "list the layer numbers")
    if draft.layers < 1 or (draft.layers > 1 and (draft.mla or version not in v.MULTI_LAYER)):
        limit = "this class has one layer" if draft.mla else f"several layers need SGLang {v.MULTI_LAYER.since}"
        given = "" if "num_hidden_layers" in draft.raw else " (absent, so the default of transformers)"
        detail = f"{draft.layers}{given}: ValueError 'EAGLE3 currently only supports 1 layer'; {limit}"
        remedy = '"num_hidden_layers": 1, if the checkpoint has one'
        if draft.layers > 1 and not draft.mla:
            remedy += f"; else SGLang {v.MULTI_LAYER.since}"
        yield Remark("num-hidden-layers", Verdict.LOAD_ERROR, "num_hidden_layers", detail, remedy)
    if not draft.mla and "target_hidden_size" in draft.raw and (draft.integer("target_hidden_size") or 0) <= 0:
        detail = f"{draft.raw['target_hidden_size']!r:.40}: the width of fc is computed from it"
        yield Remark(
            "target-hidden-size", Verdict.LOAD_ERROR, "target_hidden_size", detail, "remove the key, or give the number"
        )


def _eagle_section(case: Case, version: Version) -> Iterator[Remark]:
    raw = case.draft.raw if case.draft is not None else {}
    section = raw.get("eagle_config", {})
    if isinstance(section, dict):
        return
    if not section and version in v.NULL_EAGLE_CONFIG:
        return
    detail = f"{section!r:.40}: not an object; AttributeError when the draft worker asks it for use_aux_hidden_state"
    yield Remark("eagle-config", Verdict.LOAD_ERROR, "eagle_config", detail, "remove the key, or make it an object")


def _head_rows(case: Case) -> str:
    rows = [t.shape[0] for name, t in case.tensors.items() if name.endswith("lm_head.weight") and t.shape]
    return str(rows[0]) if rows else "N"


def tied(case: Case, version: Version) -> Iterator[Remark]:
    """Row 10: the head must be the drafter's own."""
    draft = case.draft
    if draft is None or not draft.tied:
        return
    own = next((t for name, t in case.tensors.items() if name.endswith("lm_head.weight")), None)
    target_tied = case.target is not None and (case.target.tied or case.target.target_text.tied)
    if own is None and target_tied:
        return
    had = (
        f"the checkpoint's head [{own.shape[0] if own.shape else 0} rows] is skipped" if own else "there is no own head"
    )
    yield Remark(
        "tied-embeddings",
        Verdict.SILENT_GARBAGE,
        "tie_word_embeddings",
        f"true: the head becomes the embedding ({draft.vocab} rows), {had}; drafted ids index past the mapping",
        '"tie_word_embeddings": false',
    )


def borrowed(case: Case, version: Version) -> Iterator[Remark]:
    """Row 7: a head can only be borrowed by a drafter as wide as the target."""
    draft = case.draft
    if draft is None or draft.tied or not (draft.headless and draft.own_embedding) or not case.builds(version):
        return
    detail = (
        f"null borrows the target's head and embedding, {draft.target_hidden} wide, for a drafter {draft.hidden} wide:"
        " shape error at the first draft step"
    )
    remedy = f'add the head and the embedding of training, and "draft_vocab_size": {_head_rows(case)}'
    yield Remark("borrowed-head", Verdict.RUNTIME_ERROR, "draft_vocab_size", detail, remedy)


def aux_switch(case: Case, version: Version) -> Iterator[Remark]:
    """Row 20: hidden states must be used."""
    if case.draft is not None and not case.draft.eagle.get("use_aux_hidden_state", True):
        yield Remark(
            "use-aux-hidden-state",
            Verdict.SILENT_GARBAGE,
            "eagle_config.use_aux_hidden_state",
            f"{case.draft.eagle['use_aux_hidden_state']!r:.20}: the target captures nothing and fc is skipped,"
            " accept len about 1.00",
            '"use_aux_hidden_state": true in eagle_config',
        )


def features(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 28, 29 and 30: features a trainer can switch on and a server may not have."""
    draft = case.draft
    if draft is None:
        return
    if draft.flag("norm_before_residual"):
        yield Remark(
            "norm-before-residual",
            Verdict.LOAD_ERROR if case.folder.speculators else Verdict.SILENT_GARBAGE,
            "norm_before_residual",
            "true: the residual was trained on normalised states; no SGLang version implements"
            " it, so it cannot be converted",
            "train with norm_before_residual false, or serve with vLLM",
        )
    if case.folder.speculators and draft.text("model_type") not in ("", "llama"):
        kind = draft.text("model_type")
        yield Remark(
            "layer-type",
            Verdict.LOAD_ERROR,
            "transformer_layer_config.model_type",
            f"{kind[:40]}: SGLang's drafter layer is llama's, so it cannot be converted",
            "train with a llama layer, or serve with vLLM",
        )
    if (
        draft.flag("norm_output")
        and version not in (v.FC_NORM_MLA if draft.mla else v.FC_NORM)
        and case.builds(version)
    ):
        since = (v.FC_NORM_MLA if draft.mla else v.FC_NORM).since
        detail = f"true, but SGLang before {since} feeds the un-normed state to the next draft step"
        yield Remark("norm-output", Verdict.DEGRADED, "norm_output", detail, f"SGLang {since} or later")
