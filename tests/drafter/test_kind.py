"""What a checkpoint is, from its config and its tensors, and what follows from that."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from opsctl.drafter.case import Case, Serving
from opsctl.drafter.convert import convert_folder
from opsctl.drafter.convert_plan import Refused
from opsctl.drafter.folder import open_folder
from opsctl.drafter.judge import Judgement, judge
from opsctl.drafter.kind import Kind, recognise
from opsctl.drafter.settings import Settings
from opsctl.drafter.versions import Version, parse_list
from tests.drafter import build
from tests.drafter.build import Raw

# Inputs rebuilt from public reports and configurations; each names its source.
REPORTS = json.loads((Path(__file__).parents[1] / "data" / "drafters" / "reports.json").read_text())
PLAIN = {"model.embed_tokens.weight": (64, 8), "model.layers.0.self_attn.q_proj.weight": (8, 8)}
JOINED = {"fc.weight": (8, 16), "layers.0.self_attn.q_proj.weight": (8, 8)}
NEXTN = {"model.layers.0.eh_proj.weight": (8, 16), "model.layers.0.enorm.weight": (8,)}


def written(name: str, folder: Path) -> Path:
    """A drafter of the reports with random values; norms are 1, `d2t` holds offsets of sorted ids."""
    given, rng = REPORTS["drafters"][name], random.Random(name)
    shapes = {tensor: shape for tensor, (_, shape) in given["tensors"].items()}
    vocab = shapes.get("t2d", [given["config"].get("vocab_size", 0)])[0]
    ids = sorted(rng.sample(range(vocab), shapes["d2t"][0])) if "d2t" in shapes else []
    tensors = {tensor: _values(rng, tensor, shape, ids) for tensor, shape in shapes.items()}
    return build.Drafter(build.Dims(), given["config"], tensors).write(folder)


def _values(rng: random.Random, name: str, shape: list[int], ids: list[int]) -> Raw:
    if name == "d2t":
        return build.offsets(ids)
    if name == "t2d":
        return build.mask(ids, shape[0])
    if name.endswith("norm.weight"):
        return Raw("BF16", shape, b"\x80\x3f" * shape[0])
    count = 1
    for size in shape:
        count *= size
    return Raw("BF16", shape, rng.randbytes(2 * count).translate(_FINITE))


_FINITE = bytes(byte & 0xBF for byte in range(256))  # no exponent of ones only


def judged(name: str, tmp_path: Path, versions: str | None = None, **serving: Any) -> Judgement:
    target = Settings(REPORTS["targets"][REPORTS["drafters"][name]["target"]])
    folder = open_folder(str(written(name, tmp_path / name)))
    return judge(Case(folder, target, Serving(**{"tp": 1, "context_length": 2048, **serving})), parse_list(versions))


def outcome(found: Judgement, version: str) -> str:
    return found.outcome[Version.parse(version)].value


@pytest.mark.parametrize(
    ("config", "shapes", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, {}, Kind.EAGLE3),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, {"layers.0.hidden_norm.weight": (8,)}, Kind.EAGLE3),
        ({"architectures": ["LlamaForCausalLM"]}, {"midlayer.mlp.up_proj.weight": (8, 8)}, Kind.EAGLE3),
        ({}, {"fc.weight": (8, 24), "layers.0.self_attn.q_proj.weight": (8, 16)}, Kind.EAGLE3),
        ({"architectures": ["LlamaForCausalLMEagle3"], "fc_norm": True}, {}, Kind.EAGLE31),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, {"fc_norm.0.weight": (8,)}, Kind.EAGLE31),
        ({"architectures": ["LlamaForCausalLMEagle3"], "parallel_drafting": True}, {}, Kind.PEAGLE),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, {"mask_hidden": (1, 1, 24)}, Kind.PEAGLE),
        ({"architectures": ["LlamaForCausalLMEagle"]}, {}, Kind.EAGLE),
        ({"architectures": ["LlamaForCausalLM"]}, JOINED, Kind.EAGLE),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, JOINED, Kind.EAGLE),
        ({"architectures": ["DeepseekV3ForCausalLMNextN"]}, NEXTN, Kind.MTP),
        ({"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}, PLAIN | NEXTN, Kind.MTP),
        ({"architectures": ["Qwen3NextForCausalLM"]}, PLAIN | {"mtp.fc.weight": (8, 16)}, Kind.MTP),
        ({"architectures": ["MiMoMTP"]}, {}, Kind.MTP),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {}}, {}, Kind.DFLASH),
        ({"architectures": ["DFlashDraftModel"], "dflash_config": {"projector_type": "domino"}}, {}, Kind.DOMINO),
        ({"architectures": ["Qwen3DSparkModel"]}, {}, Kind.DSPARK),
        ({"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 7}, PLAIN, Kind.DSPARK),
        (
            {"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 7, "num_nextn_predict_layers": 1},
            PLAIN,
            Kind.UNKNOWN,
        ),
        ({"architectures": ["LlamaForCausalLM"]}, PLAIN, Kind.MODEL),
        ({"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}, PLAIN, Kind.MODEL),
        ({"speculators_model_type": "eagle3"}, {}, Kind.EAGLE3),
        ({"speculators_model_type": "eagle3", "norm_output": True}, {}, Kind.EAGLE31),
        ({"speculators_model_type": "dflash"}, {}, Kind.DFLASH),
        ({"speculators_model_type": "fast_mtp"}, {}, Kind.MTP),
        ({"speculators_model_type": "eagle"}, {}, Kind.EAGLE),
        ({"speculators_model_type": "medusa"}, {}, Kind.UNKNOWN),
        ({"architectures": ["SomethingNew"]}, {"head.0.weight": (8, 8)}, Kind.UNKNOWN),
        ({"architectures": ["LlamaForCausalLM"]}, {"head.0.weight": (8, 8)}, Kind.UNKNOWN),
        (None, {"head.0.weight": (8, 8)}, Kind.UNKNOWN),
        ({"architectures": 5, "dflash_config": 1, "eagle_config": [], "text_config": 2}, {}, Kind.UNKNOWN),
    ],
)
def test_the_kind_follows_from_config_and_tensors(
    config: dict[str, Any] | None, shapes: dict[str, tuple[int, ...]], kind: Kind
) -> None:
    assert recognise(config, shapes).kind is kind


def test_what_is_not_recognised_is_told_with_what_was_seen() -> None:
    found = recognise({"architectures": ["SomethingNew"]}, {"head.0.weight": (8, 8)})
    assert "SomethingNew" in found.seen
    assert "head.0.weight" in found.seen


def test_the_target_itself_is_no_draft_model_unless_it_predicts() -> None:
    target = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 2}
    assert recognise(target, PLAIN, target).kind is Kind.TARGET
    assert recognise(target | {"num_hidden_layers": 1}, PLAIN, target).kind is Kind.MODEL
    assert recognise(target, PLAIN | NEXTN, target).kind is Kind.MTP


def test_a_whole_model_whose_tensors_were_not_all_read_is_known_by_its_config() -> None:
    config = {"architectures": ["Glm4MoeForCausalLM"], "num_nextn_predict_layers": 1}
    assert recognise(config, PLAIN, complete=False).kind is Kind.MTP
    # Those of Qwen3-Next have no such key.
    assert recognise({"architectures": ["Qwen3NextForCausalLM"]}, PLAIN, complete=False).kind is Kind.UNKNOWN
    assert recognise({"architectures": ["LlamaForCausalLM"]}, PLAIN, complete=False).kind is Kind.MODEL


@pytest.mark.parametrize(
    ("name", "kind", "flag", "without", "first"),
    [
        ("n01_dflash_qwen3_8b", "DFlash", "DFLASH", "0.5.10.post1", "0.5.11"),
        ("n02_dspark_qwen3_4b", "DSpark", "DSPARK", "0.5.16", "0.5.17"),  # the algorithm is older than this class
        ("n11_eagle2_llama_sglang", "EAGLE-1/2", "EAGLE", None, "0.5.9"),
        ("n13_standalone_llama", "whole model", "STANDALONE", None, "0.5.9"),
    ],
)
def test_another_kind_gets_its_own_algorithm_and_no_rule_of_eagle3(
    name: str, kind: str, flag: str, without: str | None, first: str, tmp_path: Path
) -> None:
    found = judged(name, tmp_path)
    assert found.as_json()["kind"] == kind
    assert {f.check for f in found.findings} == {"draft-kind"}
    assert outcome(found, first) == outcome(found, "0.5.23") == "not-judged"
    assert without is None or outcome(found, without) == "unsupported"
    for finding in found.findings:
        assert f"--speculative-algorithm {flag}" in finding.remedy
        assert "not judged" in finding.detail
        assert "Eagle3" not in finding.remedy


@pytest.mark.parametrize(("algorithm", "code"), [("STANDALONE", 14), ("EAGLE3", 11)])
def test_the_flag_must_be_that_of_the_kind(algorithm: str, code: int, tmp_path: Path) -> None:
    found = judged("n13_standalone_llama", tmp_path, "0.5.9", algorithm=algorithm)
    assert found.exit_code == code
    remedies = [f.remedy for f in found.findings if f.check == "algorithm"]
    assert remedies == ([] if code == 14 else ["--speculative-algorithm STANDALONE"])


@pytest.mark.parametrize("name", ["n05_peagle_llamaeagle3", "n07_speculators_peagle"])
def test_what_no_release_runs_is_refused_by_name(name: str, tmp_path: Path) -> None:
    found = judged(name, tmp_path)
    assert found.exit_code == 11
    assert {v.value for v in found.outcome.values()} == {"unsupported"}
    assert "P-EAGLE" in found.findings[0].detail
    assert all("convert" not in f.remedy.split("not convertible")[0] for f in found.findings)


def test_a_class_that_no_release_has_is_told(tmp_path: Path) -> None:
    given = REPORTS["drafters"]["n01_dflash_qwen3_8b"]
    made = build.Drafter(build.Dims(), given["config"] | {"architectures": ["OtherDFlashModel"]}, {})
    made.tensors = {"fc.weight": build.weight(random.Random(1), [8, 16])}
    found = judge(Case(open_folder(str(made.write(tmp_path / "d"))), None, Serving()), parse_list("0.5.12"))
    assert found.findings[0].check == "architecture"
    assert all("Eagle3" not in f.remedy for f in found.findings)


def test_the_width_of_llama4s_mlp_is_read_where_its_class_reads_it(tmp_path: Path) -> None:
    found = judged("d09_llama4_maverick_nvidia", tmp_path)
    assert {v.value for v in found.outcome.values()} == {"ok"}


def test_a_head_for_a_wider_target(tmp_path: Path) -> None:
    """24576 = 3 x 8192 = 4 x 6144 (here an eighth of it); the key that is missing is named, and nothing else."""
    assert {v.value for v in judged("e02_llama70b_lmsys", tmp_path).outcome.values()} == {"ok"}
    found = judged("e03_llama70b_no_target_hidden", tmp_path)
    remedies = {f.remedy for f in found.findings if f.verdict.rank > 1}
    assert remedies == {'"target_hidden_size": 1024, as the target has it and config.json lacks'}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("n05_peagle_llamaeagle3", "P-EAGLE"),
        ("n07_speculators_peagle", "P-EAGLE"),
        ("n01_dflash_qwen3_8b", "DFlash"),
        ("n11_eagle2_llama_sglang", "EAGLE-1/2"),
    ],
)
def test_only_eagle3_is_converted(name: str, said: str, tmp_path: Path) -> None:
    source = written(name, tmp_path / "source")
    with pytest.raises(Refused, match=said):
        convert_folder(str(source), str(tmp_path / "made"))
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("itself", "algorithm", "named"), [(True, "NEXTN", True), (True, None, True), (False, "STANDALONE", False)]
)
def test_layers_that_the_config_counts_are_there_where_they_are_to_draft(
    itself: bool, algorithm: str | None, named: bool, tmp_path: Path
) -> None:
    config = {"architectures": ["Glm4MoeForCausalLM"], "hidden_size": 8, "num_nextn_predict_layers": 1}
    tensors = {name: build.weight(random.Random(name), shape) for name, shape in PLAIN.items()}
    folder = build.Drafter(build.Dims(), config, tensors).write(tmp_path / "model")
    target = Settings(config if itself else {**config, "hidden_size": 16})
    found = judge(Case(open_folder(str(folder)), target, Serving(algorithm=algorithm)), parse_list("0.5.9"))
    told = [f for f in found.findings if f.check == "draft-layers-missing"]
    assert bool(told) is named
    assert all((f.subject, f.verdict.value) == ("num_nextn_predict_layers", "silent-garbage") for f in told)


def test_damaged_values_are_found_in_every_kind(tmp_path: Path) -> None:
    folder = written("n01_dflash_qwen3_8b", tmp_path / "d")
    file = folder / "model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2] + bytes(len(data) - len(data) // 2))
    found = judge(Case(open_folder(str(folder)), None, Serving()), parse_list("0.5.12"))
    assert "payload-zero" in {f.check for f in found.findings}
