"""Folders that a killed process has left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from opsctl.remote.scratch import Scratch


def test_what_a_killed_process_has_left_is_removed_by_the_next_and_what_is_used_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    used = Scratch()
    child = os.fork()
    if not child:
        try:
            (Scratch().path / "file").touch()
        finally:
            os._exit(9)  # without a chance to clean up
    os.waitpid(child, 0)
    [left] = set(tmp_path.iterdir()) - {used.path}
    (tmp_path / f"{left.name}-of-somebody").symlink_to("/etc")
    for folder in (used.path, left):
        os.utime(folder, (1, 1))
    third = Scratch()
    assert not left.exists()
    assert used.path.is_dir()
    for one in (used, third):
        one.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{left.name}-of-somebody"]
