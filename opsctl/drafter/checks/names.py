"""Checks of tensor names: which find a slot in the server's class, and which slots stay empty."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

from opsctl.drafter import loader
from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.folder import Tensor
from opsctl.drafter.loader import Slot
from opsctl.drafter.verdict import Remark, Verdict, worst
from opsctl.drafter.versions import Version

_BIAS = re.compile(r"\.bias$")
_QK_NORM = re.compile(r"\.(q_norm|k_norm)\.")
_FC_NORM = re.compile(r"(^|\.)(fc_norm|aux_norm_(low|mid|high)|fcs)\b")
_INPUT_NORM = re.compile(r"(^|\.)input_norm\.")
_ALIAS = re.compile(r"draft_id_to_target|draft_to_target|selected_token_ids|token_map|hot_token", re.IGNORECASE)


def names(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 24 to 29: names without a slot."""
    if case.draft is None or not case.builds(version):
        return
    loaded = case.load(version)
    empty = {slot.name: slot for slot in loaded.empty}
    renamed: dict[str, list[tuple[Tensor, Slot]]] = defaultdict(list)
    groups: dict[str, list[Tensor]] = defaultdict(list)
    for tensor in loaded.unused:
        if case.draft.tied and tensor.name.endswith("lm_head.weight"):
            continue  # told where the tie is
        slot = _meant(tensor.name, empty)
        if slot is not None:
            renamed[_prefix(tensor.name, slot)].append((tensor, slot))
        else:
            groups[_kind(tensor.name)].append(tensor)
    for prefix, pairs in renamed.items():
        yield _unreached(prefix, pairs, case.draft.mla)
    for kind, tensors in groups.items():
        yield from _KINDS[kind](case, version, tensors)


