"""Files too long for a frame: sent over the wire beside their place, then put in place; and taken back."""

from __future__ import annotations

import os
from pathlib import Path

from opsctl import modules
from opsctl.agent import calls
from opsctl.modules import copy
from opsctl.modules.contract import Module
from opsctl.remote.host import RemoteHost
from tests.modules.conftest import InProcess, site


def test_a_long_file_arrives_whole_and_its_undo_brings_the_old_one(local_host: RemoteHost, tmp_path: Path) -> None:
    project, top = tmp_path / "project", tmp_path / "host"
    project.mkdir()
    top.mkdir()
    content = os.urandom(copy.IN_FRAME + 12345)
    (project / "weights").write_bytes(content)
    (top / "weights").write_text("old")
    (top / "weights").chmod(0o640)
    module = modules.get("copy")
    assert isinstance(module, Module)
    args = module.args.model_validate({"src": "weights", "dest": f"{top}/"})
    here = site(project=project)
    change = module.plan(args, local_host.batch(module.observe(args, here)), here)
    assert change is not None
    assert change.transfer is not None
    assert [call.body for call in change.calls] == [b""]
    told: list[float | None] = []
    change.transfer(local_host, lambda text, done: told.append(done))
    assert (top / "weights").read_text() == "old"
    for call in change.calls:
        calls.invoke(call.name, call.args, InProcess(blobs=tmp_path / "step"))
    assert (top / "weights").read_bytes() == content
    assert (top / "weights").stat().st_mode & 0o777 == 0o640
    assert told[-1] == 1.0
    assert module.plan(args, local_host.batch(module.observe(args, here)), here) is None
    assert change.undo is not None
    for call in change.undo:
        calls.invoke(call.name, call.args, InProcess(blobs=tmp_path / "step"))
    assert (top / "weights").read_text() == "old"
    assert os.listdir(top) == ["weights"]
