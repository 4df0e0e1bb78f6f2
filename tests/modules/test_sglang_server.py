"""Serving a model: a real change of servers with the practice server, and its taking back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import dispatch
from opsctl.agent.process import pids, process
from opsctl.errors import Conflict, TaskFailed, UsageError
from opsctl.practice import host as practice_host
from opsctl.secret import Secret
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess, Play
from tests.modules.test_process import nothing_left
from tests.sshd import eventually

# What its arguments are read from, in both ways in which releases declare them.
SERVER_ARGS = """
class ServerArgs:
    speculative_num_steps: A[Optional[int], "Draft steps."] = None
    model_path: A[str, Arg(help="The model.", aliases=["--model"])]
    skip: A[bool, Arg(no_cli=True)] = False

def add_cli_args(parser):
    parser.add_argument("--tp-size", "--tensor-parallel-size", type=int)
    parser.add_argument("--host")
    parser.add_argument("--port")
    parser.add_argument("--trust-remote-code", action="store_true")
    parser.add_argument("--mem-fraction-static")
    parser.add_argument("--speculative-algorithm")
    parser.add_argument("--speculative-draft-model-path")
"""
ROOT = Path(__file__).parents[2]
TREE = practice_host.TREE / "python"
__all__ = ["nothing_left"]


class Served:
    """A host below a folder: releases, a log, and settings as in an inventory."""

    def __init__(self, top: Path, play: Play, project: Path) -> None:
        self.top, self.play = top, play
        shutil.copytree(ROOT / "templates", project)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        (top / "logs").mkdir()
        (top / "model").mkdir()
        (top / "model" / "config.json").write_text('{"practice_scenario": "quick"}')
        self.settings: dict[str, Any] = {
            "port": self.port,
            "python": sys.executable,
            "model_path": str(top / "model"),
            "log": str(top / "logs" / "sglang.log"),
            "launch": {
                "trust-remote-code": True,
                "speculative-algorithm": "EAGLE3",
                "speculative-num-steps": 3,
                "mem-fraction-static": 0.9,
            },
            "env": {"PYTHONPATH": str(TREE), "PYTHONDONTWRITEBYTECODE": "1"},
        }
        play.site.variables["sglang"] = self.settings  # type: ignore[index]

    def release(self, name: str, scenario: str = "quick") -> str:
        folder = self.top / "releases" / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"practice_scenario": scenario}))
        return str(folder)

    def run(self, **args: Any) -> dict[str, Any]:
        return self.play.run("sglang_server", **{"stop_wait": 10, "ready_timeout": 60, **args})

    def answers(self) -> str | None:
        """The draft model that the server on the port says it serves; None if none answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/get_server_info", timeout=5) as answer:
                info: dict[str, Any] = json.load(answer)
        except OSError:
            return None
        return str(info["speculative_draft_model_path"])

    def current(self) -> str | None:
        link = self.top / "releases" / "current"
        return os.readlink(link) if link.is_symlink() else None


@pytest.fixture
def served(top: Path, play: Play, tmp_path: Path) -> Served:
    return Served(top, play, tmp_path / "project")


