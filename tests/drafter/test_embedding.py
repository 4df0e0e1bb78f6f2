"""An embedding that a draft model brings is compared with the target's, which the server puts in its place."""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

import pytest

from opsctl.cli.main import run
from opsctl.drafter.case import Case, Serving
from opsctl.drafter.convert import convert_folder
from opsctl.drafter.embedding import Likeness, compared
from opsctl.drafter.folder import open_folder
from opsctl.drafter.judge import judge
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Verdict
from opsctl.drafter.versions import parse_list
from opsctl.this_machine import call as here
from tests.drafter import build
from tests.drafter.build import Drafter, Raw
from tests.drafter.test_kind import REPORTS, written

NAME = "model.language_model.embed_tokens.weight"


def target(folder: Path, embedding: Raw, config: dict[str, object], layer: Raw | None = None) -> Path:
    """A whole model in two files, its embedding in the second."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    first = {"model.layers.0.mlp.up_proj.weight": build.weight(random.Random(1), [4, 4])}
    if layer is not None:
        first["model.layers.61.embed_tokens.weight"] = layer
    build.write_safetensors(folder / "model-1.safetensors", first)
    build.write_safetensors(folder / "model-2.safetensors", {NAME: embedding})
    return folder


def widened(given: Raw) -> Raw:
    """The same numbers as F32."""
    halves = array("H", given.data)
    return Raw("F32", given.shape, b"".join(struct.pack("<HH", 0, half) for half in halves))


def likeness(draft: Path, at: Path) -> Likeness | None:
    return compared(open_folder(str(draft)), here, str(at), here)


@pytest.mark.parametrize("wide", [False, True])
def test_a_copy_of_the_targets_is_the_same_in_any_dtype(wide: bool, tmp_path: Path) -> None:
    made = build.torchspec()
    given = made.tensors["embed_tokens.weight"]
    other = build.weight(random.Random(9), given.shape)
    at = target(tmp_path / "target", widened(given) if wide else given, made.target, layer=other)
    found = likeness(made.write(tmp_path / "draft"), at)
    assert found is not None
    assert found.same
    assert (found.rows, found.other) == (64, 0)


def test_a_few_rows_that_were_added_are_no_other_embedding(tmp_path: Path) -> None:
    made = build.torchspec()
    given = made.tensors["embed_tokens.weight"]
    tail = build.weight(random.Random(9), [10, given.shape[1]]).data
    at = target(tmp_path / "target", Raw("BF16", given.shape, given.data[: -len(tail)] + tail), made.target)
    found = likeness(made.write(tmp_path / "draft"), at)
    assert found is not None
    assert found.same


def test_what_cannot_be_compared_is_not(tmp_path: Path) -> None:
    made = build.torchspec()
    draft = made.write(tmp_path / "draft")
    (tmp_path / "config-only").mkdir()
    fewer = target(tmp_path / "fewer", build.weight(random.Random(1), [300, made.dims.hidden]), made.target)
    packed = target(tmp_path / "packed", Raw("U8", [320, 24], bytes(320 * 24)), made.target)
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "model.safetensors").write_bytes(b"no")
    for at in (tmp_path / "config-only", fewer, packed, damaged, tmp_path / "nowhere"):
        assert likeness(draft, at) is None


def own_embedding(tmp_path: Path, *, same: bool) -> tuple[Path, Path]:
    """The head of vllm 27732, and a target with its embedding or another."""
    draft = written("f01_gptoss20b_own_embedding", tmp_path / "draft")
    (file,) = open_folder(str(draft)).containers
    tensor = next(t for t in file.tensors if t.name == "embed_tokens.weight")
    data = (draft / tensor.file).read_bytes()[tensor.start : tensor.end]
    given = Raw("BF16", tensor.shape, data if same else bytes(reversed(data)))
    return draft, target(tmp_path / "target", given, REPORTS["targets"]["gpt_oss_120b"])


@pytest.mark.parametrize(("same", "verdict"), [(True, Verdict.NOTE), (False, Verdict.DEGRADED), (None, Verdict.NOTE)])
def test_a_head_with_an_embedding_of_its_own(same: bool | None, verdict: Verdict, tmp_path: Path) -> None:
    draft, at = own_embedding(tmp_path, same=bool(same))
    seen = likeness(draft, at) if same is not None else None
    case = Case(open_folder(str(draft)), Settings(json.loads((at / "config.json").read_text())), Serving(1, 2048), seen)
    found = judge(case, parse_list("0.5.9,0.5.23"))
    (told,) = [f for f in found.findings if f.check == "own-embedding"]
    assert told.verdict is verdict
    assert same is not None or "was not seen" in told.detail
    assert {v.value for v in found.outcome.values()} == {"degraded" if same is False else "ok"}


def test_the_command_line_compares_with_the_target_it_is_given(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    draft, at = own_embedding(tmp_path, same=False)
    words = ["--target", str(at), "--context-length", "2048", "--tp", "1", "--sglang", "0.5.9"]
    assert run(["drafter", "check", str(draft), *words]) == 10
    text = " ".join(capfd.readouterr().out.split())
    assert "of 64 sampled rows are not the target's" in text


@pytest.mark.parametrize(("same", "said"), [(True, "are the target's"), (False, "so expect less acceptance")])
def test_a_conversion_says_what_was_seen_of_the_embedding(same: bool, said: str, tmp_path: Path) -> None:
    made: Drafter = build.speculators(embed_requires_grad=True)
    given = made.tensors["embed_tokens.weight"]
    other = given if same else build.weight(random.Random(9), given.shape)
    at = target(tmp_path / "target", other, made.target)
    source = made.write(tmp_path / "source")
    done = convert_folder(str(source), str(tmp_path / "made"), Settings(made.target), target_path=str(at))
    assert any(said in change for change in done.changes)
    again = convert_folder(str(source), str(tmp_path / "blind"))
    assert any("embed_requires_grad says that it was trained" in change for change in again.changes)
