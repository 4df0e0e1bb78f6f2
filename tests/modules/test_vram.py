"""GPU memory after a stop, against a stand-in nvidia-smi that answers from a file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from opsctl.agent.gpu import vram
from opsctl.agent.process import process
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess, Play

# Each question drops one line of the script; the last one stays.
STAND_IN = f"""#!{sys.executable}
import json, sys
from pathlib import Path
script = Path(__file__).with_name("answers.json")
answers = json.loads(script.read_text())
kind = "apps" if "compute-apps" in sys.argv[1] else "cards"
now = answers[kind].pop(0) if len(answers[kind]) > 1 else answers[kind][0]
script.write_text(json.dumps(answers))
print("\\n".join(now))
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(STAND_IN)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(vram, "POLL", 0.01)
    return folder / "answers.json"


def answers(script: Path, apps: list[list[str]], cards: list[list[str]]) -> None:
    import json

    script.write_text(json.dumps({"apps": apps, "cards": cards}))


def test_a_stop_waits_until_the_memory_is_free(smi: Path, play: Play, top: Path) -> None:
    told = process.start(InProcess(), "s", ["/bin/sh", "-c", "exec sleep 600"], str(top / "log"))
    mine, other = f"{told['pid']}, GPU-a, 90000", "1, GPU-a, 5000"
    answers(smi, [[mine, other], [other]], [["GPU-a, 95100"], ["GPU-a, 60000"], ["GPU-a, 5200"]])
    call = InProcess()
    process.stop(call, "s", wait=10)
    said = [data["text"] for data, _ in call.heard]
    assert said[-1] == "waiting for 53.6 GiB of GPU memory to come back"  # 60000 - (95100 - 90000) MiB


def test_memory_that_does_not_come_back_is_told_with_its_holders(smi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vram, "BACK", 0.05)
    sleeper = subprocess.Popen(["/bin/sleep", "600"])
    try:
        held = f"{sleeper.pid}, GPU-a, 40000"
        answers(smi, [[held]], [["GPU-a, 40100"]])
        before = vram.held(InProcess(), [sleeper.pid])
        assert before == ({"GPU-a": 40100}, {"GPU-a": 40000})
        answers(smi, [[]], [["GPU-a, 40100"]])
        with pytest.raises(
            AgentError, match=r"GPU-a: 39.1 GiB; no process is listed for it: the host may need a reboot"
        ):
            vram.wait_back(InProcess(), before)
    finally:
        sleeper.kill()
        sleeper.wait()


def test_what_others_take_meanwhile_is_not_waited_for(smi: Path) -> None:
    before = vram.Held({"GPU-a": 40100}, {"GPU-a": 40000})
    answers(smi, [["7, GPU-a, 30000"]], [["GPU-a, 30120"]])
    vram.wait_back(InProcess(), before)


@pytest.mark.parametrize("answer", ["exit 9", "echo garbage", "echo 'x, [N/A], [N/A]'"])
def test_a_program_that_cannot_tell_is_not_waited_for(smi: Path, answer: str) -> None:
    (smi.parent / "nvidia-smi").write_text(f"#!/bin/sh\n{answer}\n")
    assert vram.held(InProcess(), [1]) is None
    vram.wait_back(InProcess(), None)
