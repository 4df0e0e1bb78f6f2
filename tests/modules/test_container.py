"""Containers, against a stand-in docker that keeps its state in a file and notes what it was told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from opsctl.agent.process import container
from opsctl.agent.process.wait import Watch
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess

STAND_IN = f"""#!{sys.executable}
import json, sys
from pathlib import Path
state = Path(__file__).with_name("running")
name = sys.argv[-1]
if sys.argv[1] == "container":
    if name != "kimi":
        sys.exit("Error response from daemon: No such container: " + name)
    began = state.exists() and state.read_text()
    print(json.dumps([{{"State": {{"Running": state.exists(), "StartedAt": began}}, "RestartCount": 1,
        "Config": {{"Image": "sglang"}}, "Args": ["--tp", "8"],
        "Mounts": [{{"Destination": "/m", "Source": "/models"}}]}}]))
    sys.exit()
with open(state.with_name("told"), "a") as told:
    told.write(" ".join(sys.argv[1:]) + "\\n")
state.touch() if sys.argv[1] == "start" else state.unlink()
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(STAND_IN)
    (folder / "docker").chmod(0o755)
    (folder / "running").touch()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_restart_is_taken_back_once(docker: Path, tmp_path: Path) -> None:
    def step() -> InProcess:
        return InProcess(blobs=tmp_path / "step")

    assert container.look(step(), "kimi")["mounts"] == {"/m": "/models"}
    container.stop(step(), "kimi", 30, "stop")
    container.start(step(), "kimi", "start")
    for _ in range(2):
        container.restore(step(), "kimi", "start", 30)
        container.resume(step(), "kimi", "stop")
    told = (docker / "told").read_text().splitlines()
    once = ["stop --time 30 -- kimi", "start -- kimi"]
    assert told == once + once
    assert (docker / "running").exists()


def test_a_container_that_docker_starts_again_is_noticed_by_the_wait(docker: Path) -> None:
    watch = Watch({"container": "kimi"})
    watch.look(InProcess())
    (docker / "running").write_text("at another time")
    watch._next = 0.0
    with pytest.raises(AgentError, match=r"container kimi ended and was started again by docker, 1 times so far"):
        watch.look(InProcess())


def test_no_such_container_and_no_docker(docker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert container.look(InProcess(), "other") == {"exists": False, "running": False}
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AgentError, match="docker is not installed") as caught:
        container.look(InProcess(), "kimi")
    assert caught.value.kind == "missing-tool"
