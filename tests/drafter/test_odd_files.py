"""Values a config can hold and nobody means, and files whose first bytes mislead."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.checkpoint.safetensors import header_length
from opsctl.drafter.folder import open_folder, read_config
from opsctl.drafter.judge import Judgement
from opsctl.drafter.verdict import Verdict
from opsctl.errors import OpsctlError, RemoteError
from opsctl.remote.agent_client import checked
from opsctl.this_machine import call as here
from opsctl.wire.protocol import Call, Reply
from tests.drafter import build
from tests.drafter.build import Drafter, safetensors
from tests.drafter.conftest import Judge


def with_config(**keys: object) -> Drafter:
    made = build.specforge()
    made.config |= keys
    return made


@pytest.mark.parametrize("rows", [0, -64, "64", 64.0, True])
def test_a_head_needs_a_number_of_rows(rows: object, judged: Judge) -> None:
    found = judged(with_config(draft_vocab_size=rows))
    assert {v.value for v in found.outcome.values()} == {"load-error"}
    assert "draft-vocab-size" in [f.check for f in found.findings]


@pytest.mark.parametrize(
    ("section", "outcomes"),
    [
        # eagle_worker.py, eagle_worker_v2.py: `eagle_config.get(...)` on what is no dict; `or {}` from 0.5.15.
        (None, ["load-error", "load-error", "ok"]),
        ("x", ["load-error", "load-error", "load-error"]),
        ({}, ["ok", "ok", "ok"]),
    ],
)
def test_eagle_config_is_an_object(section: object, outcomes: list[str], judged: Judge) -> None:
    found = judged(with_config(eagle_config=section), versions="0.5.9,0.5.14,0.5.15")
    assert [v.value for v in found.outcome.values()] == outcomes


@pytest.mark.parametrize("base", [float("nan"), float("inf"), 0, -50000.0])
def test_a_rope_base_that_rotates_nothing(base: float, judged: Judge) -> None:
    found = judged(with_config(rope_theta=base))
    assert {v.value for v in found.outcome.values()} == {"silent-garbage"}


@pytest.mark.parametrize("length", [0x3C, 0x3C20, 0x3C0A])
def test_a_header_length_that_looks_like_a_tag_is_no_page(length: int) -> None:
    head = "{}".ljust(length)
    assert header_length(safetensors(head, b"")[:64], 8 + length) == length


@pytest.mark.parametrize("where", ["nothing", "folder"])
def test_a_link_out_of_the_folder_is_refused_whatever_it_points_at(where: str, tmp_path: Path, judged: Judge) -> None:
    (tmp_path / "folder").mkdir()
    drafter = tmp_path / "d"
    drafter.mkdir()
    (drafter / "config.json").write_text(json.dumps(build.specforge().config))
    (drafter / "model.safetensors").symlink_to(tmp_path / where)
    found = judged(drafter)
    assert found.exit_code == 12
    assert "symbolic link" in found.findings[0].detail


@pytest.mark.parametrize(
    ("name", "said"), [("adapter_config.json", "a LoRA adapter"), ("model.gguf", "only GGUF"), ("README.md", "missing")]
)
def test_a_folder_of_something_else_is_called_by_its_name(name: str, said: str, tmp_path: Path, judged: Judge) -> None:
    (tmp_path / name).write_bytes(b"{}")
    assert said in " ".join(f.detail for f in judged(tmp_path).findings)


def words(found: Judgement) -> set[str]:
    return {verdict.value for verdict in found.outcome.values()}


@pytest.mark.parametrize("name", ["consolidated.safetensors", "._model.safetensors", "optimizer.bin", "scheduler.pt"])
def test_a_file_the_server_leaves_out_is_no_fault(name: str, tmp_path: Path, judged: Judge) -> None:
    made = build.specforge()
    folder = made.write(tmp_path / "d")
    build.write_safetensors(folder / name, {"fc.weight": made.tensors["fc.weight"]})
    assert words(judged(folder)) == {"ok"}


def test_weights_are_taken_from_pt_where_there_are_no_others(tmp_path: Path, judged: Judge) -> None:
    made = build.specforge()
    folder = made.write(tmp_path / "d")
    (folder / "model.safetensors").unlink()
    (folder / "training_state.pt").write_bytes(b"optimizer")
    assert words(judged(folder)) == {"load-error"}
    build.write_torch(folder / "draft.pt", made.tensors)
    assert words(judged(folder)) == {"ok"}


def test_an_index_that_names_nothing_hides_the_weights(tmp_path: Path, judged: Judge) -> None:
    folder = build.specforge().write(tmp_path / "d")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    found = judged(folder)
    assert words(found) == {"load-error"}
    assert "names none of the 1 weight file" in found.findings[0].detail


@pytest.mark.parametrize(("algorithm", "outcome"), [("NVFP4", "load-error"), ("FP8", "silent-garbage"), (None, "ok")])
def test_the_quantisation_file_of_modelopt_counts(
    algorithm: str | None, outcome: str, tmp_path: Path, judged: Judge
) -> None:
    """SGLang reads it where config.json says nothing; it is easily copied along with the target's files."""
    folder = build.specforge().write(tmp_path / "d")
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": algorithm, "group_size": 16}}
    (folder / "hf_quant_config.json").write_text(json.dumps(told))
    found = judged(folder)
    assert words(found) == {outcome}
    assert [f.subject for f in found.findings if f.check == "quantization"] == ["hf_quant_config.json"] * bool(
        algorithm
    )


