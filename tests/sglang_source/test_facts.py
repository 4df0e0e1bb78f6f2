"""What the releases do with a draft model and a target; values and lines read in their sources by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from opsctl.cli.main import run
from opsctl.cli.source import app
from opsctl.sglang.releases import drafting_class
from opsctl.sglang.source import facts
from opsctl.sglang.source.tree import load
from opsctl.this_machine import call as here
from tests.sglang_source.conftest import MakeTree

MODELS = "python/sglang/srt/models"

SAME = {
    "d2t": "offsets",
    "t2d": "ignored",
    "d2t-checked": "unchecked",
    "unused-tensors": "dropped",
    "fc-test": "skipped",
    "lm-head": "borrowed if null",
    "head-sharing": "own head kept",
    "embedding-sharing": "shared if same size",
    "hot-token-id": "mapped",
}
OLD = {"layer-names": "midlayer", "draft-layers": "one", "fc-width": "3"}
NEW = {"layer-names": "midlayer, layers.0", "draft-layers": "any", "fc-width": "configured"}
DEFAULT = {"graph-layer-ids": "default", "accept-rate": "with bonus token"}
CONFIGURED = {"graph-layer-ids": "configured", "accept-rate": "drafts only"}

DRAFT = {
    "0.5.6.post2": SAME | OLD | DEFAULT,
    "0.5.8.post1": SAME | OLD | DEFAULT,
    "0.5.9": SAME | OLD | DEFAULT,
    "0.5.10": SAME | OLD | DEFAULT,
    "0.5.12": SAME | NEW | CONFIGURED,
    "0.5.18": SAME | NEW | CONFIGURED,
    "0.5.23": SAME | NEW | CONFIGURED,
}
KIMI = "KimiK25ForConditionalGeneration"
TARGETS = {
    ("0.5.9", KIMI): ("missing", "+1", "before"),
    ("0.5.10", KIMI): ("delegated", "+1", "before"),
    ("0.5.12", KIMI): ("delegated", "+1", "before"),
    ("0.5.18", KIMI): ("delegated", "+1 if first is 1", "after"),
    ("0.5.23", KIMI): ("delegated", "+1 if first is 1", "after"),
    ("0.5.9", "DeepseekV3ForCausalLM"): ("own", "+1", "before"),
    ("0.5.9", "Qwen3MoeForCausalLM"): ("own", "+1", "after"),
    ("0.5.9", "Llama4ForConditionalGeneration"): ("delegated", "+1", "before"),
    ("0.5.23", "LlamaForCausalLM"): ("own", "+1", None),
}


@pytest.mark.parametrize("version", DRAFT)
def test_draft_facts(version: str, release: MakeTree) -> None:
    root = release(version)
    found = facts.gather(load(here, str(root)))
    assert {name: fact.value for name, fact in found.draft.items()} == DRAFT[version]
    for name, fact in found.draft.items():
        assert fact.file is not None, name
        assert fact.line is not None, name
        lines = (root / fact.file).read_text().split("\n")
        assert fact.snippet.split("\n")[0] == lines[fact.line - 1]


@pytest.mark.parametrize(("version", "target"), TARGETS)
def test_target_facts(version: str, target: str, release: MakeTree) -> None:
    found = facts.gather(load(here, str(release(version)), [target]), [target]).targets[target]
    values = tuple(found[name].value for name in ("capture", "layer-id-rule", "aux-after-reduce"))
    assert values == TARGETS[version, target]


@pytest.mark.parametrize(
    ("version", "target", "value"),
    [
        ("0.5.9", "Glm4MoeForCausalLM", "kept"),
        ("0.5.10", "Glm4MoeForCausalLM", "dropped"),
        ("0.5.12", "Glm4MoeForCausalLM", "kept"),
        ("0.5.10", "DeepseekV3ForCausalLM", "kept"),
        ("0.5.23", "Qwen3_5ForConditionalGeneration", "kept"),  # dropped on NPUs only
        ("0.5.9", "LlamaForCausalLM", None),  # has no such layer
    ],
)
def test_quantisation_of_the_targets_own_layer(version: str, target: str, value: str | None, release: MakeTree) -> None:
    names = [name for name in (target, drafting_class(target)) if name]
    found = facts.gather(load(here, str(release(version)), names), [target]).targets[target]["layer-quantization"]
    assert found.value == value
    assert found.place or value is None


@pytest.mark.parametrize(
    ("version", "value"),
    [("0.5.2", None), ("0.5.6.post2", "one"), ("0.5.8.post1", "all"), ("0.5.9", "all"), ("0.5.23", "all")],
)
def test_tokens_that_dp_attention_is_told_of(version: str, value: str | None, release: MakeTree) -> None:
    assert facts.gather(load(here, str(release(version)))).worker["dp-draft-extend"].value == value


def test_the_embedding_is_followed_from_the_worker_to_the_parent_class(release: MakeTree) -> None:
    found = facts.gather(load(here, str(release("0.5.9")))).draft["embedding-sharing"]
    assert found.place == f"{MODELS}/llama.py:763"
    assert "eagle_worker.py:168" in found.says
    assert "defined by LlamaForCausalLM" in found.says


def test_evidence_is_true_where_the_tree_is_sound(release: MakeTree) -> None:
    old = facts.gather(load(here, str(release("0.5.9")))).evidence()
    assert (old.target_methods.holds, old.takes_layers0.holds, old.ids_in_graphs.holds) == (False, False, False)
    assert (old.d2t_offsets.holds, old.hot_ids.holds, old.own_head.holds) == (True, True, True)
    assert old.target_methods.place.startswith(f"{MODELS}/kimi_k25.py:")
    new = facts.gather(load(here, str(release("0.5.23")))).evidence()
    sound = (new.target_methods, new.takes_layers0, new.ids_in_graphs, new.d2t_offsets, new.hot_ids, new.own_head)
    assert all(fact.holds for fact in (*sound, new.aux_complete))


def test_a_fact_that_cannot_be_told_says_why(copy_of: MakeTree) -> None:
    root = copy_of("0.5.9")
    (root / MODELS / "llama_eagle3.py").write_text("class Broken(:\n")
    found = facts.gather(load(here, str(root)))
    assert found.draft["d2t"].value is None
    assert "not valid Python" in found.draft["d2t"].says
    assert found.draft["hot-token-id"].value == "mapped"
    assert found.evidence().d2t_offsets.holds is None


def test_facts_as_json(release: MakeTree) -> None:
    result = CliRunner().invoke(app, ["facts", "--tree", str(release("0.5.9")), "--json"])
    told = json.loads(result.stdout)
    assert told["version"] == "0.5.9"
    by_name = {fact["name"]: fact for fact in told["facts"]}
    assert by_name["layer-names"]["value"] == "midlayer"
    assert by_name["d2t"]["snippet"].strip().startswith("self.hot_token_id = loaded_weight + torch.arange(")
    assert told["targets"][0]["class"] == KIMI


def source(capsys: pytest.CaptureFixture[str], tree: Path, *arguments: str) -> tuple[int, str, str]:
    code = run(["source", *arguments, "--tree", str(tree)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_grep(release: MakeTree, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("grep", "set_embed|get_embed", "--glob", "llama.py")
    code, out, _ = source(capsys, release("0.5.9"), *arguments)
    assert code == 0
    assert [int(line.split(":")[1]) for line in out.splitlines()] == [509, 525, 749, 752, 760, 763]
    assert source(capsys, release("0.5.9"), "grep", "no such thing")[0] == 4
    code, _, err = source(capsys, release("0.5.9"), "grep", "(")
    assert code == 2
    assert "not a regular expression" in err


def test_show_follows_the_parent(release: MakeTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = source(capsys, release("0.5.9"), "show", "LlamaForCausalLMEagle3.set_embed")
    assert code == 0
    assert out.startswith(f"{MODELS}/llama.py:763-773  (defined in the parent LlamaForCausalLM, llama.py:763)\n")
    assert "   763      def set_embed(self, embed):" in out


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        ("srt/models/llama.py:509", "509-509"),
        ("python/sglang/srt/models/llama.py:10-12", "10-12"),
        ("ModelRunner.initialize", "model_runner.py:447-629"),  # not a model
        ("LlamaForCausalLMEagle3", "llama_eagle3.py:186-"),
    ],
)
def test_show(asked: str, first: str, release: MakeTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = source(capsys, release("0.5.9"), "show", asked)
    assert code == 0
    assert first in out.splitlines()[0]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("LlamaForCausalLMEagle3.set_embd", "did you mean 'set_embed'?"),
        ("LlamaForCausalLMEagel3", "did you mean 'LlamaForCausalLMEagle3'?"),
        ("srt/models/none.py:3", "srt/models/none.py is not in this tree"),
        ("srt/models/llama.py:99999", "the file has lines 1 to"),
        ("a b", "is no symbol and no file"),
    ],
)
def test_show_what_is_not_there(asked: str, told: str, release: MakeTree, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = source(capsys, release("0.5.9"), "show", asked)
    assert code == 2
    assert told in err


def test_a_folder_without_sglang(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = source(capsys, tmp_path, "facts")
    assert code == 2
    assert "no SGLang source" in err
