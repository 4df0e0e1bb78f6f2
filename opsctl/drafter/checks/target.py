"""Checks of the drafter against the target it is served with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from opsctl.drafter import loader
from opsctl.drafter import versions as v
from opsctl.drafter.case import Case, deepseek_like
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version
from opsctl.sglang import releases
from opsctl.sglang.releases import Capture, Target

_CAPTURE = "target-capture"
_IDS = "eagle_config.eagle_aux_hidden_state_layer_ids"


def capture(case: Case, version: Version) -> Iterator[Remark]:
    """Whether this version's class for the target can record hidden states at all. Not the drafter's fault."""
    if case.target is None or case.text is None:
        return
    name = case.target.architecture
    found = v.target(version, name)
    if found is None:
        yield _absent(name, version)
        return
    if not case.records(version):
        yield _unable(name, found, case.text.architecture)
    elif version not in v.AUX_IDS_IN_GRAPHS and case.draft is not None and case.draft.aux_ids is not None:
        default, asked = found.layers(case.text.layers), case.captured(version)
        if asked != default:
            yield Remark(
                _CAPTURE,
                Verdict.DEGRADED,
                _IDS,
                f"SGLang before {v.AUX_IDS_IN_GRAPHS.since} captures CUDA graphs with layers"
                f" {_list(default)} whatever the config"
                f" says; prefill uses {_list(asked)}",
                f"SGLang {v.AUX_IDS_IN_GRAPHS.since} or later, or opsctl patch sglang",
                in_outcome=False,
            )


def _absent(name: str, version: Version) -> Remark:
    """A class of which nothing is known on this version."""
    having = v.with_class(name)
    if version not in releases.known():
        detail = f"{name[:80]} was not read in SGLang {version}, so whether it records hidden states is not known"
        remedy = "opsctl drafter check --host reads the source that serves"
        return Remark(_CAPTURE, Verdict.NOT_JUDGED, name, detail, remedy, in_outcome=False)
    if not having:
        detail = f"{name[:80]} is not among the model classes of SGLang {releases.known()[0]} to {releases.known()[-1]}"
        detail += ": not recognised"
        remedy = "see `architectures` in the target's config.json"
        return Remark(_CAPTURE, Verdict.NOT_JUDGED, name, detail, remedy, in_outcome=False)
    if version < having[0]:
        why, remedy = f"SGLang before {having[0]} has no {name}", _later(name)
    else:
        last = max(one for one in having if one < version)
        why, remedy = f"SGLang after {last} has no {name}", f"SGLang {last}"
    return Remark(_CAPTURE, Verdict.LOAD_ERROR, name, why, remedy, in_outcome=False)


def _unable(name: str, found: Target, text: str) -> Remark:
    """A class that does not record, or of which that cannot be told."""
    verdict, remedy = Verdict.LOAD_ERROR, _later(name)
    match found.capture:
        case Capture.UNKNOWN:
            verdict, why = Verdict.NOT_JUDGED, f"whether it records hidden states cannot be told: {found.why}"
        case Capture.NO_EFFECT:
            verdict, why = Verdict.RUNTIME_ERROR, f"{found.why}: ValueError at the first prefill"
        case Capture.DEPENDS if not text:
            verdict, why = Verdict.NOT_JUDGED, "records hidden states only around some language models"
        case Capture.DEPENDS:
            why = f"does not record hidden states around {text}"
        case _:
            why = f"{found.why}: AttributeError after the target is loaded"
    if found.around:
        why += f"; it does around {', '.join(found.around)}"
    if found.capture is Capture.PATCH and (not found.around or text in ("", *found.around)):
        patch = f"opsctl patch sglang --for-target {name}"
        remedy = f"{remedy}, or {patch}" if v.capturing(name) else patch
    return Remark(_CAPTURE, verdict, name, f"{name} {why}", remedy, in_outcome=False)


def _later(name: str) -> str:
    since = v.capturing(name)
    return (
        f"SGLang {since} or later" if since else f"no release up to {releases.known()[-1]} does; serve another target"
    )


def known(case: Case, version: Version) -> Iterator[Remark]:
    """What is left out when nothing is known of the target."""
    if case.target is None:
        detail = "not given: vocabulary, hidden size, aux layers, dtype and context length were not compared with it"
        yield Remark("target", Verdict.NOTE, "target", detail, "--target FOLDER")


def vocabulary(case: Case, version: Version) -> Iterator[Remark]:
    """Row 13: one vocabulary."""
    if case.draft is None or case.text is None or not case.draft.vocab or not case.text.vocab:
        return
    eagle3 = case.recognised.kind.eagle3
    if case.draft.vocab != case.text.vocab:
        yield Remark(
            "vocab-size",
            Verdict.SILENT_GARBAGE,
            "vocab_size",
            f"{case.draft.vocab}, but the target has {case.text.vocab}: "
            + ("the shared embedding is cut in other places" if eagle3 else "its tokens are not the target's"),
            "use a drafter trained for this target and tokenizer",
        )


def embedding(case: Case, version: Version) -> Iterator[Remark]:
    """An embedding that the draft model brings, and that the server replaces by the target's."""
    if case.draft is None or case.draft.own_embedding or not case.builds(version):
        return
    filled = next((f for f in case.load(version).filled if f.slot.name == "embed_tokens.weight"), None)
    if filled is None:
        return
    why = "the server puts the target's embedding in its place"
    found = case.embedding
    if found is None:
        detail = f"{why}; whether they differ was not seen"
        remedy = "--target FOLDER, with the target's weights in it, compares them"
        yield Remark("own-embedding", Verdict.NOTE, filled.tensor.name, detail, remedy)
    elif found.same:
        yield Remark("own-embedding", Verdict.NOTE, filled.tensor.name, f"{why}: {found}")
    else:
        detail = f"{why}, and {found}: the draft model was trained on other numbers (vllm #27732 read 1.32 for 2.49)"
        remedy = "train with the target's embedding frozen, or serve it where the draft model keeps its own (vLLM)"
        yield Remark("own-embedding", Verdict.DEGRADED, filled.tensor.name, detail, remedy)


