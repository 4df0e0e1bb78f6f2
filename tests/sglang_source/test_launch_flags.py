"""The table of launch flags, and reading them from a tree, against releases."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from opsctl.agent.source.interpreter import known
from opsctl.sglang.releases.version import Version
from opsctl.sglang.server.flags import history
from opsctl.wire.protocol import Context
from tests.sglang_source.releases import wheel

# How many argparse itself has (its own --help aside), in environments in which the release can be imported.
COUNTED = {"0.5.9": 341, "0.5.12": 402, "0.5.23": 559}


@pytest.mark.parametrize("version", COUNTED)
def test_the_flags_of_a_release_are_those_of_the_table(version: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel(version)) as archive:
        parts = ("sglang/srt/server_args", "sglang/srt/arg_groups/", "sglang/launch_server", "sglang/cli/")
        archive.extractall(tmp_path, [name for name in archive.namelist() if name.startswith(parts)])
    found = known(Context(), sys.executable, str(tmp_path), str(tmp_path))
    assert found["package"] == str(tmp_path / "sglang")
    release = Version.told(version)
    assert release is not None
    has = {
        flag
        for flag, since in history().items()
        if (since.first is None or since.first <= release) and (since.last is None or release <= since.last)
    }
    assert set(found["flags"]) == has
    assert len(has) == COUNTED[version]
