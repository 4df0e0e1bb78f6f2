"""Which kind of draft model a checkpoint is, from its config and its tensors. Pure.

The tensors decide where they can: a config is often copied from another model. What neither tells is not recognised.
Algorithms and the classes of draft models are those of the releases (opsctl/sglang/releases).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from opsctl.drafter import versions as v
from opsctl.drafter.settings import LLAMA, MLA
from opsctl.drafter.versions import Feature, Version


class Kind(Enum):
    """What a checkpoint is to speculative decoding. The value is its name for people."""

    EAGLE = "EAGLE-1/2"
    EAGLE3 = "EAGLE-3"
    EAGLE31 = "EAGLE-3.1"
    PEAGLE = "P-EAGLE"
    MTP = "MTP/NextN"
    DFLASH = "DFlash"
    DOMINO = "Domino"
    DSPARK = "DSpark"
    MODEL = "whole model"
    TARGET = "target model"
    UNKNOWN = "not recognised"

    @property
    def eagle3(self) -> bool:
        """Whether the classes of EAGLE-3 load it, so that their rules hold for it."""
        return self in (Kind.EAGLE3, Kind.EAGLE31)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """Values of --speculative-algorithm that are right for it, the usual one first."""
        return _ALGORITHMS.get(self, ())

    @property
    def since(self) -> Version | None:
        """The first release that runs it; None where none that was read does, or where that is not known."""
        if self in _LATER:
            return _LATER[self].since
        return v.algorithm_since(self.algorithms[0]) if self.algorithms else None


_ALGORITHMS: Mapping[Kind, tuple[str, ...]] = {
    Kind.EAGLE: ("EAGLE",),
    Kind.EAGLE3: ("EAGLE3",),
    Kind.EAGLE31: ("EAGLE3",),
    Kind.MTP: ("NEXTN", "EAGLE", "FROZEN_KV_MTP"),
    Kind.DFLASH: ("DFLASH",),
    Kind.DOMINO: ("DFLASH",),
    Kind.DSPARK: ("DSPARK",),
    Kind.MODEL: ("STANDALONE",),
}
_LATER: Mapping[Kind, Feature] = {Kind.EAGLE31: v.FC_NORM, Kind.DOMINO: v.DOMINO}  # than their algorithm
# speculators_model_type, without `_` and `-`.
_SPECULATORS: Mapping[str, Kind] = {
    "eagle": Kind.EAGLE,
    "eagle3": Kind.EAGLE3,
    "peagle": Kind.PEAGLE,
    "mtp": Kind.MTP,
    "fastmtp": Kind.MTP,
    "dflash": Kind.DFLASH,
    "dflash2": Kind.DFLASH,
    "domino": Kind.DOMINO,
    "dspark": Kind.DSPARK,
    "dsv4dspark": Kind.DSPARK,
    "independent": Kind.MODEL,
}


@dataclass(frozen=True, slots=True)
class Recognised:
    """A kind, and what it was recognised by. Text of unknown origin: escape before printing.

    lacking: the key and number by which a whole model counts layers that draft, of which it has no tensor.
    """

    kind: Kind
    seen: str
    speculators: bool = False
    lacking: str = ""

    @property
    def told(self) -> str:
        """In words, as `a DFlash draft model (architectures DFlashDraftModel)`."""
        name = {
            Kind.MODEL: "a whole model, which drafts for another as STANDALONE",
            Kind.TARGET: "the target model itself, without layers that draft",
            Kind.UNKNOWN: "no kind of draft model that is recognised",
        }.get(self.kind, f"{'an' if self.kind.value[0] in 'EM' else 'a'} {self.kind.value} draft model")
        return f"{name}{' in the layout of speculators' if self.speculators else ''} ({self.seen})"


Shapes = Mapping[str, tuple[int, ...]]

_MASK = re.compile(r"(^|\.)mask_hidden$")
_MIDLAYER = re.compile(r"(^|\.)midlayer\.|(^|\.)layers\.0\.hidden_norm\.")
_PREDICTS = re.compile(r"(^|\.)(eh_proj|enorm|hnorm|mtp|mtp_layers|mtp_block|pre_fc_norm_hidden|shared_head)\.")
_PREDICTING_LAYERS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
_BUNDLED = re.compile(r"^dspark_")
_NORMED = re.compile(r"(^|\.)(fc_norm|aux_norm_(low|mid|high)|fcs)\b")
_QUERY = re.compile(r"(^|\.)layers\.0\.self_attn\.(q_proj|qkv_proj)\.weight$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|tok_embeddings|word_embeddings|wte)\.weight$")
_LAYER = re.compile(r"(^|\.)layers\.\d+\.")
_FC = re.compile(r"(^|\.)fc\.weight$")


def recognise(
    config: Mapping[str, Any] | None,
    shapes: Shapes,
    target: Mapping[str, Any] | None = None,
    *,
    complete: bool = True,
) -> Recognised:
    """The kind of a checkpoint.

    Args:
        config: its config.json; None when it cannot be read.
        shapes: of its tensors, by name.
        target: the config.json of the model that it is to draft for.
        complete: whether `shapes` has all tensors. A whole model has more than are read.
    """
    raw = config or {}
    container = "speculators_model_type" in raw or "speculators_config" in raw
    if container:
        return _of_speculators(raw)
    named = _names(raw)
    said = [f"architectures {', '.join(named)[:80]}"] if named else []
    by_tensors = _by_tensors(raw, shapes)
    by_config = _by_config(raw, named)
    parallel = by_config is not None and by_config[0] is Kind.PEAGLE  # whose tensors may be those of EAGLE-3
    kind, why = (by_config if parallel else by_tensors or by_config) or (Kind.UNKNOWN, "")
    if parallel and (mask := _first(_MASK, shapes)):
        why += f", tensor {mask}"
    if kind is Kind.MODEL or (kind is Kind.UNKNOWN and _whole(shapes)):
        kind, why = _model(raw, named, shapes, target, complete)
    if kind is Kind.EAGLE3 and (extra := _of_31(raw, shapes)):
        kind, why = Kind.EAGLE31, extra
    if kind is Kind.UNKNOWN and not why:
        why = f"tensors {', '.join(list(shapes)[:3])}" if shapes else "no tensors"
        said = said or ["no architectures"]
    lacking = _counted(raw) if kind in (Kind.MODEL, Kind.TARGET) and complete and shapes else ""
    return Recognised(kind, "; ".join(dict.fromkeys([*said, *filter(None, [why])])), lacking=lacking)


def _of_speculators(raw: Mapping[str, Any]) -> Recognised:
    section = raw.get("speculators_config")
    given = raw.get("speculators_model_type") or (section.get("algorithm") if isinstance(section, dict) else None)
    kind = _SPECULATORS.get(re.sub(r"[_-]", "", str(given)).lower(), Kind.UNKNOWN)
    if kind is Kind.DFLASH and _projector(raw) == "domino":
        kind = Kind.DOMINO
    if kind is Kind.EAGLE3 and _of_31(raw, {}):
        kind = Kind.EAGLE31
    return Recognised(kind, f"speculators_model_type {str(given)[:40]}", speculators=True)


def _names(raw: Mapping[str, Any]) -> list[str]:
    given = raw.get("architectures")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    return [name for name in names if isinstance(name, str)]


def _by_tensors(raw: Mapping[str, Any], shapes: Shapes) -> tuple[Kind, str] | None:
    """What names and shapes leave no doubt about."""
    if name := _first(_MASK, shapes):
        return Kind.PEAGLE, f"tensor {name}"
    if (name := _first(_PREDICTS, shapes)) and not _first(_BUNDLED, raw):
        return Kind.MTP, f"tensor {name}"
    if name := _first(_MIDLAYER, shapes):
        return Kind.EAGLE3, f"tensor {name}"
    fc = shapes.get(_first(_FC, shapes), ())
    query = shapes.get(_first(_QUERY, shapes), ())
    if len(fc) == 2 and len(query) == 2 and query[1] == 2 * fc[0]:
        return Kind.EAGLE3, f"self_attn takes {query[1]}, twice the hidden size"
    own = "hidden_norm.weight" in shapes or isinstance(raw.get("dflash_config"), dict)
    if len(fc) == 2 and len(query) == 2 and fc[1] == 2 * fc[0] and query[1] == fc[0] and not own:
        return Kind.EAGLE, f"fc {list(fc)} joins the embedding and one hidden state"
    return None


def _by_config(raw: Mapping[str, Any], named: Iterable[str]) -> tuple[Kind, str] | None:
    """What class and keys say."""
    if raw.get("parallel_drafting") is True:
        return Kind.PEAGLE, "parallel_drafting true"
    text = " ".join(named)
    projector = _projector(raw)
    if projector in ("dspark", "domino"):
        return (Kind.DSPARK if projector == "dspark" else Kind.DOMINO), f"projector_type {projector}"
    for pattern, kind in _CLASSES:
        if pattern.search(text):
            return kind, ""
    if isinstance(raw.get("dflash_config"), dict):
        return Kind.DFLASH, "dflash_config"
    return (Kind.MODEL, "") if _MODEL_CLASS.search(text) else None


_CLASSES = (
    (re.compile(r"P-?Eagle", re.IGNORECASE), Kind.PEAGLE),
    (re.compile(r"DSpark", re.IGNORECASE), Kind.DSPARK),
    (re.compile(r"Domino", re.IGNORECASE), Kind.DOMINO),
    (re.compile(r"DFlash", re.IGNORECASE), Kind.DFLASH),
    (re.compile(r"Eagle-?3", re.IGNORECASE), Kind.EAGLE3),
    (re.compile(r"(NextN|MTP)\b|Gemma4(Unified)?Assistant"), Kind.MTP),
    (re.compile(r"Eagle", re.IGNORECASE), Kind.EAGLE),
)
_MODEL_CLASS = re.compile(r"For(CausalLM|ConditionalGeneration)\b")


def _model(
    raw: Mapping[str, Any], named: list[str], shapes: Shapes, target: Mapping[str, Any] | None, complete: bool
) -> tuple[Kind, str]:
    """A whole model: with layers that predict further tokens, the target itself, or one that drafts on its own."""
    counted = _counted(raw)
    if bundled := _first(_BUNDLED, _text(raw)):
        # With layers that predict as well, the algorithm that is asked for decides which of the two drafts.
        both = filter(None, (bundled, counted.partition(" ")[0]))
        return Kind.UNKNOWN if counted else Kind.DSPARK, f"a whole model with {' and '.join(both)}"
    if counted and not (complete and shapes):
        return Kind.MTP, f"{counted}, in a whole model, whose tensors were not all read"
    if not complete and any(map(v.drafts_since, named)):
        return (
            Kind.UNKNOWN,
            "a whole model; whether it has layers that draft was not seen, its tensors were not all read",
        )
    without = f"{counted}, but no tensor of such a layer" if counted else ""
    if shapes and complete and not _whole(shapes):
        return Kind.UNKNOWN, ""
    if target is not None and _same(raw, target):
        return Kind.TARGET, without
    return Kind.MODEL, without or (f"{len(shapes)} tensors of an ordinary model" if shapes else "")


def _text(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    section = raw.get("text_config")
    return section if isinstance(section, dict) else raw


def _counted(raw: Mapping[str, Any]) -> str:
    """The key by which a model counts the layers that predict further tokens, and their number; "" without any."""
    text = _text(raw)
    return next((f"{k} {text[k]}" for k in _PREDICTING_LAYERS if type(text.get(k)) is int and text[k] > 0), "")


def _same(raw: Mapping[str, Any], target: Mapping[str, Any]) -> bool:
    keys = ("architectures", "model_type", "hidden_size", "num_hidden_layers", "vocab_size", "text_config")
    return all(raw.get(key) == target.get(key) for key in keys)


def _whole(shapes: Shapes) -> bool:
    """Whether these are the tensors of a model that needs no other: an embedding and layers, and nothing to join."""
    return bool(_first(_EMBEDDING, shapes) and _first(_LAYER, shapes) and not _first(_FC, shapes))


def _of_31(raw: Mapping[str, Any], shapes: Shapes) -> str:
    """What only EAGLE-3.1 has: norms of each captured state, or of what is fed to the next step."""
    section = raw.get("eagle_config")
    eagle = section if isinstance(section, dict) else {}
    flag = next((key for key in ("fc_norm", "use_aux_norm", "norm_output") if raw.get(key) or eagle.get(key)), "")
    if flag:
        return f"{flag} true"
    name = _first(_NORMED, shapes)
    return f"tensor {name}" if name else ""


def _projector(raw: Mapping[str, Any]) -> str:
    section = raw.get("dflash_config")
    given = (section.get("projector_type") if isinstance(section, dict) else None) or raw.get("projector_type")
    return given if isinstance(given, str) else ""


def _first(pattern: re.Pattern[str], names: Iterable[str]) -> str:
    return next((name for name in names if pattern.search(name)), "")


def right_class(kind: Kind, *, mla: bool) -> str:
    """The class that SGLang loads an EAGLE head by, where there is one for all of its kind."""
    if kind.eagle3:
        return MLA if mla else LLAMA
    return "LlamaForCausalLMEagle" if kind is Kind.EAGLE else ""
