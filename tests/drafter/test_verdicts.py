"""Sound drafters of every producer raise no alarm; each planted fault is found, with its outcome per version.

The right answers are written down here by hand, from SGLang's loaders; see docs/reference/drafter-checks.md.
"""

from __future__ import annotations

import json
import random
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opsctl.drafter.verdict import Verdict
from tests.drafter import build
from tests.drafter.build import Dims, Drafter, Raw
from tests.drafter.conftest import Judge

OTHER = Dims(hidden=96, heads=16, kv_heads=8, head_dim=8, intermediate=160, draft=128, vocab=1024, layers=40)

SOUND = {
    "specforge 0.1": build.specforge,
    "specforge 0.2": build.specforge_export,
    "modelopt 0.41": build.modelopt,
    "torchspec": build.torchspec,
    "headless": build.headless,
}


def outcomes(judgement) -> str:
    return " ".join(verdict.value for verdict in judgement.outcome.values())


def alarms(judgement) -> list[str]:
    return [f.check for f in judgement.findings if f.verdict not in (Verdict.OK, Verdict.NOTE)]


@pytest.mark.parametrize("dims", [Dims(), OTHER], ids=["small", "other"])
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("tp", [1, 8])
def test_sound_drafters_raise_no_alarm(name: str, dims: Dims, tp: int, judged: Judge) -> None:
    found = judged(SOUND[name](dims), tp=tp)
    assert outcomes(found) == "ok ok ok"
    assert alarms(found) == []
    assert found.exit_code == 0


def test_sharded_is_as_good_as_one_file(tmp_path: Path, judged: Judge) -> None:
    made = build.specforge()
    folder = made.write(tmp_path / "d")
    build.shard(folder, made.tensors)
    assert outcomes(judged(folder)) == "ok ok ok"


@pytest.mark.parametrize(
    ("made", "expected", "check"),
    [
        (build.modelopt(layers0=True), "silent-garbage ok ok", "tensor-names"),
        (build.mla(), "load-error ok ok", "architecture"),
        (build.speculators(), "load-error load-error load-error", "config-readable"),
    ],
    ids=["layers.0 names", "mla", "speculators"],
)
def test_sound_for_some_versions_only(made: Drafter, expected: str, check: str, judged: Judge) -> None:
    found = judged(made)
    assert outcomes(found) == expected
    assert alarms(found) == [check]


def config(**changes: object) -> Callable[[Drafter], None]:
    def change(made: Drafter) -> None:
        made.config |= changes

    return change


def without(*keys: str) -> Callable[[Drafter], None]:
    def change(made: Drafter) -> None:
        for key in keys:
            made.config.pop(key, None)
            made.tensors.pop(key, None)

    return change


def ids(made: Drafter) -> list[int]:
    values = array("q", made.tensors["d2t"].data)
    return [value + i for i, value in enumerate(values)]


def d2t(change: Callable[[list[int], Drafter], list[int]], *, keep_mask: bool = True) -> Callable[[Drafter], None]:
    """Replace the target ids; `change` gets the right ones."""

    def apply(made: Drafter) -> None:
        made.tensors["d2t"] = build.offsets(change(ids(made), made))
        if not keep_mask:
            del made.tensors["t2d"]

    return apply


def table(make: Callable[[Drafter], Raw]) -> Callable[[Drafter], None]:
    def apply(made: Drafter) -> None:
        made.tensors["d2t"] = make(made)

    return apply


def no_mask(then: Callable[[Drafter], None]) -> Callable[[Drafter], None]:
    def apply(made: Drafter) -> None:
        then(made)
        del made.tensors["t2d"]

    return apply


def tensor(name: str, *shape: int, dtype: str = "BF16") -> Callable[[Drafter], None]:
    def apply(made: Drafter) -> None:
        made.tensors[name] = build.weight(random.Random(9), shape, dtype)

    return apply


def payload(name: str, data: Callable[[bytes], bytes]) -> Callable[[Drafter], None]:
    def apply(made: Drafter) -> None:
        made.tensors[name].data = data(made.tensors[name].data)

    return apply


def prefix(new: str) -> Callable[[Drafter], None]:
    def apply(made: Drafter) -> None:
        made.rename("", new)

    return apply


def rename(old: str, new: str) -> Callable[[Drafter], None]:
    return lambda made: made.rename(old, new)


def swapped(values: list[int], made: Drafter) -> list[int]:
    return values[1:] + values[:1]


def two_twice(values: list[int], made: Drafter) -> list[int]:
    return [values[2], values[2], *values[2:]]


def three_outside(values: list[int], made: Drafter) -> list[int]:
    return values[:-3] + [made.dims.vocab + i for i in range(3)]


def other_run(values: list[int], made: Drafter) -> list[int]:
    return build.sorted_ids(random.Random(99), made.dims)


def eight_bits(made: Drafter, name: str) -> None:
    shape = made.tensors[name].shape
    made.tensors[name] = Raw("F8_E4M3", shape, random.Random(3).randbytes(shape[0] * shape[1]))


FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096}
AUX = {"eagle_aux_hidden_state_layer_ids": [2, 30, 58], "use_aux_hidden_state": True}
SG, OK, LE, RT, CU, DE = "silent-garbage", "ok", "load-error", "runtime-error", "cuda-error", "degraded"