def missing(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 8, 15 and 25: slots that nothing fills."""
    if case.draft is None or not case.builds(version):
        return
    loaded = case.load(version)
    meant = {tail for tensor in loaded.unused for tail in _tails(tensor.name)}
    meant |= {loader.slot_name(name, case.draft.mla, version) for name in case.lost}  # told as missing shards
    empty = [slot for slot in loaded.empty if slot.required and slot.name not in meant]
    for slot in list(empty):
        if slot.name == "lm_head.weight":
            empty.remove(slot)
            yield Remark(
                "lm-head-missing",
                Verdict.SILENT_GARBAGE,
                slot.name,
                f"missing, and not borrowed because draft_vocab_size is {case.draft.draft_vocab}: the head stays"
                " uninitialised memory",
                'add the tensor; for a full-vocabulary drafter "draft_vocab_size": null borrows the head of the target',
            )
        elif slot.name == "embed_tokens.weight":
            empty.remove(slot)
            yield Remark(
                "embed-tokens-missing",
                Verdict.SILENT_GARBAGE,
                slot.name,
                f"missing, and cannot be shared: hidden_size {case.draft.hidden} differs from the target's"
                f" {case.draft.target_hidden}; the embedding stays uninitialised",
                "add embed_tokens.weight from training",
            )
    norms = [slot for slot in empty if slot.norm]
    others = [slot for slot in empty if not slot.norm]
    if others:
        yield _absent(others, Verdict.SILENT_GARBAGE, "stay uninitialised memory")
    if norms:
        yield _absent(norms, Verdict.DEGRADED, "stay at 1.0")


def _absent(slots: list[Slot], verdict: Verdict, effect: str) -> Remark:
    listed = ", ".join(slot.name for slot in slots[:4]) + (", ..." if len(slots) > 4 else "")
    return Remark(
        "tensor-missing",
        verdict,
        slots[0].name,
        f"{len(slots)} expected tensor(s) not in the checkpoint: {listed}; they {effect}, and nothing reports it",
        "get the complete checkpoint",
    )


def _normal(name: str) -> str:
    return re.sub(r"(^|\.)layers\.0\.", r"\1midlayer.", name)


def _tails(name: str) -> list[str]:
    """The name and what is left of it without its first parts; no slot has more than six parts."""
    parts = _normal(name).split(".")[-6:]
    whole = [_normal(name)] if len(parts) == 6 else []
    return whole + [".".join(parts[i:]) for i in range(len(parts))]


def _meant(name: str, empty: dict[str, Slot]) -> Slot | None:
    """The empty slot a skipped name was made for."""
    return next((empty[tail] for tail in _tails(name) if tail in empty), None)


def _prefix(name: str, slot: Slot) -> str:
    before = _normal(name).removesuffix(slot.name)
    return before or "layers.0."


def _unreached(prefix: str, pairs: list[tuple[Tensor, Slot]], mla: bool) -> Remark:
    verdict = worst([Verdict.DEGRADED if slot.norm else Verdict.SILENT_GARBAGE for _, slot in pairs if slot.required])
    if verdict is Verdict.OK:
        verdict = Verdict.NOTE
    if prefix == "layers.0." and not mla:
        why, remedy = (
            f"SGLang before {v.LAYERS_0_NAMES.since} drops layers.0.* without a word",
            "rename layers.0. to midlayer.",
        )
        remedy += ", or use a later SGLang"
    else:
        why, remedy = f"no parameter has a name with the prefix {prefix}, they are dropped", f"rename: remove {prefix}"
    detail = f"{len(pairs)} tensor(s) as {pairs[0][0].name}: {why}; the weights stay uninitialised"
    return Remark("tensor-names", verdict, f"{prefix}*", detail, remedy)


def _kind(name: str) -> str:
    for kind, pattern in (
        ("bias", _BIAS),
        ("qk-norm", _QK_NORM),
        ("fc-norm", _FC_NORM),
        ("input-norm", _INPUT_NORM),
        ("alias", _ALIAS),
    ):
        if pattern.search(name):
            return kind
    return "other"


def _listed(tensors: list[Tensor]) -> str:
    return ", ".join(t.name for t in tensors[:3]) + (", ..." if len(tensors) > 3 else "")


def _bias(case: Case, version: Version, tensors: list[Tensor]) -> Iterator[Remark]:
    assert case.draft is not None
    switch = not case.draft.mla and all(t.name.endswith("o_proj.bias") for t in tensors)
    why = "config.json has no attention_bias" if switch else "the drafter's projections are built without bias"
    remedy = '"attention_bias": true' if switch else "train without bias; SGLang has none for query, key and value"
    read = [(case.samples.get(t.name), t) for t in tensors]
    zero = all(s is not None and s.blocks == s.zero_blocks and s.size == t.end - t.start for s, t in read)
    yield Remark(
        "bias",
        Verdict.NOTE if zero else Verdict.DEGRADED,
        tensors[0].name,
        f"{len(tensors)} bias tensor(s) ({_listed(tensors)}) are skipped: {why}"
        + ("; all of them are zero" if zero else ""),
        "" if zero else remedy,
    )


def _qk_norm(case: Case, version: Version, tensors: list[Tensor]) -> Iterator[Remark]:
    yield Remark(
        "qk-norm",
        Verdict.LOAD_ERROR if case.folder.speculators else Verdict.SILENT_GARBAGE,
        tensors[0].name,
        f"{_listed(tensors)}: llama_eagle3 has no slot for query and key norms in any version; not convertible",
        "train with a llama layer without q_norm/k_norm, or serve with vLLM",
    )


def _fc_norm(case: Case, version: Version, tensors: list[Tensor]) -> Iterator[Remark]:
    assert case.draft is not None
    since = (v.FC_NORM_MLA if case.draft.mla else v.FC_NORM).since
    if version < since:
        why, remedy = f"SGLang before {since} has no norm before fc", f"SGLang {since} or later"
    elif loader.fc_norm(case.draft, version):
        why, remedy = "the slots are fc_norm.0, fc_norm.1 and so on", "rename them to fc_norm.N.weight"
    else:
        why, remedy = "config.json has no fc_norm flag", '"fc_norm": true'
    detail = f"{_listed(tensors)} are skipped: {why}"
    yield Remark("fc-norm", Verdict.SILENT_GARBAGE, tensors[0].name, detail, remedy)


def _input_norm(case: Case, version: Version, tensors: list[Tensor]) -> Iterator[Remark]:
    since = v.NORM_BEFORE_FC.since
    old = version < since
    yield Remark(
        "norm-before-fc",
        Verdict.DEGRADED,
        tensors[0].name,
        "skipped: "
        + (f"SGLang before {since} has no norm_before_fc" if old else "config.json has no norm_before_fc flag"),
        f"SGLang {since} or later" if old else '"norm_before_fc": true',
    )


def _alias(case: Case, version: Version, tensors: list[Tensor]) -> Iterator[Remark]:
    yield Remark(
        "mapping-name",
        Verdict.NOTE if case.d2t is not None else Verdict.SILENT_GARBAGE,
        tensors[0].name,
        "looks like a token map, but SGLang only takes tensors with d2t in their name",
        "store it as d2t, in offsets: d2t[i] = target_id - i",
    )


def _other(case: Case, version: Version, tensors: list[Tensor]) -> Iterator[Remark]:
    yield Remark("tensor-unused", Verdict.NOTE, tensors[0].name, f"{len(tensors)} tensor(s) unused: {_listed(tensors)}")


_KINDS = {
    "bias": _bias,
    "qk-norm": _qk_norm,
    "fc-norm": _fc_norm,
    "input-norm": _input_norm,
    "alias": _alias,
    "other": _other,
}
