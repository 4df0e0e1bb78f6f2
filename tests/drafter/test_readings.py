"""A folder is read once: what is remembered of it, and when that does not count."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from opsctl.agent.stage import source_files
from opsctl.wire.chunking import CHUNK
from opsctl.wire.protocol import AgentError, Context

LONG_AGO = 1_700_000_000_000_000_000


class Reading(Context):
    def __init__(self, cancelled: Callable[[], bool] = lambda: False) -> None:
        self.cancelled = cancelled  # type: ignore[method-assign]  # what the context asks, as the test likes it


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Eight chunks, written long ago."""
    file = tmp_path / "draft" / "model.bin"
    file.parent.mkdir()
    file.write_bytes(random.Random(1).randbytes(8 * CHUNK))
    os.utime(file, ns=(LONG_AGO, LONG_AGO))
    return file


def digests(file: Path, cancelled: Callable[[], bool] = lambda: False) -> list[str]:
    found = source_files.read(Reading(cancelled), str(file.parent)).result
    return [digest for _, _, digest in found["files"][file.name]]


def spoil(file: Path, at: int) -> None:
    """Change a byte as nothing shows that goes by size, time and inode."""
    stat = file.stat()
    with file.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte[0] ^ 1]))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def test_an_interrupted_reading_goes_on_where_it_was(
    weights: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_files, "WORKERS", 2)  # so that the last chunk is not read together with the first

    def first_chunk_is_noted() -> bool:
        return any(path.read_bytes().count(b"]") for path in state.glob("digests/*"))

    with pytest.raises(AgentError, match="cancelled"):
        digests(weights, first_chunk_is_noted)
    spoil(weights, 0)  # in a chunk that was read
    spoil(weights, 8 * CHUNK - 1)  # in one that was not
    found = digests(weights)
    os.utime(weights)
    anew = digests(weights)
    assert found[0] != anew[0]
    assert found[-1] == anew[-1]


@pytest.mark.parametrize("damage", [b"\n[", b'\n["model.bin", [1', b"\n\xff\n", b"\n[1, 2, 3, 4, 5, 6]\n", b"\n{}\n"])
def test_a_torn_note_costs_nothing_but_time(weights: Path, state: Path, damage: bytes) -> None:
    before = digests(weights)
    [memory] = state.glob("digests/*")
    whole = memory.read_bytes()
    memory.write_bytes(whole[: len(whole) // 2] + damage)
    assert digests(weights) == before
    assert memory.read_bytes() == whole


def test_a_file_that_was_only_just_written_is_read_each_time(weights: Path) -> None:
    soon = time.time_ns() + 3600 * 10**9  # however long the test takes, it stays one of just now
    os.utime(weights, ns=(soon, soon))
    before = digests(weights)
    spoil(weights, 0)
    assert digests(weights)[0] != before[0]


def test_a_file_whose_time_size_or_inode_is_another_is_read_again(weights: Path) -> None:
    before = digests(weights)
    copy = weights.with_name("copy")
    copy.write_bytes(weights.read_bytes())
    spoil(copy, 0)
    os.utime(copy, ns=(LONG_AGO, LONG_AGO))
    copy.replace(weights)
    assert digests(weights)[0] != before[0]


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
def test_what_was_read_of_another_file_is_not_remembered_of_this_one(weights: Path, when: str) -> None:
    """A file takes the place of another for a while, and both keep their inodes and times."""
    before = digests(weights)
    other, aside = weights.with_name(".other"), weights.with_name(".aside")
    other.write_bytes(random.Random(2).randbytes(8 * CHUNK))
    os.utime(other, ns=(LONG_AGO, LONG_AGO))
    os.utime(weights, ns=(LONG_AGO, LONG_AGO + 1))  # what is remembered does not count
    asked = []

    def swap() -> bool:
        asked.append(1)
        if len(asked) == 3:
            weights.rename(aside)
            other.rename(weights)
        return False

    folder = source_files.outlined(str(weights.parent))
    if when == "before it is read":
        weights.rename(aside)
        other.rename(weights)
    with pytest.raises(AgentError, match="changed while"):
        source_files.finish(Reading(swap if when == "while it is read" else lambda: False), folder)
    weights.rename(other)
    aside.rename(weights)
    assert digests(weights) == before


def test_folders_that_were_not_read_for_long_are_forgotten(weights: Path, state: Path, tmp_path: Path) -> None:
    digests(weights)
    [memory] = state.glob("digests/*")
    os.utime(memory, ns=(LONG_AGO, LONG_AGO))
    second = tmp_path / "second" / "model.bin"
    second.parent.mkdir()
    second.write_bytes(b"x")
    digests(second)
    assert not memory.exists()


def test_without_a_place_to_remember_a_folder_is_read_all_the_same(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digests(weights)
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "file"))
    assert digests(weights) == before