def always(word: str) -> str:
    return f"{word} {word} {word}"


# what is wrong: how to make it, the check that finds it, outcome on 0.5.9, 0.5.12 and 0.5.23
FAULTS: dict[str, tuple[Callable[[Drafter], None], str, str]] = {
    "absolute with t2d": (table(lambda m: build.absolute(ids(m))), "d2t-kind", always(SG)),
    "absolute without t2d": (no_mask(table(lambda m: build.absolute(ids(m)))), "d2t-kind", always(SG)),
    "absolute in frequency order": (
        no_mask(table(lambda m: build.absolute(random.Random(5).sample(ids(m), len(ids(m)))))),
        "d2t-kind",
        always(SG),
    ),
    "zeros": (table(lambda m: build.absolute([0] * m.dims.draft)), "d2t-kind", always(SG)),
    "arange": (table(lambda m: build.absolute(range(m.dims.draft))), "d2t-kind", always(SG)),
    "rows in another order": (d2t(swapped), "d2t-kind", always(SG)),
    "mapping of another run": (d2t(other_run), "d2t-kind", always(SG)),
    "duplicate ids": (d2t(two_twice, keep_mask=False), "d2t-kind", always(DE)),
    "ids outside the vocabulary": (d2t(three_outside, keep_mask=False), "d2t-range", always(DE)),
    "d2t too short": (d2t(lambda v, m: v[:-8], keep_mask=False), "d2t-length", always(CU)),
    "d2t in floats": (table(lambda m: build.weight(random.Random(1), [m.dims.draft], "F32")), "d2t-dtype", always(RT)),
    "d2t missing": (without("d2t", "t2d"), "d2t-missing", always(SG)),
    "d2t under another name": (rename("d2t", "draft_id_to_target_id"), "mapping-name", always(SG)),
    "no head": (without("lm_head.weight"), "lm-head-missing", always(SG)),
    "a projection missing": (without("midlayer.self_attn.k_proj.weight"), "tensor-missing", always(SG)),
    "a norm missing": (without("norm.weight"), "tensor-missing", always(DE)),
    "trainer prefix": (prefix("draft_model."), "tensor-names", always(SG)),
    "model.layers.0 names": (rename("midlayer.", "model.layers.0."), "tensor-names", "silent-garbage ok ok"),
    "head under model.": (rename("lm_head.", "model.lm_head."), "tensor-names", always(SG)),
    "head_dim not named": (without("head_dim"), "tensor-shape", always(SG)),
    "head_dim too small": (config(head_dim=6), "tensor-shape", always(SG)),
    "too few kv heads": (config(num_key_value_heads=2), "tensor-shape", always(SG)),
    "too many kv heads": (config(num_key_value_heads=8), "tensor-shape", always(LE)),
    "too many heads": (config(num_attention_heads=16), "tensor-shape", always(LE)),
    "intermediate too small": (config(intermediate_size=40), "tensor-shape", always(SG)),
    "hidden size wrong": (config(hidden_size=24), "fc-width", always(LE)),
    "one hidden size into q": (tensor("midlayer.self_attn.q_proj.weight", 96, 48), "tensor-shape", always(LE)),
    "fc for two layers": (tensor("fc.weight", 48, 96), "fc-width", always(LE)),
    "five layers": (
        lambda m: (
            tensor("fc.weight", 48, 240)(m),
            config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 15, 29, 43, 57]})(m),
        ),
        "fc-width",
        "load-error ok ok",
    ),
    "as wide as the hidden size": (
        lambda m: (
            tensor("fc.weight", 48, 48)(m),
            config(eagle_config={"eagle_aux_hidden_state_layer_ids": [29]})(m),
        ),
        "aux-layers",
        "load-error silent-garbage silent-garbage",
    ),
    "head rows": (config(draft_vocab_size=72), "lm-head-rows", always(LE)),
    "vocabulary of another tokenizer": (config(vocab_size=328), "vocab-size", always(SG)),
    "target wider": (lambda m: m.target.update(hidden_size=64), "target-hidden", always(RT)),
    "own embedding missing": (
        lambda m: (
            m.target.update(hidden_size=64),
            config(target_hidden_size=64)(m),
            tensor("fc.weight", 48, 192)(m),
        ),
        "embed-tokens-missing",
        always(SG),
    ),
    "head of a wider target": (
        lambda m: (
            m.target.update(hidden_size=64),
            config(target_hidden_size=64, draft_vocab_size=None)(m),
            tensor("fc.weight", 48, 192)(m),
            tensor("embed_tokens.weight", 320, 48)(m),
            without("lm_head.weight", "d2t", "t2d")(m),
        ),
        "borrowed-head",
        always(RT),
    ),
    "target_hidden_size null": (config(target_hidden_size=None), "target-hidden-size", always(LE)),
    "tied": (config(tie_word_embeddings=True), "tied-embeddings", always(SG)),
    "no draft_vocab_size": (without("draft_vocab_size"), "draft-vocab-size", always(LE)),
    "no model_type": (without("model_type"), "config-readable", always(LE)),
    "context 2048": (config(max_position_embeddings=2048), "context-length", always(LE)),
    "plain llama class": (config(architectures=["LlamaForCausalLM"]), "architecture", always(LE)),
    "class of another engine": (config(architectures=["Eagle3LlamaForCausalLM"]), "architecture", always(LE)),
    "two layers": (config(num_hidden_layers=2), "num-hidden-layers", "load-error silent-garbage silent-garbage"),
    "aux ids in input style": (config(eagle_config=AUX), "aux-convention", "degraded degraded ok"),
    "aux id past the end": (
        config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 29, 61]}),
        "aux-layers",
        always(RT),
    ),
    "one aux layer left": (
        config(eagle_config={"eagle_aux_hidden_state_layer_ids": [1, 98, 99]}),
        "aux-layers",
        always(SG),
    ),
    "other aux ids at the top": (config(eagle_aux_hidden_state_layer_ids=[1, 20, 40]), "aux-place", always(DE)),
    "aux states not used": (
        config(eagle_config={"use_aux_hidden_state": False}),
        "use-aux-hidden-state",
        always(SG),
    ),
    "rope only in rope_parameters": (
        lambda m: (
            without("rope_theta", "rope_scaling")(m),
            config(rope_parameters={"rope_type": "default", "rope_theta": 50000.0})(m),
        ),
        "rope-base",
        "degraded ok ok",
    ),
    "norm_before_residual": (config(norm_before_residual=True), "norm-before-residual", always(SG)),
    "norm_output": (config(norm_output=True), "norm-output", "degraded ok ok"),
    "norms before fc": (
        lambda m: ([tensor(f"fc_norm.{i}.weight", 48)(m) for i in range(3)], config(fc_norm=True)(m)),
        "fc-norm",
        "silent-garbage ok ok",
    ),
    "norms before fc of another name": (
        lambda m: ([tensor(f"fcs.{i}.weight", 48)(m) for i in range(3)], config(fc_norm=True)(m)),
        "fc-norm",
        always(SG),
    ),
    "one norm before fc": (
        lambda m: (tensor("input_norm.weight", 144)(m), config(norm_before_fc=True)(m)),
        "norm-before-fc",
        "degraded degraded ok",
    ),
    "query and key norms": (
        lambda m: [tensor(f"midlayer.self_attn.{n}_norm.weight", 12)(m) for n in "qk"],
        "qk-norm",
        always(SG),
    ),
    "biases": (tensor("midlayer.self_attn.q_proj.bias", 96), "bias", always(DE)),
    "output bias without its switch": (tensor("midlayer.self_attn.o_proj.bias", 48), "bias", always(DE)),
    "float16 for bfloat16": (config(torch_dtype="float16"), "dtype", always(RT)),
    "no dtype": (without("torch_dtype"), "dtype", always(RT)),
    "fp8 without scales, uneven": (
        config(quantization_config={**FP8, "weight_block_size": [128, 128]}),
        "quantization",
        always(LE),
    ),
    "fp8 without scales, even": (
        config(quantization_config=FP8),
        "quantization",
        always(SG),
    ),
    "fp8 tensors, no config": (
        lambda m: m.tensors.update(
            {"fc.weight": Raw("F8_E4M3", [48, 144], random.Random(1).randbytes(48 * 144))},
        ),
        "quantization",
        always(SG),
    ),
    "vocabulary left out": (without("vocab_size"), "vocab-size", always(SG)),
    "number of layers as text": (config(num_hidden_layers="1"), "num-hidden-layers", always(LE)),
    "no kv heads": (config(num_key_value_heads=0), "config-keys", always(LE)),
    "head_dim as text": (config(head_dim="12"), "config-keys", always(LE)),
    "class name as text": (config(architectures="LlamaForCausalLMEagle3"), "config-types", always(LE)),
    "model_type as a class name": (config(model_type="LlamaForCausalLM"), "config-readable", always(LE)),
    "the target's model_type": (config(model_type="kimi_k25"), "config-readable", always(LE)),
    "head_dim of DeepSeek's config": (
        lambda m: (config(model_type="deepseek_v3")(m), without("head_dim")(m)),
        "tensor-shape",
        always(LE),
    ),
    "use_cache null": (config(use_cache=None), "config-types", "ok load-error load-error"),
    "initializer_range whole": (config(initializer_range=1), "config-types", "ok load-error load-error"),
    "eos_token_id of texts": (config(eos_token_id=["<|im_end|>"]), "config-types", "ok load-error load-error"),
    "a kind for two layers": (
        config(layer_types=["full_attention", "full_attention"]),
        "config-types",
        "ok load-error load-error",
    ),
    "partial_rotary_factor null": (config(partial_rotary_factor=None), "config-types", always(LE)),
    "dtype empty": (config(torch_dtype=""), "config-types", always(LE)),
    "no aux states": (config(num_aux_hidden_states=0), "fc-width", "ok load-error load-error"),
    "number of aux states as text": (config(num_aux_hidden_states="3"), "config-types", "ok load-error load-error"),
    "rope of an unknown kind": (config(rope_scaling={"rope_type": "su", "factor": 4.0}), "rope-scaling", always(LE)),
    "rope of no kind": (config(rope_scaling={"rope_type": None}), "rope-scaling", always(LE)),
    "yarn without a factor": (
        config(rope_scaling={"type": "yarn", "original_max_position_embeddings": 4096}),
        "rope-scaling",
        always(LE),
    ),
    "factor as text": (config(rope_scaling={**YARN, "factor": "64"}), "rope-scaling", always(LE)),
    "llama3 rope without its bounds": (
        config(rope_scaling={"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}),
        "rope-scaling",
        always(LE),
    ),
    "rope for each kind of layer": (
        config(rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": 50000.0}}),
        "rope-scaling",
        "ok load-error load-error",
    ),
    "rope base as text in rope_parameters": (
        config(rope_parameters={"rope_type": "default", "rope_theta": "50000"}),
        "config-types",
        "ok load-error load-error",
    ),
    "code that is not there": (
        lambda m: (
            config(auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"})(m),
            m.target.update(auto_map={"AutoConfig": "configuration_kimi_k25.KimiK25Config"}),
        ),
        "auto-map",
        always(LE),
    ),
    "quantised in no known way": (config(quantization_config={"quant_method": "foo"}), "quantization", always(LE)),
    "fp8 without its scheme": (config(quantization_config={"quant_method": "fp8"}), "quantization", always(LE)),
    "quantised without a method": (config(quantization_config={"bits": 4}), "quantization", always(LE)),
    "quantisation as text": (config(quantization_config="fp8"), "quantization", always(LE)),
    "four bits that are sixteen": (
        config(quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"}),
        "quantization",
        always(LE),
    ),
    "fp8 tensors without scales": (
        lambda m: (
            config(quantization_config=FP8)(m),
            [eight_bits(m, name) for name in m.tensors if name.endswith("proj.weight")],
        ),
        "quantization",
        always(SG),
    ),
    "fp8 blocks that do not fit": (
        lambda m: (
            config(quantization_config={**FP8, "weight_block_size": [16, 16]})(m),
            [eight_bits(m, name) for name in m.tensors if name.endswith("proj.weight")],
            tensor("midlayer.mlp.down_proj.weight_scale_inv", 3, 5, dtype="F32")(m),
        ),
        "quantization",
        always(LE),
    ),
    "whole rms_norm_eps": (config(rms_norm_eps=0), "config-types", "ok load-error load-error"),
    "tie_word_embeddings null": (config(tie_word_embeddings=None), "config-types", "ok load-error load-error"),
    "rope_theta null": (config(rope_theta=None), "config-types", always(LE)),
    "rope_scaling as text": (config(rope_scaling="yarn"), "config-types", always(LE)),
    "rope_scaling empty": (config(rope_scaling={}), "rope-scaling", "load-error ok ok"),
    "quantization_config null": (config(quantization_config=None), "config-types", "load-error ok ok"),
    "another activation": (config(hidden_act="gelu"), "config-types", always(LE)),
    "dtype as torch prints it": (config(torch_dtype="torch.bfloat16"), "config-types", always(LE)),
    "dtype as a list": (config(torch_dtype=["bfloat16"]), "config-types", always(LE)),
    "dtype as an object": (config(dtype={"": "bfloat16"}), "config-types", always(LE)),
    "kimi_k2 config": (config(model_type="kimi_k2"), "config-readable", "load-error ok ok"),
    "trainer's model_type": (config(model_type="eagle3"), "config-readable", always(LE)),
    "class of the target's MTP layer": (
        config(architectures=["DeepseekV3ForCausalLMNextN"]),
        "architecture",
        always(LE),
    ),
    "plain class first": (
        config(architectures=["LlamaForCausalLM", "LlamaForCausalLMEagle3"]),
        "architecture",
        always(LE),
    ),
    "target_hidden_size 0": (config(target_hidden_size=0), "target-hidden-size", always(LE)),
    "use_aux_hidden_state null": (
        config(eagle_config={"use_aux_hidden_state": None}),
        "use-aux-hidden-state",
        always(SG),
    ),
    "aux layer before the first": (
        config(eagle_config={"eagle_aux_hidden_state_layer_ids": [-1, 29, 57]}),
        "aux-layers",
        always(RT),
    ),
    "d2t unsigned": (lambda m: m.tensors["d2t"].__setattr__("dtype", "U64"), "d2t-dtype", always(LE)),
    "d2t in a float of 8 bits": (
        table(lambda m: Raw("F8_E4M3", [m.dims.draft], bytes(m.dims.draft))),
        "d2t-dtype",
        always(LE),
    ),
    "d2t a single number": (table(lambda m: Raw("I64", [], bytes(8))), "d2t-shape", always(LE)),
    "NaN in the head": (payload("lm_head.weight", lambda b: b"\xc0\x7f" + b[2:]), "payload-nan", always(SG)),
    "infinity": (payload("fc.weight", lambda b: b[:-2] + b"\x80\xff"), "payload-nan", always(SG)),
    "zeros in fc": (payload("fc.weight", lambda b: bytes(len(b))), "payload-zero", always(SG)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found(name: str, judged: Judge) -> None:
    plant, check, expected = FAULTS[name]
    made = build.specforge()
    plant(made)
    found = judged(made)
    assert check in alarms(found)
    assert outcomes(found) == expected
    for finding in found.findings:
        assert finding.detail
        assert finding.versions
        assert finding.remedy or finding.verdict is Verdict.NOTE


@pytest.mark.parametrize(
    ("name", "at_tp1"),
    [
        ("absolute without t2d", CU),
        ("ids outside the vocabulary", CU),
        ("too many kv heads", LE),
        ("fp8 without scales, even", SG),
    ],
)
def test_outcome_on_one_gpu(name: str, at_tp1: str, judged: Judge) -> None:
    made = build.specforge()
    FAULTS[name][0](made)
    assert outcomes(judged(made, "0.5.12", tp=1)) == at_tp1


def test_heads_that_tp_does_not_divide_are_no_fault_on_one_gpu(judged: Judge) -> None:
    made = build.specforge(replace(Dims(), heads=6, kv_heads=3))
    assert outcomes(judged(made, "0.5.12", tp=8)) == LE
    assert outcomes(judged(made, "0.5.12", tp=3)) == LE  # 80 intermediate rows do not split in three
    assert outcomes(judged(made, "0.5.12", tp=1)) == OK
    # 6 heads alone would allow 2; the 3 for keys and values do not.
    assert {f.remedy for f in judged(made, "0.5.12", tp=8).findings if f.check == "tp-division"} == {
        "--tp 1 splits all of it"
    }


@pytest.mark.parametrize(("versions", "expected"), [("0.5.16", SG), ("0.5.17", LE), ("0.7.1", LE)])
def test_missing_shard(tmp_path: Path, versions: str, expected: str, judged: Judge) -> None:
    made = build.specforge()
    folder = made.write(tmp_path / "d")
    build.shard(folder, made.tensors)
    (folder / "model-00002-of-00002.safetensors").unlink()
    found = judged(folder, versions)
    assert outcomes(found) == expected
    assert "missing-shard" in alarms(found)


@pytest.mark.parametrize(("leftover", "expected"), [("old", DE), ("zz_part", SG)])
def test_second_checkpoint_in_the_folder(tmp_path: Path, leftover: str, expected: str, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    held = build.specforge(seed=8).tensors
    if leftover == "zz_part":
        held = {name: held[name] for name in ("fc.weight", "lm_head.weight")}
    build.write_safetensors(folder / f"{leftover}.safetensors", held)
    found = judged(folder, "0.5.12")
    assert outcomes(found) == expected
    assert "leftovers" in alarms(found)


def test_target_without_capture_is_named_and_kept_out_of_the_outcome(judged: Judge) -> None:
    made = build.specforge()
    made.target = build.multimodal(made.target)
    found = judged(made, "0.5.8,0.5.9,0.5.10")
    assert outcomes(found) == "ok ok ok"
    told = {f.detail: [str(v) for v in f.versions] for f in found.findings if f.check == "target-capture"}
    assert list(told.values()) == [["0.5.8"], ["0.5.9"]]
    assert found.exit_code == 11


def test_multimodal_target_is_read_in_its_text_config(judged: Judge) -> None:
    made = build.specforge()
    made.target = build.multimodal({**made.target, "vocab_size": 999})
    assert "vocab-size" in alarms(judged(made, "0.5.12"))


@pytest.mark.parametrize(
    ("scaling", "expected", "short"),
    [
        ({"rope_type": "linear", "factor": 64.0}, "ok ok", "ok ok"),
        ({"rope_type": "linear", "factor": 2.0}, "load-error load-error", "ok ok"),
        # transformers 5 adds the original length, which ends the factor; before, its absence is a KeyError.
        ({"rope_type": "yarn", "factor": 64.0}, "load-error load-error", "load-error ok"),
        (
            {"rope_type": "yarn", "factor": 64.0, "original_max_position_embeddings": 2048},
            "load-error load-error",
            "ok ok",
        ),
    ],
    ids=["linear", "too short", "yarn", "yarn with its original length"],
)
@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
def test_context_length_is_derived_as_the_server_does(
    scaling: dict[str, object], expected: str, short: str, key: str, judged: Judge
) -> None:
    made = build.specforge()
    made.config |= {"max_position_embeddings": 2048, key: scaling}
    if key == "rope_parameters":  # nothing before 0.5.10 reads it
        expected, short = f"load-error {expected.split()[1]}", f"ok {short.split()[1]}"
    assert outcomes(judged(made, "0.5.9,0.5.12")) == expected
    assert outcomes(judged(made, "0.5.9,0.5.12", context_length=2048)) == short


def joined(whole: str, *parts: str) -> Callable[[Drafter], None]:
    """Several projections in one tensor, as the server keeps them."""

    def apply(made: Drafter) -> None:
        found = [made.tensors.pop(part) for part in parts]
        shape = [sum(t.shape[0] for t in found), found[0].shape[1]]
        made.tensors[whole] = Raw("BF16", shape, b"".join(t.data for t in found))

    return apply


ATTENTION, MLP = "midlayer.self_attn.", "midlayer.mlp."
# Unusual, and no fault: the server takes it.
HARMLESS: dict[str, Callable[[Drafter], None]] = {
    "joined projections": lambda m: (
        joined(f"{ATTENTION}qkv_proj.weight", *(f"{ATTENTION}{p}_proj.weight" for p in "qkv"))(m),
        joined(f"{MLP}gate_up_proj.weight", f"{MLP}gate_proj.weight", f"{MLP}up_proj.weight")(m),
    ),
    "d2t.weight": rename("d2t", "d2t.weight"),
    "d2t in int32": table(
        lambda m: Raw("I32", [m.dims.draft], array("i", [v - i for i, v in enumerate(ids(m))]).tobytes())
    ),
    "t2d in bytes": lambda m: m.tensors["t2d"].__setattr__("dtype", "U8"),
    "t2d in int64": lambda m: m.tensors.update(
        t2d=Raw("I64", [m.dims.vocab], array("q", list(m.tensors["t2d"].data)).tobytes())
    ),
    "the first ids only": lambda m: m.tensors.update(
        d2t=build.offsets(range(m.dims.draft)), t2d=build.mask(range(m.dims.draft), m.dims.vocab)
    ),
    "own width named": config(target_hidden_size=48),
    "an unknown class first": config(architectures=["Other", "LlamaForCausalLMEagle3"]),
    "larger intermediate size": config(intermediate_size=160),
    "intermediate size left out": without("intermediate_size"),
    "no eagle_config keys": config(eagle_config={}),
    "a type of a llama-like layer": config(model_type="qwen2"),
    "code of another repository": lambda m: (
        config(auto_map={"AutoConfig": "moonshotai/Kimi-K2--configuration_deepseek.C"})(m),
        m.target.update(auto_map={"AutoConfig": "configuration_kimi_k25.KimiK25Config"}),
    ),
    "code that nobody asks for": config(auto_map={"AutoConfig": "configuration_deepseek.DeepseekV3Config"}),
    "the target's yarn": config(rope_scaling={**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0}),
    "token ids": config(eos_token_id=[1, 2], bos_token_id=None, pad_token_id=0, attention_dropout=0),
    "fc bias": lambda m: (config(bias=True)(m), tensor("fc.bias", 48)(m)),
    "output bias of zeros": lambda m: (
        config(attention_bias=True)(m),
        m.tensors.update({"midlayer.self_attn.o_proj.bias": Raw("BF16", [48], bytes(96))}),
    ),
    "fc bias of zeros": lambda m: (config(bias=True)(m), m.tensors.update({"fc.bias": Raw("BF16", [48], bytes(96))})),
    "output bias": lambda m: (config(attention_bias=True)(m), tensor("midlayer.self_attn.o_proj.bias", 48)(m)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_the_server_takes_is_no_fault(name: str, judged: Judge) -> None:
    made = build.specforge()
    HARMLESS[name](made)
    found = judged(made)
    assert alarms(found) == []
    assert outcomes(found) == always(OK)
    assert found.case.mapping is not None
    assert found.case.mapping.sound


@pytest.mark.parametrize(
    ("plant", "check", "versions", "expected"),
    [
        (FAULTS["one norm before fc"][0], "norm-before-fc", "0.5.16,0.5.17", "degraded ok"),
        (FAULTS["two layers"][0], "num-hidden-layers", "0.5.11,0.5.12", "load-error silent-garbage"),
    ],
    ids=["norm_before_fc", "several layers"],
)
def test_features_begin_where_the_sources_have_them(
    plant: Callable[[Drafter], object], check: str, versions: str, expected: str, judged: Judge
) -> None:
    made = build.specforge()
    plant(made)
    found = judged(made, versions)
    assert outcomes(found) == expected
    assert check in alarms(found)


def test_types_are_checked_from_transformers_5_6_on(judged: Judge) -> None:
    """transformers 5.3, which SGLang 0.5.10 asks for, takes what 4.57 took."""
    made = build.specforge()
    made.config |= {"tie_word_embeddings": None, "rms_norm_eps": 0, "use_cache": None}
    assert outcomes(judged(made, "0.5.10,0.5.11")) == "ok load-error"


@pytest.mark.parametrize(("rows", "split"), [(50, "silent-garbage"), (40, "load-error")], ids=["too many", "too few"])
def test_fc_of_an_mla_drafter_is_split_from_0_5_15_on(rows: int, split: str, judged: Judge) -> None:
    """A ColumnParallelLinear cuts rows that are too many; nn.Linear took none but its own shape."""
    made = build.mla()
    tensor("fc.weight", rows, 144)(made)
    assert outcomes(judged(made, "0.5.14,0.5.15")) == f"load-error {split}"


def test_width_of_an_mla_drafter_must_be_divisible_where_fc_is_split(judged: Judge) -> None:
    found = judged(build.mla(Dims(hidden=40, heads=16)), "0.5.14,0.5.15", tp=16)
    assert outcomes(found) == "ok load-error"
    assert [f.subject for f in found.findings if f.check == "tp-division"] == ["hidden_size"]


def test_config_that_is_no_json(tmp_path: Path, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    (folder / "config.json").write_text('{"a": 1,\n}')
    found = judged(folder)
    assert outcomes(found) == always(LE)
    assert "line 2" in found.findings[0].detail
    assert found.exit_code == 11


def test_pickle_of_the_original_trainer_needs_conversion(tmp_path: Path, judged: Judge) -> None:
    made = build.specforge()
    made.config["architectures"] = ["LlamaForCausalLM"]
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(made.config))
    build.write_torch(folder / "pytorch_model.bin", made.tensors)
    found = judged(folder)
    assert outcomes(found) == always("needs-conversion")
    assert found.producer == "eagle-safeailab"
    assert found.case.mapping is not None
    assert found.case.mapping.sound


def test_versions_between_and_beyond_the_known_ones(judged: Judge) -> None:
    found = judged(build.modelopt(layers0=True), "0.5.11.post3,0.5.12.post1,0.5.17,1.0.0")
    assert outcomes(found) == "silent-garbage ok ok ok"
    told = {f.subject: f.detail for f in found.findings if f.check == "sglang-version"}
    assert told == {
        "0.5.11.post3": "not among the versions read: judged by the rules of 0.5.11",
        "1.0.0": "later than 0.5.23, the newest version read: judged by the rules of 0.5.23",
    }
    assert found.exit_code == 2 or found.verdict is Verdict.SILENT_GARBAGE


@pytest.mark.parametrize("name", ["absolute with t2d", "d2t too short", "no head", "query and key norms"])
def test_speculators_are_judged_behind_their_layout(name: str, judged: Judge) -> None:
    made = build.speculators()
    made.rename("layers.0.", "midlayer.")
    FAULTS[name][0](made)
    made.rename("midlayer.", "layers.0.")
    assert FAULTS[name][1] in alarms(judged(made, "0.5.12"))


@pytest.mark.parametrize(
    ("architecture", "ids", "expected"),
    [
        # gpt_oss.py records what its last layer gives, from 0.5.17 on; ids that name it are taken as they are.
        ("GptOssForCausalLM", [1, 18, 35], "runtime-error ok"),
        ("GptOssForCausalLM", [2, 18, 36], "runtime-error ok"),
        ("LlamaForCausalLM", [1, 18, 35], "runtime-error runtime-error"),
        ("GlmMoeDsaForCausalLM", [2, 18, 33], "degraded ok"),
        ("Qwen3ForCausalLM", [2, 18, 33], "degraded degraded"),
    ],
)
def test_aux_ids_are_read_as_the_target_class_does(
    architecture: str, ids: list[int], expected: str, judged: Judge
) -> None:
    made = build.specforge()
    made.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
    made.target |= {"architectures": [architecture], "model_type": "any", "num_hidden_layers": 36}
    assert outcomes(judged(made, "0.5.12,0.5.17")) == expected


def test_no_conversion_is_proposed_that_would_be_refused(judged: Judge) -> None:
    remedies = [f.remedy for f in judged(build.speculators(norm_before_residual=True)).findings]
    assert not any("drafter convert" in remedy for remedy in remedies)
    assert any("vLLM" in remedy for remedy in remedies)
    assert any("drafter convert" in f.remedy for f in judged(build.speculators()).findings)


@pytest.mark.parametrize(("given", "expected"), [([2, 30, 58], set()), ([5, 20, 40], {"0.5.13", "0.5.23"})])
def test_aux_ids_of_speculators_are_the_layers_they_name(given: list[int], expected: set[str], judged: Judge) -> None:
    found = judged(build.speculators(eagle_aux_hidden_state_layer_ids=given), "0.5.9,0.5.12,0.5.13,0.5.23")
    told = {str(v) for f in found.findings if f.check == "aux-convention" for v in f.versions}
    assert told == expected


def test_ids_outside_the_vocabulary_are_told_once(judged: Judge) -> None:
    made = build.specforge()
    FAULTS["ids outside the vocabulary"][0](made)
    assert alarms(judged(made, "0.5.12")) == ["d2t-range"]


def test_the_width_that_fc_was_trained_for_is_named(judged: Judge) -> None:
    made = build.specforge()
    tensor("fc.weight", 48, 192 + 6)(made)
    made.target["hidden_size"] = 66
    remedies = [f.remedy for f in judged(made, "0.5.12").findings if f.check == "fc-width"]
    assert [remedy.partition(",")[0] for remedy in remedies] == ['"target_hidden_size": 66']


@pytest.mark.parametrize(("known", "told"), [(64, ['"target_hidden_size": 64']), (48, ["name 4 aux layers"])])
def test_the_target_tells_width_and_count_of_states_apart(known: int, told: list[str], judged: Judge) -> None:
    made = build.specforge()
    tensor("fc.weight", 48, 192)(made)  # 4 x 48 = 3 x 64
    made.target["hidden_size"] = known
    found = judged(made, "0.5.12").findings
    assert [f.remedy.partition(",")[0].partition(" in ")[0] for f in found if f.verdict is not Verdict.NOTE] == told


def test_without_a_target_both_readings_of_a_width_are_told(tmp_path: Path, judged: Judge) -> None:
    made = build.specforge()
    tensor("fc.weight", 48, 192)(made)
    (remedy,) = [f.remedy for f in judged(made.write(tmp_path / "d"), "0.5.12").findings if f.check == "fc-width"]
    for part in ("192 = 4 x 48 = 3 x 64", '"target_hidden_size": 64', "name 4 aux layers", "--target"):
        assert part in remedy


def test_a_rope_base_that_is_not_named_is_the_default_written_out(judged: Judge) -> None:
    named, absent = build.specforge(), build.specforge()
    named.config["rope_theta"] = 10000.0
    del absent.config["rope_theta"]
    for made in (named, absent):
        found = judged(made)
        assert outcomes(found) == "ok ok ok"
        assert "the target has 50000" in next(f.detail for f in found.findings if f.check == "rope-base")


@st.composite
def dimensions(draw: st.DrawFn) -> Dims:
    """Sizes a server could split over 8 GPUs."""
    return Dims(
        hidden=draw(st.integers(2, 9)) * 8,
        heads=draw(st.sampled_from([8, 16, 24])),
        kv_heads=draw(st.sampled_from([2, 4, 8])),
        head_dim=draw(st.sampled_from([10, 14, 20])),
        intermediate=draw(st.integers(3, 12)) * 8,
        draft=draw(st.integers(24, 90)),
        vocab=draw(st.integers(200, 700)),
        layers=draw(st.integers(20, 80)),
    )


# Faults that do not depend on the sizes of the drafter they are planted in.
ANYWHERE = (
    "absolute with t2d", "zeros", "arange", "rows in another order", "mapping of another run", "d2t missing",
    "d2t under another name", "no head", "a projection missing", "trainer prefix", "head under model.", "tied",
    "no draft_vocab_size", "no model_type", "context 2048", "plain llama class", "aux states not used",
    "norm_before_residual", "float16 for bfloat16", "NaN in the head", "zeros in fc",
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(dims=dimensions(), seed=st.integers(0, 1000), data=st.data())
def test_any_sizes_sound_then_faulty(dims: Dims, seed: int, data: st.DataObject, judged: Judge) -> None:
    make = data.draw(st.sampled_from([build.specforge, build.specforge_export]))
    assert alarms(judged(make(dims, seed))) == []
    plant, check, _ = FAULTS[data.draw(st.sampled_from(ANYWHERE))]
    made = make(dims, seed)
    plant(made)
    if "torch_dtype" in made.config and "dtype" in made.config:
        made.config["dtype"] = made.config["torch_dtype"]
    found = judged(made)
    assert check in alarms(found)
    assert found.exit_code != 0


def test_the_remedy_is_the_cause_not_its_consequences(tmp_path: Path, judged: Judge) -> None:
    """A wrong width and a lost shard each make a dozen tensors look wrong; one change cures them all."""
    wide = build.specforge()
    wide.config["hidden_size"] = 24
    assert {f.remedy.partition(",")[0] for f in judged(wide).findings if f.verdict is not Verdict.NOTE} == {
        '"hidden_size": 48'
    }
    made = build.specforge()
    folder = made.write(tmp_path / "sharded")
    build.shard(folder, made.tensors)
    (folder / "model-00002-of-00002.safetensors").unlink()
    found = judged(folder, "0.5.12")
    assert {f.check for f in found.findings if f.verdict is not Verdict.NOTE} == {"missing-shard"}


def rows_of(made: Drafter) -> list[bytes]:
    head = made.tensors["lm_head.weight"].data
    size = len(head) // made.dims.draft
    return [head[i : i + size] for i in range(0, len(head), size)]


def gathered(made: Drafter, keys: list[int]) -> None:
    """A head whose rows are alike where the keys are."""
    rows = {key: build.weight(random.Random(key), [made.dims.hidden]).data for key in set(keys)}
    made.tensors["lm_head.weight"] = replace(made.tensors["lm_head.weight"], data=b"".join(rows[key] for key in keys))


LARGE = Dims(hidden=16, heads=8, kv_heads=8, head_dim=8, intermediate=32, draft=4000, vocab=16000)


@pytest.mark.parametrize("dims", [Dims(), LARGE], ids=["small", "large"])
@pytest.mark.parametrize(
    ("keys", "verdict", "said"),
    [
        (lambda d, ids: [i % (d // 2) for i in range(d)], Verdict.DEGRADED, "copied twice"),
        (lambda d, ids: [i // 2 for i in range(d)], Verdict.DEGRADED, "are like another"),
        (lambda d, ids: [ids[i] - i for i in range(d)], Verdict.SILENT_GARBAGE, "gathered with offsets"),
    ],
    ids=["half of it twice", "each row twice", "by offsets"],
)
def test_rows_of_the_head_that_are_alike_are_named(
    dims: Dims, keys: Callable[[int, list[int]], list[int]], verdict: Verdict, said: str, judged: Judge
) -> None:
    made = build.specforge(dims)
    gathered(made, keys(dims.draft, ids(made)))
    (found,) = [f for f in judged(made, "0.5.9").findings if f.check == "head-rows-alike"]
    assert found.verdict is verdict
    assert said in found.detail


def test_tokens_of_no_text_may_share_a_row(judged: Judge) -> None:
    """A head of the whole vocabulary has a few hundred rows that were never trained, or padding."""
    made = build.torchspec(replace(LARGE, vocab=6000))
    made.dims = replace(made.dims, draft=6000)
    rows = rows_of(made)
    for at in range(5900, 6000):
        rows[at] = rows[5900] if at % 2 else bytes(len(rows[0]))
    made.tensors["lm_head.weight"] = replace(made.tensors["lm_head.weight"], data=b"".join(rows))
    assert alarms(judged(made, "0.5.23")) == []
