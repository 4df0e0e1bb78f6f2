"""Looking at servers as root must not run what another user's process says is its interpreter with root's rights."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.remote.host import RemoteHost
from opsctl.wire.protocol import Call

OTHER = 65534
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")


@pytest.fixture
def folder() -> Iterator[Path]:
    """One that everybody reaches: those of pytest are ours alone."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def test_an_interpreter_is_asked_with_the_rights_of_its_own_user(folder: Path, host: RemoteHost) -> None:
    package = folder / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text("import sys\nprint('up', flush=True)\nsys.stdin.read()\n")
    told, python = folder / "ran-as", folder / "python"
    answer = f'["{package}"]'
    python.write_text(f"#!/bin/sh\nid -u -r >> {told}\nid -G >> {told}\necho '{answer}'\n")
    python.chmod(0o755)
    with subprocess.Popen(
        [str(python), "-m", "sglang.launch_server", "--model-path", "m"],
        executable=shutil.which("python3", path="/usr/bin") or sys.executable,
        cwd=folder,
        user=OTHER,
        group=OTHER,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as server:
        assert server.stdout
        assert server.stdout.readline() == b"up\n"
        found = host.call(Call("servers.find", {"locate": True})).result
        (mine,) = [one for one in found if one["pid"] == server.pid]
        server.terminate()
    assert mine["package"] == str(package)
    assert set(told.read_text().split()) == {str(OTHER)}