def test_a_deploy_and_its_taking_back_leave_the_old_release_answering(served: Served) -> None:
    first, second = served.release("first"), served.release("second")
    told = served.run(drafter=first)
    assert set(told["phases"]) >= {"loading weights", "capturing CUDA graphs"}
    assert (served.answers(), served.current()) == (first, "first")
    assert served.run(drafter=first)["changed"] is False
    served.play.steps.clear()
    launch = served.top / "logs" / f"launch-{served.port}.sh"
    before = launch.read_text()
    assert f"--speculative-draft-model-path {first}" in before
    served.run(drafter=second)
    assert (served.answers(), served.current()) == (second, "second")
    assert f"--speculative-draft-model-path {second}" in launch.read_text()
    served.play.rollback()
    assert (served.answers(), served.current(), launch.read_text()) == (first, "first", before)
    assert served.run(drafter=first)["changed"] is False
    served.run(state="stopped")
    assert served.answers() is None


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        (
            "oom-while-loading",
            "while allocating the KV cache: torch.OutOfMemoryError: CUDA out of memory.*"
            "lower --mem-fraction-static from 0.90 to 0.86",
        ),
        ("hangs-while-loading", "stands still while allocating the KV cache: nothing new in .*sglang.log for 2 s"),
    ],
)
def test_a_release_that_does_not_start_says_why_and_gives_way_to_the_old_one(
    served: Served, scenario: str, message: str
) -> None:
    first, bad = served.release("first"), served.release("bad", scenario)
    served.run(drafter=first)
    served.play.steps.clear()
    with pytest.raises(AgentError, match=message):
        served.run(drafter=bad, stall=2)
    served.play.rollback()
    assert (served.answers(), served.current()) == (first, "first")


def test_a_restart_keeps_the_draft_model_that_is_in_service(served: Served) -> None:
    first = served.release("first")
    served.run(drafter=first)
    old = process.status(InProcess(), f"sglang-{served.port}")["pid"]
    served.run(state="restarted")
    assert process.status(InProcess(), f"sglang-{served.port}")["pid"] != old
    assert served.answers() == first
    assert served.run()["changed"] is False


def test_a_release_stays_and_any_other_draft_model_gives_way_to_the_command(served: Served) -> None:
    served.settings["weights_root"] = str(served.top)  # its releases/ are what deploys put into service
    one, two, deployed = served.top / "one", served.top / "two", served.release("deployed")
    for folder in (one, two):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    served.settings["launch"]["speculative-draft-model-path"] = str(one)
    served.run()
    assert served.answers() == str(one)
    served.settings["launch"]["speculative-draft-model-path"] = str(two)
    served.run()
    assert served.answers() == str(two)
    served.run(drafter=deployed)
    served.run(state="restarted")
    assert served.answers() == deployed


def test_a_flag_that_the_source_does_not_take_is_named_before_the_old_server_is_stopped(served: Served) -> None:
    first = served.release("first")
    served.run(drafter=first)
    tree = served.top / "tree"
    shutil.copytree(TREE, tree)
    (tree / "sglang" / "srt" / "server_args.py").write_text(SERVER_ARGS)
    served.settings["env"]["PYTHONPATH"] = str(tree)
    served.settings["launch"] |= {"speculative-num-stepz": 3, "speculative-adaptive": True}
    with pytest.raises(TaskFailed, match=f"{tree}/sglang has no flag --speculative-num-stepz and --sp.*ve$") as refused:
        served.run(state="restarted")
    assert refused.value.hint is not None
    assert "did you mean --speculative-num-steps?; SGLang has it from 0.5.11 on" in refused.value.hint
    assert served.answers() == first
    for flag in ("speculative-num-stepz", "speculative-adaptive"):
        del served.settings["launch"][flag]
    served.settings["launch"]["trust-remote"] = True  # a beginning is taken for the whole
    del served.settings["launch"]["trust-remote-code"]
    assert served.run(state="restarted")["changed"] is True
    assert served.answers() == first


def test_a_server_whose_command_is_not_described_is_restarted_as_it_runs(served: Served) -> None:
    first = served.release("first")
    served.run(drafter=first)
    name = f"sglang-{served.port}"
    before = process.status(InProcess(), name)
    served.settings["launch"] = None
    assert served.run()["changed"] is False
    served.run(state="restarted")
    again = process.status(InProcess(), name)
    assert (again["argv"], again["env_digest"]) == (before["argv"], before["env_digest"])
    assert again["pid"] != before["pid"]
    served.play.steps.clear()
    served.run(speculation=False)
    assert not any(word.startswith("--speculative") for word in process.status(InProcess(), name)["argv"])
    served.play.rollback()
    assert process.status(InProcess(), name)["argv"] == before["argv"]
    assert served.answers() == first
    with pytest.raises(UsageError, match="does not say how its server is started"):
        served.run(drafter=first)


