"""What is said of a target class on a release: never ok where it does not record, or where that is not known."""

from __future__ import annotations

from pathlib import Path

import pytest

from opsctl.drafter.judge import Judgement
from tests.drafter import build
from tests.drafter.conftest import Judge
from tests.drafter.test_kind import judged as of_report


def told(found: Judgement, version: str) -> list[tuple[str, str]]:
    """Verdict and detail of what is said of the target's class."""
    return [
        (f.verdict.value, f.detail)
        for f in found.findings
        if f.check == "target-capture" and version in map(str, f.versions)
    ]


def remedies(found: Judgement) -> set[str]:
    return {f.remedy for f in found.findings if f.check == "target-capture"}


def on(judged: Judge, architecture: str, versions: str, **config: object) -> Judgement:
    made = build.specforge()
    made.target |= {"architectures": [architecture], **config}
    return judged(made, versions, tp=1)


# sgl-project/sglang 18374, 22230, 25408, 38307 and what was measured on servers; release by release in the wheels.
@pytest.mark.parametrize(
    ("architecture", "version", "verdict", "exit_code"),
    [
        ("Qwen3VLMoeForConditionalGeneration", "0.5.11", None, 0),
        ("Qwen3_5MoeForConditionalGeneration", "0.5.9", "load-error", 11),
        ("Qwen3_5MoeForConditionalGeneration", "0.5.18", "runtime-error", 11),
        ("Qwen3_5MoeForConditionalGeneration", "0.5.20", "runtime-error", 11),
        ("Qwen3_5MoeForConditionalGeneration", "0.5.22", None, 0),
        ("BailingMoeV2ForCausalLM", "0.5.8", "load-error", 11),
        ("BailingMoeV2ForCausalLM", "0.5.9", None, 0),
        ("Qwen3NextForCausalLM", "0.5.8", "load-error", 11),
        ("Qwen3NextForCausalLM", "0.5.9", None, 0),
        ("Gemma4ForConditionalGeneration", "0.5.10", "load-error", 11),
        ("Gemma4ForConditionalGeneration", "0.5.12", None, 0),
        ("DeepseekV4ForCausalLM", "0.5.23", "load-error", 11),
        ("MindSporeForCausalLM", "0.5.23", "not-judged", 14),
        ("FrobnicatorForCausalLM", "0.5.23", "not-judged", 14),
        ("LlamaForCausalLM", "0.5.99", "not-judged", 14),
        ("InternVLChatModel", "0.5.23", "load-error", 11),
    ],
)
def test_a_class_that_does_not_record_is_never_ok(
    architecture: str, version: str, verdict: str | None, exit_code: int, judged: Judge
) -> None:
    found = on(judged, architecture, version)
    assert [said for said, _ in told(found, version)] == ([verdict] if verdict else [])
    assert found.exit_code == exit_code
    captured = [f for f in found.findings if "the server captures" in f.detail]
    assert bool(captured) is (verdict is None)


@pytest.mark.parametrize(
    ("architecture", "version", "remedy"),
    [
        ("Qwen3_5MoeForConditionalGeneration", "0.5.18", "SGLang 0.5.22 or later"),
        ("DeepseekV4ForCausalLM", "0.5.23", "no release up to 0.5.23 does; serve another target"),
        ("Gemma4ForConditionalGeneration", "0.5.10", "SGLang 0.5.12 or later"),
        (
            "KimiK25ForConditionalGeneration",
            "0.5.9",
            "SGLang 0.5.10 or later, or opsctl patch sglang --for-target KimiK25ForConditionalGeneration",
        ),
        (
            "Qwen3VLMoeForConditionalGeneration",
            "0.5.9",
            "SGLang 0.5.11 or later, or opsctl patch sglang --for-target Qwen3VLMoeForConditionalGeneration",
        ),
        (
            "KimiVLForConditionalGeneration",
            "0.5.23",
            "opsctl patch sglang --for-target KimiVLForConditionalGeneration",
        ),
    ],
)
def test_the_remedy_is_the_release_that_does_or_the_patch(
    architecture: str, version: str, remedy: str, judged: Judge
) -> None:
    assert remedies(on(judged, architecture, version)) == {remedy}


@pytest.mark.parametrize(
    ("text", "verdict"), [("Qwen3ForCausalLM", "patch"), ("InternLM2ForCausalLM", "no"), ("", "patch")]
)
def test_a_class_that_is_built_around_one_of_several(text: str, verdict: str, judged: Judge) -> None:
    made = build.specforge()
    inner = {**made.target, "architectures": [text] if text else []}
    found = on(judged, "InternVLChatModel", "0.5.23", text_config=inner)
    offered = any("opsctl patch sglang" in remedy for remedy in remedies(found))
    assert offered is (verdict == "patch")


def test_a_release_that_was_not_read_is_said_to_be_that(judged: Judge) -> None:
    found = on(judged, "LlamaForCausalLM", "0.5.99")
    assert {f.detail for f in found.findings if f.check == "sglang-version"} == {
        "later than 0.5.23, the newest version read: judged by the rules of 0.5.23"
    }
    assert "was not read in SGLang 0.5.99" in told(found, "0.5.99")[0][1]


def test_qwen35_moe_is_refused_with_the_reason_of_each_release(tmp_path: Path) -> None:
    found = of_report("d01_qwen35_moe_eagle3", tmp_path, "0.5.9,0.5.11,0.5.20,0.5.21,0.5.22,0.5.23")
    assert "lacks set_eagle3_layers_to_capture" in told(found, "0.5.9")[0][1]
    for version in ("0.5.11", "0.5.20", "0.5.21"):
        ((verdict, detail),) = told(found, version)
        assert verdict == "runtime-error"
        assert "writes layers_to_capture on a Qwen3_5MoeForCausalLM, whose forward does not read it" in detail
        assert "ValueError at the first prefill" in detail
    assert told(found, "0.5.22") == told(found, "0.5.23") == []


def test_qwen3_vl_moe_lacks_the_methods_until_0_5_11(tmp_path: Path) -> None:
    found = of_report("d02_qwen3vl_moe_eagle3", tmp_path, "0.5.9,0.5.10,0.5.11")
    assert [verdict for verdict, _ in told(found, "0.5.9")] == ["load-error"]
    assert told(found, "0.5.9") == told(found, "0.5.10")
    assert told(found, "0.5.11") == []


def test_minimax_m3_without_ids_records_one_layer_further(tmp_path: Path) -> None:
    found = of_report("d05_minimax_m3_noids", tmp_path, "0.5.23")
    said = [f.detail for f in found.findings if f.check == "aux-layers"]
    assert said == ["the server captures the output of layers [2, 31, 59] (the input of [3, 32, 60])"]