def link_out(path: Path) -> None:
    (path.parent.parent / "elsewhere").write_text("{}")
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize(
    ("put", "said"),
    [
        (lambda path: path.write_text('{"quantization": {"quant_al'), "not JSON"),
        (lambda path: path.write_text("[]"), "not a JSON object"),
        (lambda path: path.write_bytes(b"\xff"), "not UTF-8"),
        (os.mkfifo, "pipe"),
        (link_out, "leaves the folder"),
    ],
    ids=["cut off", "a list", "bytes", "a pipe", "a link out"],
)
def test_a_quantisation_file_that_cannot_be_read(
    put: Callable[[Path], object], said: str, tmp_path: Path, judged: Judge
) -> None:
    """SGLang opens it unasked and gives in to no error (model_config.py), but only where config.json is silent."""
    made = build.specforge()
    folder = made.write(tmp_path / "d")
    put(folder / "hf_quant_config.json")
    for quantization in (None, "unquant"):
        found = judged(folder, draft_quantization=quantization)
        assert words(found) == {"load-error"}
        (told,) = (f for f in found.findings if f.verdict is Verdict.LOAD_ERROR)
        assert (told.check, told.subject) == ("quantization", "hf_quant_config.json")
        assert said in told.detail
    made.config["compression_config"] = {"quant_method": "compressed-tensors"}
    (folder / "config.json").write_text(json.dumps(made.config))
    assert words(judged(folder)) == {"ok"}


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
PAGE = "\n<!DOCTYPE html><html>404</html>"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors.index.json", "hf_quant_config.json"])
@pytest.mark.parametrize(
    ("text", "said", "remedy"), [(LFS, "git-lfs pointer", "git lfs pull"), (PAGE, "HTML", "again")]
)
def test_what_lies_in_place_of_a_json_file_is_named(
    name: str, text: str, said: str, remedy: str, tmp_path: Path, judged: Judge
) -> None:
    folder = build.specforge().write(tmp_path / "d")
    (folder / name).write_text(text)
    found = next(f for f in judged(folder).findings if f.subject == name)
    assert said in found.detail
    assert remedy in found.remedy


def whole_model(folder: Path, files: int = 6, experts: int = 1000) -> None:
    """A target's folder: more tensors than any drafter has."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(build.specforge().target))
    for number in range(files):
        weights = {f"layers.{number}.experts.{i}.weight": build.Raw("U8", [8], b"weights!") for i in range(experts)}
        build.write_safetensors(folder / f"model-{number}.safetensors", weights)


def test_only_the_config_of_a_target_is_read(tmp_path: Path) -> None:
    """Targets have terabytes; and those in a Hugging Face cache are links out of the folder."""
    whole_model(tmp_path / "model")
    (tmp_path / "model" / "config.json").rename(tmp_path / "blob")
    (tmp_path / "model" / "config.json").symlink_to(tmp_path / "blob")
    sent = []

    def read(call: Call) -> Reply:
        sent.append(here(call))
        return sent[-1]

    assert read_config(str(tmp_path / "model"), read).layers == build.specforge().target["num_hidden_layers"]
    assert [set(reply.result) for reply in sent] == [{"text", "problem", "present"}]


def test_a_whole_model_is_no_drafter(tmp_path: Path, judged: Judge) -> None:
    whole_model(tmp_path / "model")
    found = judged(tmp_path / "model")
    assert found.exit_code == 12
    assert [f.detail for f in found.findings] == ["over 4096 tensors in the folder: no drafter has so many"]


def test_a_whole_model_that_drafts_for_itself_is_not_damaged(tmp_path: Path, judged: Judge) -> None:
    """GLM and DeepSeek carry their MTP layer inside, and are named as their own draft model."""
    whole_model(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    (tmp_path / "model" / "model.safetensors.index.json").write_text(" " * (5 << 20))
    found = judged(tmp_path / "model")
    assert found.exit_code == 14
    (told,) = [f for f in found.findings if f.check == "draft-kind"]
    assert "num_nextn_predict_layers" in told.detail
    assert told.remedy == "start it with --speculative-algorithm NEXTN"


def test_a_host_that_answers_otherwise_is_no_bug_of_ours(tmp_path: Path) -> None:
    build.torchspec().write(tmp_path / "d")

    def told(call: Call[Any], files: list[Any]) -> Reply[Any]:
        reply = Reply({**here(call).result, "files": files}, here(call).body)
        understood = checked(call, reply, "gpu1")
        if isinstance(understood, OpsctlError):
            raise understood
        return understood

    def newer(call: Call[Any]) -> Reply[Any]:
        return told(call, [{**file, "owner": "root"} for file in here(call).result["files"]])

    def odd(call: Call[Any]) -> Reply[Any]:
        return told(call, [{"name": 5}])

    assert open_folder(str(tmp_path / "d"), newer).files == open_folder(str(tmp_path / "d")).files
    with pytest.raises(RemoteError, match=r"not understood: .*files.*checkpoint\.gather"):
        open_folder(str(tmp_path / "d"), odd)


def test_a_target_of_countless_layers_takes_no_time(judged: Judge) -> None:
    made = build.specforge()
    made.target["num_hidden_layers"] = 10**18
    assert {v.value for v in judged(made).outcome.values()} == {"ok"}
