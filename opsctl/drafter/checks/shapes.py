"""Checks of tensor shapes against what the server builds from the config."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.loader import Filled, Fit, How, Loaded
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version


def shapes(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 9, 16, 21 and 22: each tensor in its slot, worst over all ranks."""
    draft = case.draft
    if draft is None or not case.builds(version):
        return
    loaded = case.load(version)
    groups: dict[tuple[str, Verdict, str], list[tuple[Filled, str]]] = defaultdict(list)
    for filled in loaded.filled:
        if filled.fit is Fit.EXACT or (filled.slot.name == "lm_head.weight" and not draft.draft_vocab):
            continue
        name = filled.slot.name.rsplit(".", 2)[-2]
        verdict, effect = _effect(filled, loaded)
        groups[_check(name), verdict, _remedy(name, filled, case, loaded)].append((filled, effect))
    for (check, verdict, remedy), found in groups.items():
        yield Remark(check, verdict, found[0][0].tensor.name, _detail(found), remedy)


def _detail(found: list[tuple[Filled, str]]) -> str:
    (first, effect), *rest = found
    facts = (
        f"{list(first.tensor.shape)} in the file, {list(first.slot.shape)} by config.json = {first.slot.why}: {effect}"
    )
    others = "; ".join(f"{f.tensor.name} {list(f.tensor.shape)} for {list(f.slot.shape)}" for f, _ in rest)
    return f"{facts}. Likewise {others}" if others else facts


def _effect(filled: Filled, loaded: Loaded) -> tuple[Verdict, str]:
    if filled.fit is Fit.FAILS:
        short = filled.slot.how is How.COLUMN and filled.tensor.shape[1:] == filled.slot.shape[1:]
        where = ", on the ranks past the end of the rows" if short else ""
        return Verdict.LOAD_ERROR, f"the loader raises{where}"
    if filled.fit is Fit.CUT:
        return Verdict.SILENT_GARBAGE, "the rest is cut off without a word"
    mlp = [f for f in loaded.filled if f.slot.name.startswith(filled.slot.name.partition("mlp.")[0] + "mlp.")]
    sizes = {f.tensor.shape[1 if "down_proj" in f.slot.name else 0] for f in mlp}
    if filled in mlp and len(mlp) == 3 and len(sizes) == 1:
        return Verdict.NOTE, "padded with zeros in all three projections, which changes no result but wastes work"
    return Verdict.SILENT_GARBAGE, "padded with zeros without a word"


_CHECKS = {"fc": "fc-width", "lm_head": "lm-head-rows", "embed_tokens": "embed-tokens-shape"}


def _check(name: str) -> str:
    return _CHECKS.get(name, "tensor-shape")


def _remedy(name: str, filled: Filled, case: Case, loaded: Loaded) -> str:
    s = case.draft
    assert s is not None
    if loaded.width not in (0, s.hidden):
        return f'"hidden_size": {loaded.width}, the size of all norms'
    rows, columns = (*filled.tensor.shape, 0, 0)[:2]
    right_width = columns == (filled.slot.shape[1] if len(filled.slot.shape) == 2 else 0)
    if name in ("q_proj", "o_proj", "k_proj", "v_proj") and (right_width or (name == "o_proj" and rows == s.hidden)):
        remedy = _heads(s, loaded)
        if remedy:
            return remedy
    if name == "lm_head" and columns == s.hidden:
        return f'"draft_vocab_size": {rows}, if d2t has {rows} entries too'
    if name == "fc" and rows == s.hidden and (remedy := _states(columns, filled.slot.shape[-1], s, case.text)):
        return remedy
    if name in ("gate_proj", "up_proj") and columns == s.hidden:
        return f'"{s.intermediate_key}": {rows}'
    if name == "down_proj" and rows == s.hidden:
        return f'"{s.intermediate_key}": {columns}'
    if name in ("q_proj", "k_proj", "v_proj") and columns * 2 == filled.slot.shape[1]:
        return "the inputs are one hidden size wide: not an EAGLE-3 drafter (EAGLE-1, or a plain model)"
    return "correct config.json to the sizes the drafter was trained with"


def _states(columns: int, built: int, s: Settings, text: Settings | None) -> str:
    """How many states, and how wide ones, `fc` takes: it has the product alone, which the target tells apart."""
    if not s.target_hidden:
        return ""
    count = built // s.target_hidden
    layers = columns // s.target_hidden if columns % s.target_hidden == 0 else 0
    width = columns // count if count and columns % count == 0 else 0
    wider = f'"target_hidden_size": {width}'
    more = f"name {layers} aux layers in eagle_config; other counts than 3 need SGLang {v.FREE_AUX_COUNT.since}"
    if width and text is not None and text.hidden == width:
        missing = "" if "target_hidden_size" in s.raw else " and config.json lacks"
        return f"{wider}, as the target has it{missing}"
    if layers and text is not None and text.hidden == s.target_hidden:
        return more
    if layers and width:
        sizes = f"{columns} = {layers} x {s.target_hidden} = {count} x {width}"
        told = "" if text is not None else "; --target FOLDER tells which"
        return f"{sizes}: {wider} if the target is so wide, else {more}{told}"
    return more if layers else f"{wider}, if the target it was trained for is so wide" if width else ""


def _heads(s: Settings, loaded: Loaded) -> str:
    """The head sizes that the rows of q and k agree on."""
    rows = {f.slot.name.rsplit(".", 2)[-2]: f.tensor.shape[0] for f in loaded.filled if len(f.tensor.shape) == 2}
    q, k = rows.get("q_proj", 0), rows.get("k_proj", 0)
    if not (q and k and s.heads and s.kv_heads and s.head_dim):
        return ""
    if q % s.heads == 0 and k % s.kv_heads == 0 and q // s.heads == k // s.kv_heads:
        given = "" if s.integer("head_dim") else f" (not given, so {s.head_dim} was taken)"
        return f'"head_dim": {q // s.heads}{given}'
    if q % s.head_dim == 0 and k % s.head_dim == 0:
        heads, kv_heads = q // s.head_dim, k // s.head_dim
        return f'"num_attention_heads": {heads}, "num_key_value_heads": {kv_heads}, "head_dim": {s.head_dim}'
    return ""