def test_another_environment_means_a_restart_and_secrets_stay_out_of_sight(served: Served) -> None:
    first = served.release("first")
    served.settings["env"]["HF_TOKEN"] = Secret("hf_secret_token")
    served.run(drafter=first)
    assert served.run(drafter=first)["changed"] is False
    served.settings["env"]["HF_TOKEN"] = Secret("hf_other_token")
    assert served.run(drafter=first)["changed"] is True
    launch = (served.top / "logs" / f"launch-{served.port}.sh").read_text()
    assert "token" not in launch
    planned = [call.args for _, change in served.play.steps for call in (*change.calls, *(change.undo or ()))]
    assert "token" not in json.dumps(planned)


def test_a_server_of_someone_else_is_left_alone_or_taken_over_and_given_back(served: Served) -> None:
    theirs, ours = served.release("theirs"), served.release("ours")
    argv = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(served.top / "model")]
    argv += ["--port", str(served.port), "--speculative-draft-model-path", theirs]
    with (served.top / "their.log").open("ab") as log:
        foreign = subprocess.Popen(
            argv,
            env={**os.environ, **served.settings["env"], "KEPT": "yes"},
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    try:
        eventually(lambda: served.answers() == theirs)
        with pytest.raises(Conflict, match=f"a server that opsctl did not start holds port {served.port}"):
            served.run(drafter=ours)
        assert foreign.poll() is None
        assert f"stop pid {foreign.pid} of " in served.play.plan("sglang_server", drafter=ours, adopt=True)[3].summary
        served.run(drafter=ours, adopt=True)
        assert foreign.wait(120) == 0
        assert served.answers() == ours
        served.play.rollback()
        assert served.answers() == theirs
        back = process.status(InProcess(), f"sglang-{served.port}")
        assert back["argv"] == argv
        assert b"KEPT=yes" in Path(f"/proc/{back['pid']}/environ").read_bytes()
        assert back["log"] == str(served.top / "their.log")
    finally:
        if foreign.poll() is None:
            foreign.send_signal(signal.SIGKILL)
            foreign.wait()


def test_whatever_else_listens_on_the_port_is_left_alone(served: Served) -> None:
    """What is yours stays: `adopt` is for SGLang servers, and the port may be sshd's by a mistake in the inventory."""
    with subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(served.port)], process_group=0
    ) as other:
        try:
            eventually(lambda: (pids.listener(served.port) or {}).get("pid") == other.pid)
            for args in ({"drafter": served.release("ours")}, {"state": "stopped"}, {"state": "restarted"}):
                with pytest.raises(Conflict, match=f"not recognised as an SGLang server .pid {other.pid} of "):
                    served.run(adopt=True, **args)
                assert served.play.steps == []
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"launch": None}, "does not say how its server is started"),
        ({"container": "sglang", "unit": "sglang"}, "both `unit` and `container` are set"),
        ({"launch": {"api-key": Secret("key")}}, "api-key is a Secret, which cannot stand in a command"),
    ],
)
def test_settings_that_cannot_be_served(served: Served, change: dict[str, Any], message: str) -> None:
    served.settings.update(change)
    with pytest.raises(UsageError, match=message):
        served.run()


def test_a_server_that_is_still_loading_is_waited_for(served: Served) -> None:
    first = served.release("first")
    served.settings["launch"] = [sys.executable, "-c", "import time; time.sleep(600)"]
    *_, change = served.play.plan("sglang_server", drafter=first)
    assert change is not None
    for call in change.calls:
        if call.name != "ready.wait":
            dispatch.invoke(call.name, call.args, InProcess(call.body, served.play.folder / "begun"))
    *_, change = served.play.plan("sglang_server", drafter=first)
    assert change is not None
    assert [call.name for call in change.calls] == ["ready.wait"]
    assert change.undo == ()
