"""Two drafters compared: positions, not sets, decide whether a mapping can be swapped."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from opsctl.cli.main import run
from opsctl.drafter.compare import Comparison, compare_folders
from opsctl.drafter.folder import open_folder
from opsctl.errors import Conflict
from tests.drafter import build
from tests.drafter.build import Drafter


def compared(tmp_path: Path, a: Drafter, b: Drafter, **options: object) -> Comparison:
    folders = [made.write(tmp_path / name) for made, name in ((a, "a"), (b, "b"))]
    return compare_folders(open_folder(str(folders[0])), open_folder(str(folders[1])), **options)  # type: ignore[arg-type]


def with_ids(ids: list[int], *, absolute: bool = False) -> Drafter:
    made = build.specforge()
    made.tensors["d2t"] = build.absolute(ids) if absolute else build.offsets(ids)
    made.tensors["t2d"] = build.mask(ids, made.dims.vocab)
    return made


IDS = build.sorted_ids(random.Random(3), build.Dims())


def test_same_drafter(tmp_path: Path) -> None:
    found = compared(tmp_path, build.specforge(), build.specforge())
    assert (found.positions_differ, found.positions, found.common, found.jaccard) == (0, 64, 64, 1.0)
    assert found.interchangeable
    assert len(found.identical) == 15
    assert found.changed == ()


def test_links_out_of_the_folder_are_followed_to_the_digests(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = build.specforge().write(tmp_path / "a")
    (tmp_path / "snapshot").mkdir()
    for file in made.iterdir():
        (tmp_path / "snapshot" / file.name).symlink_to(file)
    argv = ["drafter", "compare", str(tmp_path / "snapshot"), str(made), "--json", "--follow-links"]
    assert run(argv) == 0
    assert len(json.loads(capfd.readouterr().out)["identical_tensors"]) == 15


def test_weights_that_change_while_compared(tmp_path: Path) -> None:
    a, b = (open_folder(str(build.specforge().write(tmp_path / name))) for name in "ab")
    (tmp_path / "b" / "model.safetensors").write_bytes(b"")
    with pytest.raises(Conflict, match="changed"):
        compare_folders(a, b)


def test_one_inserted_token_shifts_every_row_behind_it(tmp_path: Path) -> None:
    free = next(i for i in range(1, 320) if i not in IDS)
    other = sorted([*IDS, free])[:64]
    found = compared(tmp_path, with_ids(IDS), with_ids(other))
    assert found.positions_differ == 64 - other.index(free)
    assert (found.common, found.jaccard) == (63, 63 / 65)
    assert not found.interchangeable


def test_same_set_in_another_order_is_not_interchangeable(tmp_path: Path) -> None:
    found = compared(tmp_path, with_ids(IDS), with_ids(IDS[1:] + IDS[:1]))
    assert (found.positions_differ, found.jaccard, found.interchangeable) == (64, 1.0, False)
    assert "the same 64 target ids" in found.why


def test_absolute_and_offsets_of_one_mapping_are_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, with_ids(IDS), with_ids(IDS, absolute=True))
    assert (found.positions_differ, found.interchangeable) == (0, True)
    assert found.changed == ("d2t",)
    assert ["b: d2t is absolute" in doubt for doubt in found.doubts] == [True]
    assert any(line.startswith("  ! b: d2t is absolute") for line in found.lines())


def test_names_of_layers_do_not_hide_the_same_weights(tmp_path: Path) -> None:
    other = build.specforge()
    other.tensors["midlayer.mlp.up_proj.weight"].data = bytes(len(other.tensors["midlayer.mlp.up_proj.weight"].data))
    other.rename("midlayer.", "layers.0.")
    found = compared(tmp_path, build.specforge(), other)
    assert found.changed == ("midlayer.mlp.up_proj.weight",)
    assert (found.only_a, found.only_b) == ((), ())


def test_names_are_those_of_the_files_where_both_have_one_style(tmp_path: Path) -> None:
    found = compared(tmp_path, build.modelopt(layers0=True), build.modelopt(layers0=True))
    assert "layers.0.mlp.up_proj.weight" in found.identical


def test_coverage(tmp_path: Path) -> None:
    outside = [i for i in range(320) if i not in IDS][:2]
    counts = {str(IDS[0]): 60, str(IDS[5]): 20, str(outside[0]): 5, str(outside[1]): 15}
    specials = {"end": IDS[-1], "call": outside[0]}
    found = compared(tmp_path, with_ids(IDS), with_ids(IDS), counts=counts, specials=specials, top=1)
    assert found.coverage is not None
    assert found.coverage[0].share == 0.8
    assert found.coverage[0].uncovered == ((outside[1], 15),)
    assert found.coverage[0].specials == {"call": False, "end": True}


def test_whole_vocabulary_covers_everything(tmp_path: Path) -> None:
    found = compared(tmp_path, build.torchspec(), build.specforge(), counts={"0": 1, "319": 1})
    assert found.coverage is not None
    assert found.coverage[0].share == 1.0
    assert found.positions == 320
    assert not found.interchangeable


def test_machine_interface(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        build.specforge().write(tmp_path / name)
    (tmp_path / "freq.json").write_text('{"1": 3}')
    arguments = ["drafter", "compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]
    assert run([*arguments, "--freq", str(tmp_path / "freq.json")]) == 0
    found = json.loads(capfd.readouterr().out)
    keys = {"positions_differ", "positions", "common", "jaccard", "interchangeable", "identical_tensors", "coverage"}
    assert keys <= set(found)


@pytest.mark.parametrize("text", ["[1]", '{"x": "y"}', '{"a": 1}', "{", '{"1": -1}'])
def test_bad_frequency_table(text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    build.specforge().write(tmp_path / "a")
    (tmp_path / "freq.json").write_text(text)
    folder = str(tmp_path / "a")
    assert run(["drafter", "compare", folder, folder, "--freq", str(tmp_path / "freq.json")]) == 12
    assert "Traceback" not in capfd.readouterr().err


def test_hostile_drafter_is_not_compared(tmp_path: Path) -> None:
    build.specforge().write(tmp_path / "a")
    build.specforge().write(tmp_path / "b")
    (tmp_path / "b" / "model.safetensors").write_bytes(b"no")
    assert run(["drafter", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 12
