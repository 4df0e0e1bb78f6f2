from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.sglang_source.releases import checkout

MakeTree = Callable[[str], Path]


@pytest.fixture(scope="session")
def release(tmp_path_factory: pytest.TempPathFactory) -> MakeTree:
    """The source tree of a release, to read only: shared by the tests of a session."""
    trees: dict[str, Path] = {}

    def get(version: str) -> Path:
        if version not in trees:
            trees[version] = checkout(version, tmp_path_factory.mktemp("sglang"))
        return trees[version]

    return get


@pytest.fixture
def copy_of(release: MakeTree, tmp_path: Path) -> MakeTree:
    """A release's source tree of one's own, to change."""

    def get(version: str) -> Path:
        target = tmp_path / f"sglang-{version}"
        shutil.copytree(release(version), target)
        return target

    return get
