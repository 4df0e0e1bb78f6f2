"""Checks of the folder itself: what is readable, what the server would load from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from opsctl.drafter import versions as v
from opsctl.drafter.case import Case
from opsctl.drafter.folder import Problem
from opsctl.drafter.kind import Kind
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.versions import Version

# Of a config that cannot be used, these are the file's fault and not its text's: nothing of it was read.
_NOT_READ = frozenset({"symlink", "not-a-file", "changed", "size", "unreadable"})

REMEDY = {
    "lfs-pointer": "fetch the file itself: git lfs pull, or download it again",
    "html": "download the file again; the address answered with a page (login, error) instead of the file",
    "truncated": "copy the file again; the transfer was cut",
    "trailing": "copy the file again and compare its size and digest with the source",
    "size": "copy the file again and compare its size and digest with the source",
    "symlink": "copy the real file in its place (cp -L), or allow links with --follow-links",
    "count": "name the folder of the draft model, not that of a whole one",
    "pickle-import": "do not load this file anywhere; get safetensors from the producer",
}


def refused(case: Case) -> list[Remark]:
    """Why the folder is not judged at all: something in it is damaged or hostile.

    A whole model that drafts for itself holds more than is read of a draft model, which is not held against it.
    """
    folder = case.folder
    large = ("count", "size") if case.recognised.kind is Kind.MTP else ()
    found = [
        _refusal("container", container.file, container.problem)
        for container in folder.loaded()
        if container.problem is not None and container.problem.code not in large[:1]
    ]
    if folder.index_problem is not None and folder.index_problem.code not in large:
        found.append(_refusal("index", "model.safetensors.index.json", folder.index_problem))
    if folder.config_problem is not None and folder.config_problem.code in _NOT_READ:
        found.append(_refusal("config-readable", "config.json", folder.config_problem))
    return found


def _refusal(check: str, subject: str, problem: Problem) -> Remark:
    remedy = REMEDY.get(problem.code, "do not serve this file; get it again from its source")
    return Remark(check, Verdict.LOAD_ERROR, subject, problem.text, remedy)


def weights(case: Case, version: Version) -> Iterator[Remark]:
    """Row 35: the weight files a server would take."""
    folder = case.folder
    if not folder.containers:
        detail = "no *.safetensors, *.bin or *.pt file of weights in the folder"
        if any(file.name.endswith(".gguf") for file in folder.files):
            detail += ", only GGUF, which holds no EAGLE-3 drafter that SGLang reads"
        yield Remark("weights", Verdict.LOAD_ERROR, "weights", detail, "copy the weight files into the folder")
        return
    if not folder.loaded():
        detail = f"it names none of the {len(folder.containers)} weight file(s) in the folder: no weights are found"
        yield Remark("weights", Verdict.LOAD_ERROR, "model.safetensors.index.json", detail, "write the index again")
        return
    if folder.pickled and case.draft is not None and case.draft.architecture.endswith("Eagle3"):
        yield Remark(
            "weights",
            Verdict.NOTE,
            folder.containers[0].file,
            "a pickle: loading it runs code; shapes were read from its opcodes, nothing was executed",
            folder.convert_command,
        )
    yield from _leftovers(case)
    for file in folder.files:
        if file.name.startswith("training_state"):
            detail = f"{file.size} bytes of trainer state: SGLang ignores it, and it is a pickle"
            yield Remark("leftovers", Verdict.NOTE, file.name, detail, "do not stage it")
        if file.link is not None and file.outside:
            yield Remark("symlink", Verdict.NOTE, file.name, f"a symbolic link out of the folder: -> {file.link}")


def _leftovers(case: Case) -> Iterator[Remark]:
    folder = case.folder
    loaded = folder.loaded()
    if folder.weight_map is not None:
        ignored = [c.file for c in folder.containers if c not in loaded]
        if ignored:
            detail = f"not named in the index: {', '.join(ignored)}; ignored by the server"
            yield Remark("leftovers", Verdict.NOTE, ignored[0], detail, "remove it, or correct the index")
    counts = Counter(t.name for container in loaded for t in container.tensors)
    twice = [name for name, count in counts.items() if count > 1]
    if not twice:
        return
    last = max(c.file for c in loaded)
    complete = set(counts) == {t.name for c in loaded if c.file == last for t in c.tensors}
    detail = (
        f"{len(twice)} tensors are in more than one of {', '.join(c.file for c in loaded)}: all are"
        " loaded, the last wins"
    )
    yield Remark(
        "leftovers",
        # The last file replaces all: one drafter is served, but its name decided which. Else two are mixed.
        Verdict.DEGRADED if complete else Verdict.SILENT_GARBAGE,
        last if complete else twice[0],
        detail if complete else f"{detail}, so two checkpoints are mixed",
        "keep one checkpoint in the folder",
    )


def shards(case: Case, version: Version) -> Iterator[Remark]:
    """Row 36: shards the index names."""
    missing = case.folder.missing_shards()
    if missing:
        raises = version in v.MISSING_SHARD_RAISES
        seen = "the server refuses to load" if raises else "the server loads what is left without a word"
        yield Remark(
            "missing-shard",
            Verdict.LOAD_ERROR if raises else Verdict.SILENT_GARBAGE,
            missing[0],
            f"the index names {len(missing)} file(s) that are not there ({', '.join(missing[:4])}), with"
            f" {len(case.lost)} tensors; {seen}",
            "copy the missing shard; the transfer was not complete",
        )
    have = {(t.file, t.name) for container in case.folder.containers for t in container.tensors}
    wrong = [
        name
        for name, file in (case.folder.weight_map or {}).items()
        if file not in missing and (file, name) not in have
    ]
    if wrong:
        detail = f"the index places {len(wrong)} tensor(s) in files that do not hold them: {', '.join(wrong[:3])}"
        yield Remark("index", Verdict.NOTE, wrong[0], detail, "write the index again")


def readable(case: Case, version: Version) -> Iterator[Remark]:
    """Row 3: can transformers make a config of config.json?"""
    folder = case.folder
    if folder.raw_config is None:
        problem = folder.config_problem or Problem("missing", "missing")
        why = problem.text
        remedy = REMEDY.get(problem.code, "correct config.json; it must be one JSON object")
        if any(file.name == "adapter_config.json" for file in folder.files):
            why, remedy = f"{why}; with adapter_config.json this is a LoRA adapter", "name the folder of a draft model"
        yield Remark("config-readable", Verdict.LOAD_ERROR, "config.json", why, remedy)
        return
    for key in folder.duplicate_keys:
        detail = f"the key {key[:80]!r} appears twice; readers take the last"
        yield Remark("config-readable", Verdict.NOTE, "config.json", detail, "remove one of the two")
    if folder.speculators:
        version_text = folder.raw_config.get("speculators_version")
        detail = (
            f"a speculators layout ({str(version_text)[:20]}): settings are nested in"
            " transformer_layer_config and there is"
            " no model_type at the top, so AutoConfig raises ValueError"
        )
        cannot = obstacle(case)
        remedy = f"not convertible as it is; {cannot[1]}" if cannot else folder.convert_command
        yield Remark("config-readable", Verdict.LOAD_ERROR, "config.json", detail, remedy)
    else:
        yield from _model_type(folder.raw_config.get("model_type"), version, case)
        if case.recognised.kind.eagle3:
            yield from _auto_map(case, folder.raw_config.get("auto_map", {}))


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


def _model_type(kind: object, version: Version, case: Case) -> Iterator[Remark]:
    remedy = '"model_type": "llama"' if case.recognised.kind.eagle3 else "write the model_type of its producer"
    if not isinstance(kind, str) or not kind:
        detail = "no model_type: AutoConfig raises ValueError"
        yield Remark("config-readable", Verdict.LOAD_ERROR, "model_type", detail, remedy)
    elif kind == "kimi_k2" and version not in v.KIMI_K2_CONFIG and case.class_known(version):
        detail = f"kimi_k2: AutoConfig raises ValueError, SGLang before {v.KIMI_K2_CONFIG.since} has no such config"
        remedy += f" for a drafter with a llama layer, or SGLang {v.KIMI_K2_CONFIG.since}"
        yield Remark("config-readable", Verdict.LOAD_ERROR, "model_type", detail, remedy)
    elif case.recognised.kind.eagle3 and version <= v.KNOWN[-1] and not _known_type(kind, version, case):
        detail = f"{kind[:40]}: AutoConfig knows no such type, or the drafter class cannot be built from its config"
        yield Remark("config-readable", Verdict.LOAD_ERROR, "model_type", detail, remedy)


def _known_type(kind: str, version: Version, case: Case) -> bool:
    if case.draft is not None and case.draft.mla and kind == "deepseek_v2":
        return True
    return kind in _TYPES or (kind in _LATER_TYPES and version in v.TRANSFORMERS_5)


def _auto_map(case: Case, given: object) -> Iterator[Remark]:
    """Code of the folder's own, which takes the place of transformers' config class where it may run."""
    remedy = "remove auto_map from config.json: the drafter's classes are SGLang's own"
    if not isinstance(given, dict):
        detail = f"{given!r:.40}: an object is expected, TypeError"
        yield Remark("auto-map", Verdict.LOAD_ERROR, "auto_map", detail, remedy)
        return
    module, _, name = str(given.get("AutoConfig", "")).rpartition(".")
    if not name or any(file.name == f"{module}.py" for file in case.folder.files):
        return
    if "--" in module:
        detail = f"names code of {module.partition('--')[0][:80]}: with --trust-remote-code it is fetched and run"
        yield Remark("auto-map", Verdict.NOTE, "auto_map", detail, remedy)
        return
    # A target with code of its own needs --trust-remote-code, and that holds for the drafter too.
    trusted = case.target is not None and bool(case.target.raw.get("auto_map"))
    verdict = Verdict.LOAD_ERROR if trusted else Verdict.NOTE
    why = ", which this target needs," if trusted else ""
    detail = f"names {module[:60]}.py, which is not in the folder: with --trust-remote-code{why} OSError at start"
    yield Remark("auto-map", verdict, "auto_map", detail, remedy)


# Types that a drafter of a llama layer was built from with every transformers that the versions ask for, and those
# that transformers 5 brought.
_TYPES = frozenset({
    "llama", "kimi_k2", "deepseek_v3", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl",
    "qwen2_5_vl_text", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_vl_text", "qwen3_vl_moe_text", "mistral",
    "mistral3", "ministral", "mixtral", "llama4", "llama4_text", "mllama", "phi3", "phimoe", "gpt_oss", "glm",
    "glm4", "glm4_moe", "glm4v", "glm4v_text", "glm4v_moe", "glm4v_moe_text", "cohere", "cohere2", "granite",
    "granitemoe", "granitemoeshared", "exaone4", "ernie4_5", "ernie4_5_moe", "hunyuan_v1_dense",
    "hunyuan_v1_moe", "minimax", "olmo", "olmo2", "olmo3", "olmoe", "flex_olmo", "seed_oss", "smollm3",
    "stablelm", "dots1", "diffllama", "doge", "helium", "afmoe", "kimi_linear", "falcon_h1",
})  # fmt: skip
_LATER_TYPES = frozenset({
    "minimax_m2", "ministral3", "glm4_moe_lite", "glm_moe_dsa", "exaone_moe", "solar_open", "youtu", "cwm",
    "ernie4_5_vl_moe",
})  # fmt: skip