def hidden(case: Case, version: Version) -> Iterator[Remark]:
    """Row 14: the width of the captured states."""
    draft, text = case.draft, case.text
    if draft is None or text is None or not draft.hidden or not text.hidden or not case.builds(version):
        return
    if draft.target_hidden != text.hidden:
        key = "target_hidden_size" if draft.integer("target_hidden_size") else "hidden_size"
        loaded = case.load(version)
        remedy = "use a drafter trained for this target"
        if loaded.captured_width == loader.aux_count(draft, version) * text.hidden:
            if loaded.width == draft.hidden:
                return  # `fc` does not fit what is built either, which names the key that is missing
            right = key if loaded.width == text.hidden else "target_hidden_size"
            remedy = f'"{right}": {text.hidden}, as fc and the norms have it'
        yield Remark(
            "target-hidden",
            Verdict.RUNTIME_ERROR,
            key,
            f"{draft.target_hidden}, but the target's hidden size is {text.hidden}: fc cannot"
            " multiply the captured states",
            remedy,
        )


def aux_layers(case: Case, version: Version) -> Iterator[Remark]:
    """Rows 16 to 19: which layers are captured, and whether those are meant."""
    draft, text = case.draft, case.text
    if draft is None or text is None or not text.integer("num_hidden_layers") or not case.builds(version):
        return
    n, layers, ids = text.layers, case.captured(version), draft.aux_ids
    recorded = sorted({layer for layer in layers if 0 <= layer < n + case.captures_last(version)})
    count = loader.aux_count(draft, version)
    if len(recorded) != count or count * draft.target_hidden == draft.hidden:
        yield _narrow(draft, layers, recorded, count, n)
        return
    if 0 in layers and deepseek_like(text) and version not in v.LAYER_0_CAPTURE:
        detail = f"captures the input of layer 0, which SGLang before {v.LAYER_0_CAPTURE.since} cannot: TypeError"
        remedy = f"SGLang {v.LAYER_0_CAPTURE.since} or later"
        yield Remark("aux-layers", Verdict.RUNTIME_ERROR, "aux hidden states", detail, remedy)
    if case.records(version):
        yield _captured(layers)
    if ids is None:
        yield from _misplaced(draft, layers)
        return
    if case.folder.speculators:
        yield from _converted(ids, layers)
        return
    meant = _meant(ids, n)
    key = "eagle_config.eagle_aux_hidden_state_layer_ids"
    if meant is None:
        if layers != (2, n // 2, n - 3):
            detail = (
                f"{_list(ids)}: input or output style cannot be told; this version takes the input of"
                f" layers {_list(layers)}"
            )
            yield Remark("aux-convention", Verdict.NOTE, key, detail)
    elif layers != meant:
        yield Remark(
            "aux-convention",
            Verdict.DEGRADED,
            key,
            f"{_list(ids)} are ids in input style: this version shifts them by one and takes the"
            f" input of layers {_list(layers)}"
            f" instead of {_list(meant)}",
            f'"eagle_aux_hidden_state_layer_ids": {_list([i - 1 for i in meant])} (output style, for all versions)',
        )


def _converted(ids: Sequence[int], layers: Sequence[int]) -> Iterator[Remark]:
    """Whether the ids of a speculators config still mean the same layers once they are in SGLang's style."""
    meant = [i + 1 for i in ids]
    if list(layers) != meant:
        yield Remark(
            "aux-convention",
            Verdict.DEGRADED,
            "eagle_aux_hidden_state_layer_ids",
            f"{_list(meant)} become {_list(ids)} when converted; this version takes ids that do not begin with 1 as"
            f" they are written, so the input of layers {_list(layers)}",
            f'"eagle_aux_hidden_state_layer_ids": {_list(meant)} in eagle_config of the result, for this version',
        )


def _captured(layers: Sequence[int]) -> Remark:
    outputs = _list([layer - 1 for layer in layers])
    detail = f"the server captures the output of layers {outputs} (the input of {_list(layers)})"
    return Remark("aux-layers", Verdict.NOTE, "aux hidden states", detail)


def _narrow(draft: Settings, layers: Sequence[int], recorded: Sequence[int], count: int, n: int) -> Remark:
    key = "eagle_config.eagle_aux_hidden_state_layer_ids"
    width = len(recorded) * draft.target_hidden
    if len(recorded) == count:
        detail = f"states of {count} layer(s) are {width} wide, which is the hidden size, so fc is skipped"
        return Remark(
            "aux-layers", Verdict.SILENT_GARBAGE, key, detail, "train with more aux layers, or with another engine"
        )
    detail = (
        f"of layers {_list(layers)} the target (layers 0..{n - 1}) records {len(recorded)}, fc"
        f" takes {count}: states are {width}"
        f" wide instead of {count * draft.target_hidden}"
    )
    remedy = "name as many layers of the target as fc was trained with"
    if width == draft.hidden:
        return Remark(
            "aux-layers", Verdict.SILENT_GARBAGE, key, f"{detail}; that is the hidden size, so fc is skipped", remedy
        )
    return Remark("aux-layers", Verdict.RUNTIME_ERROR, key, f"{detail}: shape error at warm-up", remedy)


def _misplaced(draft: Settings, layers: Sequence[int]) -> Iterator[Remark]:
    top = draft.aux_ids_at_top
    if top is None:
        return
    same = top == tuple(layers) or tuple(i + 1 for i in top) == tuple(layers)
    yield Remark(
        "aux-place",
        Verdict.NOTE if same else Verdict.DEGRADED,
        "eagle_aux_hidden_state_layer_ids",
        f"{_list(top)} at the top level is ignored for capture; the default is used: the input of"
        f" layers {_list(layers)}" + (", which are the same layers" if same else ""),
        "move the key into eagle_config",
    )


def _meant(ids: Sequence[int], n: int) -> tuple[int, ...] | None:
    """Layers whose input the trainer took, if the style can be told: output starts at 1, input is 2 to n-3."""
    if ids and ids[0] == 1:
        return tuple(i + 1 for i in ids)
    if ids and ids[0] == 2 and ids[-1] == n - 3:
        return tuple(ids)
    return None


def _list(ids: Sequence[int]) -> str:
    return "[" + ", ".join(map(str, ids[:12])) + (", ...]" if len(ids) > 12 else "]")


def provenance(case: Case, version: Version) -> Iterator[Remark]:
    """Row 37: trained for this target? Models of one family have the same shapes."""
    raw = case.folder.raw_config
    if raw is None or case.target is None:
        return
    section = raw.get("speculators_config")
    verifier = section.get("verifier") if isinstance(section, dict) else None
    if not isinstance(verifier, dict):
        return
    names = verifier.get("architectures")
    trained = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    if trained and case.target.architecture and trained != case.target.architecture:
        yield Remark(
            "provenance",
            Verdict.NOTE,
            "speculators_config.verifier",
            f"trained for {trained[:60]} ({str(verifier.get('name_or_path'))[:80]}), the target"
            f" is {case.target.architecture};"
            " shapes cannot tell them apart",
            "compare the mapping with a drafter known to fit: opsctl drafter compare",
        )


def attention(case: Case, version: Version) -> Iterator[Remark]:
    """Row 38: the drafter inherits the target's attention backend."""
    if case.draft is None or case.text is None or case.draft.mla or not deepseek_like(case.text):
        return
    if case.class_known(version):
        yield Remark(
            "attention-backend",
            Verdict.NOTE,
            "--speculative-draft-attention-backend",
            "the target uses MLA, the drafter does not: where the target's backend is trtllm_mla"
            " (B200, GB300) the start fails",
            "on such hosts: --speculative-draft-attention-backend trtllm_mha",
        )


def multimodal(case: Case, version: Version) -> Iterator[Remark]:
    """Row 42: a server fault that looks like a drafter fault."""
    since, until = Version(0, 5, 10), Version(0, 5, 14)
    if case.target is not None and case.target.section("vision_config") and since <= version < until:
        detail = (
            "batches with images: the last token is embedded wrongly for all requests but the last (#27647, #27846)"
        )
        yield Remark("multimodal-batches", Verdict.NOTE, "target", detail, f"SGLang {until} or later", in_outcome=False)
