"""What is sent of a new release, and what an earlier one already has."""

from __future__ import annotations

import hashlib
from pathlib import Path

from opsctl.drafter.chunks import Chunk, Plan, plan, ranges
from opsctl.drafter.folder import open_folder
from tests.drafter import build
from tests.drafter.build import Drafter

SIZE = 4096


def chunked(folder: Path) -> list[Chunk]:
    content = {file.name: file.read_bytes() for file in folder.iterdir()}
    return [
        Chunk(part, hashlib.sha256(content[part.file][part.start : part.end]).hexdigest())
        for part in ranges(open_folder(str(folder)), SIZE)
    ]


def carry_out(made: Plan, new: Path, old: Path) -> dict[str, bytes]:
    """The release the plan gives."""
    result = {link.target: (old / link.source).read_bytes() for link in made.links}
    buffers = {file.name: bytearray(file.stat().st_size) for file in new.iterdir() if file.name not in result}
    for copy in made.copies:
        data = (old / copy.source.file).read_bytes()[copy.source.start : copy.source.end]
        buffers[copy.target.file][copy.target.start : copy.target.end] = data
    for part in made.sends:
        buffers[part.file][part.start : part.end] = (new / part.file).read_bytes()[part.start : part.end]
    return result | {name: bytes(data) for name, data in buffers.items()}


def released(made: Drafter, folder: Path) -> tuple[Path, list[Chunk]]:
    made.write(folder)
    return folder, chunked(folder)


def test_every_byte_is_in_exactly_one_chunk(tmp_path: Path) -> None:
    folder = build.torchspec().write(tmp_path / "d")
    at: dict[str, int] = {}
    for part in ranges(open_folder(str(folder)), SIZE):
        assert part.start == at.get(part.file, 0)
        assert 0 < part.size <= SIZE
        at[part.file] = part.end
    assert at == {file.name: file.stat().st_size for file in folder.iterdir()}


def test_nothing_changed_nothing_is_sent(tmp_path: Path) -> None:
    old, before = released(build.torchspec(), tmp_path / "old")
    new, now = released(build.torchspec(), tmp_path / "new")
    made = plan(now, {"old": before})
    assert (made.sent, made.copies, len(made.links)) == (0, (), 2)
    assert carry_out(made, new, old) == {f.name: f.read_bytes() for f in new.iterdir()}


def test_a_tensor_that_moved_is_not_sent(tmp_path: Path) -> None:
    old, before = released(build.torchspec(), tmp_path / "old")
    changed = build.torchspec(seed=77)
    del changed.tensors["embed_tokens.weight"]
    embed = build.torchspec().tensors["embed_tokens.weight"]
    changed.tensors = {"embed_tokens.weight": embed} | changed.tensors
    new, now = released(changed, tmp_path / "new")
    made = plan(now, {"old": before})
    assert made.kept >= len(embed.data)
    assert made.sent <= sum(file.stat().st_size for file in new.iterdir()) - len(embed.data)
    assert carry_out(made, new, old) == {f.name: f.read_bytes() for f in new.iterdir()}


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    _, now = released(build.torchspec(), tmp_path / "new")
    half = [chunk.range for chunk in now[: len(now) // 2]]
    made = plan(now, {}, done=half)
    assert made.sent == sum(chunk.range.size for chunk in now) - sum(part.size for part in half)


def test_a_half_placed_file_is_not_replaced_by_a_link(tmp_path: Path) -> None:
    _, before = released(build.torchspec(), tmp_path / "old")
    made = plan(before, {"old": before}, done=[before[-1].range])
    assert all(link.target != before[-1].range.file for link in made.links)
