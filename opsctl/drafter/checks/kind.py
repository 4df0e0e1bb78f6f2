"""Checks of what the draft model is: its kind, the algorithm it is started with, and the class it is loaded by."""

from __future__ import annotations

from collections.abc import Iterator

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.kind import Kind, right_class
from opsctl.drafter.settings import MLA
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version

_FLAG = "--speculative-algorithm"
_LEFT_OUT = "class, names, shapes, vocabulary mapping and captured layers were not judged: those rules are EAGLE-3's"


def draft_kind(case: Case, version: Version) -> Iterator[Remark]:
    """What it is, where it is not EAGLE-3: whether this version runs it, and that most checks do not apply."""
    found = case.recognised
    kind = found.kind
    if kind.eagle3:
        return
    verdict, flag = Verdict.NOT_JUDGED, "".join(kind.algorithms[:1])
    if kind is Kind.PEAGLE:
        why = f"drafts in parallel, which no SGLang release up to {v.KNOWN[-1]} does"
        remedy = "serve it with vLLM, or use an EAGLE-3 draft model"
        verdict = Verdict.UNSUPPORTED if version <= v.KNOWN[-1] else verdict
    elif kind is Kind.TARGET:
        why, remedy = "names no draft model", "name the folder of a draft model"
    elif kind is Kind.UNKNOWN:
        why, remedy = "nothing of it was judged but the files", "see what it was trained as, and with which algorithm"
    else:
        since = _since(case)
        why = f"SGLang runs it with {_FLAG} {flag}, from {since} on"
        remedy = f"start it with {_FLAG} {flag}"
        if version < since:
            verdict, remedy = Verdict.UNSUPPORTED, f"SGLang {since} or later, with {_FLAG} {flag}"
        elif found.speculators:
            remedy = "get it from its producer in a layout that SGLang reads: only EAGLE-3 is converted"
    rest = "" if kind is Kind.UNKNOWN else f"; {_LEFT_OUT}"
    yield Remark("draft-kind", verdict, "draft model", f"{found.told}: {why}{rest}", remedy)


def _since(case: Case) -> Version:
    """The first release that has both the algorithm and the class that the config names."""
    found = [case.recognised.kind.since, v.drafts_since(_named(case))]
    return max(version for version in found if version is not None)


def _named(case: Case) -> str:
    """The class that is built, where config.json tells: that of speculators is never reached."""
    return case.draft.architecture if case.draft and not case.folder.speculators else ""


def algorithm(case: Case, version: Version) -> Iterator[Remark]:
    """Row 1: the algorithm is that of the draft model."""
    given, kind = case.serving.algorithm, case.recognised.kind
    if given is None or not kind.algorithms or given.upper() in kind.algorithms:
        return
    right = kind.algorithms[0]
    if kind.eagle3 and given.upper() in ("EAGLE", "NEXTN"):
        verdict = Verdict.SILENT_GARBAGE
        effect = "no hidden states are captured and fc is skipped: chance hits, accept len 1.00 to 1.2"
    elif given.upper() == "EAGLE3":
        verdict = Verdict.LOAD_ERROR
        effect = "the worker asks for hot_token_id or set_embed, which only classes of EAGLE-3 have: AttributeError"
    else:
        verdict, effect = Verdict.NOT_JUDGED, "what the server then does was not tried"
    detail = f"{given[:40]} with a draft model that is {kind.value}: {effect}"
    yield Remark("algorithm", verdict, _FLAG, detail, f"{_FLAG} {right}")


def own_layers(case: Case, version: Version) -> Iterator[Remark]:
    """Row 43: a target that is to draft by layers of its own has them."""
    lacking, drafts = case.recognised.lacking, (case.serving.algorithm or "").upper() in Kind.MTP.algorithms
    if not lacking or not (drafts or case.recognised.kind is Kind.TARGET):
        return
    key, _, number = lacking.partition(" ")
    detail = f"{number}, but the files have no tensor of such a layer: it drafts with what memory held"
    remedy = "serve a checkpoint that has them (tools that quantise leave them out), or without --speculative-algorithm"
    yield Remark("draft-layers-missing", Verdict.SILENT_GARBAGE, key, detail, remedy)


def architecture(case: Case, version: Version) -> Iterator[Remark]:
    """Row 2: a class this version has, of the draft model's kind."""
    draft, kind = case.draft, case.recognised.kind
    if draft is None or case.folder.speculators:
        return
    if kind is Kind.EAGLE and draft.architecture.endswith("ForCausalLM"):
        yield _plain(draft.architecture)
    elif kind in _OWN_CLASSES and not v.drafts_since(draft.architecture) and not v.with_class(draft.architecture):
        detail = f"{draft.architecture[:80]!r} is no class of a draft model in SGLang up to {v.KNOWN[-1]}: not found"
        remedy = f"see what {kind.value} draft models that SGLang serves have there"
        yield Remark("architecture", Verdict.LOAD_ERROR, "architectures", detail, remedy)
    if not kind.eagle3 or case.class_known(version):
        return
    name, right = draft.architecture, right_class(kind, mla=_mla(case))
    if name == MLA:
        detail = f"{MLA} (MLA attention) is not in SGLang before {v.MLA_CLASS.since}: model not found"
        remedy = f"SGLang {v.MLA_CLASS.since} or later"
    elif not name:
        detail, remedy = "no architectures: the model class cannot be chosen", f'"architectures": ["{right}"]'
    elif case.folder.pickled and name == "LlamaForCausalLM":
        yield Remark(
            "container-format",
            Verdict.NEEDS_CONVERSION,
            case.folder.containers[0].file,
            "the layout SafeAILab's EAGLE trains: a pickle, and a config for the plain class LlamaForCausalLM",
            case.folder.convert_command,
        )
        return
    else:
        crash = "no EAGLE-3 drafter; the class is built and dies on hot_token_id" if draft.has_class else "not found"
        detail, remedy = f"{name[:80]}: {crash}", f'"architectures": ["{right}"]'
    yield Remark("architecture", Verdict.LOAD_ERROR, "architectures", detail, remedy)


_OWN_CLASSES = (Kind.EAGLE, Kind.MTP, Kind.DFLASH, Kind.DOMINO, Kind.DSPARK)


def _plain(name: str) -> Remark:
    """EAGLE-1/2 as its trainer names it: the class of the whole model, which has no place for `fc`."""
    detail = f"{name[:80]}: a whole model's class, which never looks at the target's hidden states"
    since = v.drafts_since(f"{name}Eagle")
    remedy = f'"architectures": ["{name[:80]}Eagle"]' if since else "SGLang has no class for such a draft model"
    return Remark("architecture", Verdict.SILENT_GARBAGE, "architectures", detail, remedy)


def _mla(case: Case) -> bool:
    return any(name.endswith("kv_a_proj_with_mqa.weight") for name in case.tensors)
