"""What is yours stays: which servers of others can be taken over and given back; any other process is never touched."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.process import pids, process
from opsctl.agent.server import adoption
from opsctl.wire import command_line
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess

SERVER = """
import os, sys, time
if sys.argv[1:]:
    os.setresuid(*[int(sys.argv[1])] * 3)
print("up", flush=True)
time.sleep(600)
"""
PYTHON = os.path.realpath(sys.executable)
Begin = Callable[..., subprocess.Popen[bytes]]


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("/venv/bin/python -m sglang.launch_server --port 1", True),
        ("python3.11 -u -X dev -m sglang.launch_server", True),
        ("python -m sglang.srt.server", True),
        ("python3 /src/python/sglang/launch_server.py --tp 8", True),
        ("/venv/bin/python /venv/bin/sglang serve --model-path m", True),
        # These hold a server, show one, or reach one: stopping them would end something else.
        ("tmux new-session -d python -m sglang.launch_server", False),
        ("ssh -L 30000:localhost:30000 gpu python -m sglang.launch_server", False),
        ("bash -c python -m sglang.launch_server", False),
        ("timeout 1h python -m sglang.launch_server", False),
        ("vim sglang/launch_server.py", False),
        ("python -c import sglang.launch_server", False),
        ("python -m pytest -m sglang.launch_server", False),
        ("python supervisor.py sglang/launch_server.py", False),
        ("python -m http.server 30000", False),
        ("sshd: /usr/sbin/sshd -D [listener]", False),
        ("sglang::scheduler_TP0", False),
        ("", False),
    ],
)
def test_only_python_that_runs_sglang_itself_is_a_server(command: str, is_one: bool) -> None:
    assert command_line.runs_server(command.split()) is is_one


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("--api-key k3y --tp 8", "--api-key *** --tp 8"),
        ("--api-key=k3y --port 1", "--api-key=*** --port 1"),
        ("--api-k k3y --admin-api=k3y", "--api-k *** --admin-api=***"),  # argparse takes the beginning of a name
        ("--ssl-keyfile /etc/key --ssl-keyfile-pass k3y", "--ssl-keyfile /etc/key --ssl-keyfile-pass ***"),
        ("--attention-backend fa3", "--attention-backend fa3"),
    ],
)
def test_a_command_is_shown_without_its_keys(said: str, shown: str) -> None:
    assert command_line.masked(said.split()) == shown.split()


@pytest.fixture
def begin(top: Path) -> Iterator[Begin]:
    """Starts something that says when it is up, in a process group of its own."""
    script = top / "sglang" / "launch_server.py"
    script.parent.mkdir()
    script.write_text(SERVER)
    begun: list[subprocess.Popen[bytes]] = []

    def start(*argv: str, **how: Any) -> subprocess.Popen[bytes]:
        words = argv or (PYTHON, "-SE", str(script))
        child = subprocess.Popen(words, stdout=subprocess.PIPE, **{"process_group": 0, "cwd": top, **how})
        begun.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        return child

    yield start
    for child in begun:
        child.kill()
        child.communicate()


def obstacle(child: subprocess.Popen[bytes]) -> str | None:
    first = adoption.server_of(child.pid)
    assert first is not None
    assert first.pid == child.pid
    return adoption.obstacle(first)


def test_what_could_not_be_started_again_as_it_was_is_not_taken_over(begin: Begin, top: Path) -> None:
    assert obstacle(begin()) is None
    gone = top / "gone"
    gone.mkdir()
    lost = begin(cwd=gone)
    gone.rmdir()
    assert obstacle(lost) == "its working folder is no longer there"
    assert obstacle(begin(env={})) == "its environment cannot be read"
    with pytest.raises(AgentError, match=f"pid {lost.pid} cannot be taken over: its working folder"):
        process.adopt(InProcess(), "s", lost.pid, pids.look(lost.pid).start)  # type: ignore[union-attr]


def test_a_server_in_the_process_group_of_a_script_is_left_to_the_script(begin: Begin, top: Path) -> None:
    script = f"echo up; {PYTHON} -SE {top}/sglang/launch_server.py & echo $!; wait"
    shell = begin("/bin/sh", "-c", script)
    assert shell.stdout is not None
    child = int(shell.stdout.readline())
    assert shell.stdout.readline() == b"up\n"
    first = adoption.server_of(child)
    assert first is not None
    assert str(adoption.obstacle(first)).startswith(
        f"it shares its process group with what started it (pid {shell.pid}: /bin/sh -c"
    )
    assert shell.poll() is None
    pids.signal(first, 9)


def test_a_program_with_the_arguments_of_a_server_is_none(begin: Begin, top: Path) -> None:
    """Only the program that the kernel runs counts: anybody can give a process any name."""
    (top / "sglang" / "launch_server.py").write_text("echo up; read -r line")
    child = begin("python", f"{top}/sglang/launch_server.py", executable="/bin/sh", stdin=subprocess.PIPE)
    assert command_line.runs_server(pids.argv(child.pid))
    assert adoption.server_of(child.pid) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_server_of_another_user_is_not_started_again_as_us(begin: Begin, top: Path) -> None:
    child = begin(PYTHON, "-SE", f"{top}/sglang/launch_server.py", "65534")
    assert str(obstacle(child)).startswith("it runs as nobody, and opsctl works as root")


def test_what_shares_a_pipe_with_an_adopted_server_is_not_signalled(begin: Begin, top: Path) -> None:
    server = begin()
    start = pids.look(server.pid).start  # type: ignore[union-attr]
    beside = subprocess.Popen(["sleep", "600"], process_group=server.pid)
    try:
        process.adopt(InProcess(), "s", server.pid, start)
        assert process.stop(InProcess(), "s", wait=10)["stopped"] is True
        assert server.wait(120) == -15
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()


def test_a_signal_goes_to_the_process_that_was_meant_and_no_other(begin: Begin) -> None:
    child = begin()
    seen = pids.look(child.pid)
    assert seen is not None
    with pytest.raises(ProcessLookupError):
        pids.signal(seen._replace(start=seen.start - 1), 9)  # the number was another's before
    assert child.poll() is None
    pids.signal(seen, 9)
    assert child.wait(120) == -9
