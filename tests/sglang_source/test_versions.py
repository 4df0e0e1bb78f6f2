"""Every patch on every release, against what their sources say (read by hand; the patches name the pull requests)."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from opsctl.cli.patch import app
from opsctl.sglang.patches import patchset, proofs
from opsctl.sglang.source import facts
from opsctl.sglang.source.symbols import find_class
from opsctl.sglang.source.tree import load
from opsctl.this_machine import call as here
from tests.sglang_source.conftest import MakeTree

PATCHES = (
    "kimi-k25-eagle3",
    "eagle3-loader-names",
    "eagle3-loader-strict",
    "eagle3-d2t-guard",
    "eagle3-fc-guard",
    "eagle3-graph-layer-ids",
)
N, U, X = "needed", "upstream", "not-applicable"

TABLE = {
    #               kimi names strict d2t fc graph
    "0.4.8.post1": (X, X, X, X, X, X),
    "0.4.10.post2": (X, N, X, N, N, X),
    "0.5.2": (X, N, N, N, N, N),
    "0.5.6.post2": (X, N, N, N, N, N),
    "0.5.8.post1": (X, N, N, N, N, N),
    "0.5.9": (N, N, N, N, N, N),
    "0.5.10": (U, N, N, N, N, N),
    "0.5.11": (U, N, N, N, N, U),
    "0.5.12": (U, U, N, N, N, U),
    "0.5.17": (U, U, N, N, N, U),
    "0.5.18": (U, U, N, N, N, U),
    "0.5.21": (U, U, N, N, N, U),
    "0.5.23": (U, U, N, N, N, U),
}

# eagle3-capture, by target class: wrappers whose language model supports capture, text models, and what cannot be one.
CAPTURE = {
    ("0.5.9", "InternVLChatModel"): N,
    ("0.5.9", "KimiVLForConditionalGeneration"): N,
    ("0.5.9", "DotsOCRForCausalLM"): N,  # has get_embed_and_head, lacks the capture
    ("0.5.9", "Qwen2_5_VLForConditionalGeneration"): U,  # captures itself
    ("0.5.9", "Llama4ForConditionalGeneration"): U,  # delegates, with fall-backs
    ("0.5.9", "LlamaForCausalLM"): U,
    ("0.5.9", "DeepseekV3ForCausalLM"): U,  # inherits
    ("0.5.9", "Gemma3ForConditionalGeneration"): X,  # nor does its language model
    ("0.5.9", "Phi3ForCausalLM"): U,  # inherits from LlamaForCausalLM
    ("0.5.9", "Qwen3VLForConditionalGeneration"): N,  # computes the logits itself, around a model that records layers
    ("0.5.10", "Qwen3VLMoeForConditionalGeneration"): N,
    ("0.5.9", "Qwen3_5MoeForConditionalGeneration"): X,
    ("0.5.18", "Qwen3_5MoeForConditionalGeneration"): X,  # inherits a setter that writes what nothing reads
    ("0.5.23", "Qwen3_5MoeForConditionalGeneration"): U,
    ("0.5.23", "Gemma3ForConditionalGeneration"): U,
    ("0.5.23", "Qwen3VLForConditionalGeneration"): U,
    ("0.5.23", "InternVLChatModel"): N,
    ("0.5.23", "KimiK3ForConditionalGeneration"): X,
    ("0.5.23", "Qwen3Model"): X,  # two files have one; one registers it
}


def status(tree: Path, *arguments: str) -> tuple[int, dict[str, str], dict[str, object]]:
    result = CliRunner().invoke(app, ["check", "--tree", str(tree), "--json", *arguments], standalone_mode=False)
    told = json.loads(result.stdout)
    return int(result.return_value), {p["name"]: p["status"] for p in told["patches"]}, told


@pytest.mark.parametrize("version", TABLE)
def test_status(version: str, release: MakeTree) -> None:
    code, found, told = status(release(version))
    assert {name: found[name] for name in PATCHES} == dict(zip(PATCHES, TABLE[version], strict=True))
    assert told["version"] == version
    assert told["commit"] is None
    assert code == (3 if N in TABLE[version] else 0)
    for entry in told["patches"]:
        if entry["file"]:
            lines = (release(version) / entry["file"]).read_text().splitlines()
            assert 1 <= entry["line"] <= len(lines)
        assert entry["reason"]


@pytest.mark.parametrize("version", TABLE)
def test_applied_patches_keep_their_promise(version: str, release: MakeTree) -> None:
    root = release(version)
    tree = load(here, str(root), ["InternVLChatModel"])
    chosen = [*patchset.select(PATCHES), patchset.eagle3_capture("InternVLChatModel")]
    plan = patchset.plan(tree, chosen)
    needed = {name for name, word in zip(PATCHES, TABLE[version], strict=True) if word == N}
    assert {p.name for p in plan.applied} - {"eagle3-capture InternVLChatModel"} == needed

    after = tree.having({tree.inside(edit.path): edit.after for edit in plan.edits})
    request = proofs.request(after, plan.applied)
    assert (request is None) == (not plan.applied)
    assert request is None or proofs.failures(here(request)) == ()

    words = {e.name: e.status.value for e in patchset.status(after, chosen).entries}
    assert all(words[name] == "applied" for name in needed)
    assert patchset.plan(after, chosen).edits == ()


@pytest.mark.parametrize(("version", "target"), CAPTURE)
def test_capture_by_target(version: str, target: str, release: MakeTree) -> None:
    _, found, told = status(release(version), "--for-target", target)
    assert found.pop(f"eagle3-capture {target}") == CAPTURE[version, target], told
    assert set(found) == {"eagle3-graph-layer-ids"}


@pytest.mark.parametrize("target", ["Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration"])
def test_a_wrapper_that_computes_the_logits_hands_on_what_was_recorded(target: str, release: MakeTree) -> None:
    tree = load(here, str(release("0.5.9")), [target])
    plan = patchset.plan(tree, [patchset.eagle3_capture(target)])
    after = tree.having({tree.inside(edit.path): edit.after for edit in plan.edits if edit.after})
    request = proofs.request(after, plan.applied)
    assert request is not None
    assert proofs.failures(here(request)) == ()
    assert patchset.status(after, [patchset.eagle3_capture(target)]).entries[0].status.value == "applied"

    (cls,) = find_class(after, "srt/models/qwen3_vl.py", "Qwen3VLForConditionalGeneration")
    forward = cls.own("forward")
    assert forward is not None
    forward.returns = None
    for argument in forward.args.args:
        argument.annotation = None
    forward.args.defaults = [ast.Constant(None) for _ in forward.args.defaults]
    names: dict[str, Any] = {"general_mm_embed_routine": lambda **given: given["language_model"]}
    exec(compile(ast.fix_missing_locations(ast.Module([forward], [])), "forward", "exec"), names)
    model = SimpleNamespace(
        is_mrope_enabled=False,
        use_deepstack={},
        pp_group=SimpleNamespace(is_last_rank=True),
        lm_head="head",
        logits_processor=lambda *given, aux_hidden_states=None: (*given, aux_hidden_states),
    )
    batch = SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: True))
    for given, hidden, aux in (("plain", "plain", None), (("hidden", ["aux"]), "hidden", ["aux"])):
        model.model = given
        assert names["forward"](model, "ids", None, batch) == ("ids", hidden, "head", batch, aux)


@pytest.mark.parametrize("version", ["0.5.23"])
def test_a_class_is_followed_into_the_module_that_its_model_comes_from(version: str, release: MakeTree) -> None:
    tree = load(here, str(release(version)), ["Qwen3_5ForCausalLM"])
    found = facts.gather(tree, ["Qwen3_5ForCausalLM"])
    assert found.effects["Qwen3_5ForCausalLM"].capture == "yes"
    assert found.targets["Qwen3_5ForCausalLM"]["capture"].value == "own"


@pytest.mark.parametrize(
    ("version", "code", "word"), [("0.5.9", 3, N), ("0.5.12", 0, U), ("0.5.23", 0, U), ("0.5.8.post1", 0, X)]
)
def test_kimi_as_target(version: str, code: int, word: str, release: MakeTree) -> None:
    found_code, found, _ = status(release(version), "--for-target", "KimiK25ForConditionalGeneration")
    assert found["kimi-k25-eagle3"] == word
    assert set(found) == {"kimi-k25-eagle3", "eagle3-graph-layer-ids"}
    assert word != X or set(found.values()) == {X}  # a target that this version cannot serve needs nothing here
    assert found_code == code


def test_an_unknown_target_is_a_usage_error(release: MakeTree, capsys: pytest.CaptureFixture[str]) -> None:
    from opsctl.cli.main import run

    arguments = ["patch", "check", "--tree", str(release("0.5.9")), "--for-target", "KimiK25ForConditionalGeneratoin"]
    assert run(arguments) == 2
    assert "did you mean 'KimiK25ForConditionalGeneration'?" in capsys.readouterr().err
    assert run([*arguments[:-1], ""]) == 2
    assert "'' is not the name of a class" in capsys.readouterr().err
