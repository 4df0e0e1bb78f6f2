"""Conversions: what the facts allow is written and sound; what they do not is refused with the reason; sources stay."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli.main import run
from opsctl.drafter import convert
from opsctl.drafter.convert import Converted, convert_folder
from opsctl.drafter.convert_plan import Refused
from opsctl.drafter.folder import Folder, open_folder
from opsctl.drafter.settings import Settings
from opsctl.drafter.verdict import Verdict
from opsctl.errors import Conflict, OpsctlError, Unreadable, UsageError
from tests.drafter import build
from tests.drafter.build import Drafter


def converted(tmp_path: Path, made: Drafter | Path) -> tuple[Converted, Folder]:
    source = made if isinstance(made, Path) else made.write(tmp_path / "src")
    target = Settings(made.target) if isinstance(made, Drafter) else None
    before = contents(source)
    done = convert_folder(str(source), str(tmp_path / "dst"), target)
    assert contents(source) == before
    return done, open_folder(str(tmp_path / "dst"))


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def data(folder: Folder) -> dict[str, bytes]:
    return {
        t.name: (Path(folder.path) / t.file).read_bytes()[t.start : t.end] for c in folder.containers for t in c.tensors
    }


def test_speculators_to_sglang(tmp_path: Path) -> None:
    made = build.speculators()
    done, result = converted(tmp_path, made)
    assert done.result.verdict in (Verdict.OK, Verdict.NOTE)
    assert result.raw_config is not None
    expected = made.config["transformer_layer_config"] | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": 64,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57], "use_aux_hidden_state": True},
    }
    assert dict(result.raw_config) == expected
    kept = {n.replace("layers.0.", "midlayer."): t.data for n, t in made.tensors.items() if n != "embed_tokens.weight"}
    assert data(result) == kept


def test_torch_pickle_to_safetensors(tmp_path: Path) -> None:
    made = build.specforge()
    source = tmp_path / "src"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(made.config | {"architectures": ["LlamaForCausalLM"]}))
    build.write_torch(source / "pytorch_model.bin", made.tensors)
    done, result = converted(tmp_path, source)
    assert data(result) == {name: t.data for name, t in made.tensors.items()}
    assert done.exit_code == 0


@pytest.mark.parametrize("witness", [True, False])
def test_absolute_table_becomes_offsets(witness: bool, tmp_path: Path) -> None:
    made = build.specforge()
    ids = build.sorted_ids(random.Random(4), made.dims)
    made.tensors |= {"d2t": build.absolute(ids), "t2d": build.mask(ids, made.dims.vocab)}
    if not witness:
        del made.tensors["t2d"]
    done, result = converted(tmp_path, made)
    assert data(result)["d2t"] == build.offsets(ids).data
    assert "absolute" in done.changes[0]
    assert done.exit_code == 0


@pytest.mark.parametrize("make", [build.specforge, build.specforge_export, build.modelopt], ids=lambda f: f.__name__)
def test_offsets_cannot_be_converted_again(make: object, tmp_path: Path) -> None:
    """The wrong fix of the story: an offset table taken for absolute ids."""
    with pytest.raises(Refused, match="d2t must stay as it is: it holds offsets"):
        converted(tmp_path, make())  # type: ignore[operator]
    assert not (tmp_path / "dst").exists()


def test_a_converted_table_is_not_converted_twice(tmp_path: Path) -> None:
    made = build.specforge()
    ids = build.sorted_ids(random.Random(4), made.dims)
    made.tensors |= {"d2t": build.absolute(ids), "t2d": build.mask(ids, made.dims.vocab)}
    _, first = converted(tmp_path, made)
    with pytest.raises(Refused):
        convert_folder(first.path, str(tmp_path / "again"))


def test_newer_names_are_renamed_for_every_version(tmp_path: Path) -> None:
    _, result = converted(tmp_path, build.modelopt(layers0=True))
    assert not any(name.startswith("layers.") for name in data(result))


def test_own_embedding_is_kept_where_it_cannot_be_shared(tmp_path: Path) -> None:
    made = build.speculators(target_hidden_size=64)
    made.target["hidden_size"] = 64
    made.tensors["fc.weight"] = build.weight(random.Random(1), [48, 192])
    _, result = converted(tmp_path, made)
    assert "embed_tokens.weight" in data(result)


@pytest.mark.parametrize(("given", "told"), [([2, 30, 58], False), ([5, 20, 40], True)])
def test_aux_ids_that_newer_versions_take_as_written_are_told(given: list[int], told: bool, tmp_path: Path) -> None:
    """DeepSeek targets shift ids only when the first is 1 (deepseek_v2.py, from 0.5.13)."""
    made = build.speculators(eagle_aux_hidden_state_layer_ids=given)
    done, result = converted(tmp_path, made)
    assert result.raw_config is not None
    assert result.raw_config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [i - 1 for i in given]
    assert any("do not begin with 1" in change for change in done.changes) is told


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda m: m.tensors.pop("midlayer.mlp.up_proj.weight"), "tensor-missing"),
        (lambda m: m.config["transformer_layer_config"].update(intermediate_size=40), "tensor-shape"),
        (lambda m: m.tensors.update({"fc.weight": build.Raw("BF16", [48, 144], bytes(48 * 144 * 2))}), "payload-zero"),
    ],
)
def test_what_was_wrong_before_is_told_after(change: Callable[[Drafter], object], check: str, tmp_path: Path) -> None:
    made = build.speculators()
    made.rename("layers.0.", "midlayer.")
    change(made)
    done, _ = converted(tmp_path, made)
    assert [f.check for f in done.result.findings if f.verdict is not Verdict.NOTE] == [check]
    assert done.exit_code == 10


def unsure(made: Drafter) -> None:
    made.tensors["d2t"] = build.absolute(random.Random(1).sample(range(300), 64))
    del made.tensors["t2d"]


REFUSALS = {
    "norm_before_residual": (build.speculators(norm_before_residual=True), None, "norm_before_residual"),
    "qwen3 layer": (
        build.speculators(),
        lambda m: m.config["transformer_layer_config"].update(model_type="qwen3"),
        "qwen3",
    ),
    "default unknown": (build.speculators(), lambda m: m.config.pop("norm_before_residual"), "disagree"),
    "query norm": (
        build.speculators(),
        lambda m: m.tensors.update({"layers.0.self_attn.q_norm.weight": build.weight(random.Random(1), [12])}),
        "q_norm",
    ),
    "bias": (
        build.speculators(),
        lambda m: m.tensors.update({"layers.0.self_attn.q_proj.bias": build.weight(random.Random(1), [96])}),
        "bias",
    ),
    "never filled": (
        build.speculators(),
        lambda m: m.tensors.update({"d2t": build.absolute([0] * 64)}),
        "never filled",
    ),
    "absolute, but not certainly": (build.speculators(), unsure, "only when it is proven absolute|not certainly"),
    "floats": (
        build.speculators(),
        lambda m: m.tensors.update({"d2t": build.weight(random.Random(1), [64], "F32")}),
        "no mapping",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_the_reason(name: str, tmp_path: Path) -> None:
    made, change, reason = REFUSALS[name]
    if change is not None:
        change(made)
    with pytest.raises(Refused, match=reason):
        converted(tmp_path, made)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


def test_a_folder_of_links_is_converted_when_they_may_be_followed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = build.modelopt(layers0=True).write(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for file in made.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    argv = ["drafter", "convert", str(tmp_path / "snapshot"), str(tmp_path / "dst")]
    assert run(argv) == 12
    assert "--follow-links" in capfd.readouterr().err
    assert run([*argv, "--follow-links"]) == 0
    assert data(open_folder(str(tmp_path / "dst")))["fc.weight"] == build.modelopt().tensors["fc.weight"].data


def test_provenance_names_source_digests_and_changes(tmp_path: Path) -> None:
    done, _ = converted(tmp_path, build.speculators())
    told = json.loads((tmp_path / "dst" / "opsctl-provenance.json").read_text())
    digest = hashlib.sha256((tmp_path / "src" / "model.safetensors").read_bytes()).hexdigest()
    assert told["source_sha256"]["model.safetensors"] == digest
    written = hashlib.sha256((tmp_path / "dst" / "model.safetensors").read_bytes()).hexdigest()
    assert told["result_sha256"]["model.safetensors"] == written
    assert told["changes"] == list(done.changes)


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "dst").mkdir()
    with pytest.raises(UsageError, match="exists"):
        converted(tmp_path, build.speculators())


def test_a_crashed_attempt_is_cleared_but_not_what_others_put_there(tmp_path: Path) -> None:
    partial = tmp_path / "dst.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    converted(tmp_path, build.speculators())
    other = tmp_path / "other.partial"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not ours"):
        convert_folder(str(tmp_path / "src"), str(tmp_path / "other"))
    assert (other / "notes.txt").exists()


def test_two_conversions_to_one_destination_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = build.speculators().write(tmp_path / "src")
    write = convert._write_weights

    def meanwhile(*given: Any) -> str:
        written = write(*given)
        with pytest.raises(Conflict, match="another conversion writes there"):
            convert_folder(str(source), str(tmp_path / "dst"))
        return written

    monkeypatch.setattr(convert, "_write_weights", meanwhile)
    convert_folder(str(source), str(tmp_path / "dst"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["dst", "src"]
    assert not (tmp_path / "dst" / ".lock").exists()


def test_write_error_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(convert.os, "fsync", full)
    with pytest.raises(OpsctlError, match="No space left"):
        converted(tmp_path, build.speculators())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


def test_source_that_changes_while_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = build.speculators().write(tmp_path / "src")
    write = convert._write_weights

    def touched(*args: object) -> str:
        digest = write(*args)  # type: ignore[arg-type]
        with open(source / "model.safetensors", "ab") as file:
            file.write(b"x")
        return digest

    monkeypatch.setattr(convert, "_write_weights", touched)
    with pytest.raises(Conflict, match="changed while it was read"):
        convert_folder(str(source), str(tmp_path / "dst"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["src"]


def test_hostile_source(tmp_path: Path) -> None:
    source = build.speculators().write(tmp_path / "src")
    (source / "model.safetensors").write_bytes(b"no")
    with pytest.raises(Unreadable):
        convert_folder(str(source), str(tmp_path / "dst"))


def test_command_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = build.speculators().write(tmp_path / "src")
    assert run(["drafter", "convert", str(source), str(tmp_path / "dst"), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["check"]["verdict"] == "note"
    assert run(["drafter", "convert", str(source), str(source / "inside")]) == 2
