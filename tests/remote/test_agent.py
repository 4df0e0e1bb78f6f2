"""The agent over a real SSH connection and over a pipe: calls, errors, order, clean-up."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import Exit, Locked, RemoteError, Unreachable
from opsctl.remote.host import RemoteHost
from opsctl.wire.protocol import LENGTHS, Call
from tests.conftest import MakeHost
from tests.sshd import Sshd, eventually


def shell(script: str, **more: Any) -> Call:
    return Call("proc.run", {"argv": script, **more})


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(params=["ssh", "pipe"])
def any_host(request: pytest.FixtureRequest) -> RemoteHost:
    found: RemoteHost = request.getfixturevalue({"ssh": "host", "pipe": "local_host"}[request.param])
    return found


def test_unknown_calls_are_errors_and_do_not_disturb_the_others(any_host: RemoteHost) -> None:
    first, second, third, fourth = any_host.outcomes(
        [Call("nope.x"), Call("filelook.y"), Call("os.system", {"command": "true"}), shell("echo fine")]
    )
    assert "'nope.x' is no call" in str(first)
    assert "'filelook.y' is no call" in str(second)
    assert "'os.system' is no call" in str(third)
    assert not isinstance(fourth, Exception)
    assert fourth.result["stdout"] == "fine\n"


def test_bytes_come_back_as_they_were_sent(any_host: RemoteHost, tmp_path: Path) -> None:
    content = bytes(range(256)) * 40_000  # 10 MB, more than any window
    path = str(tmp_path / "big")
    any_host.call(Call("files.write", {"path": path}, content))
    reply = any_host.call(Call("filelook.read", {"path": path, "limit": len(content)}))
    assert reply.body == content


def test_calls_run_side_by_side_and_after_starts_when_the_others_have_ended(host: RemoteHost, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    # Each end of a pipe waits for the other: one after the other they would never come back.
    reader, writer = host.send([shell(f"cat {fifo}"), shell(f"echo met > {fifo}; echo written > {tmp_path}/done")])
    [last] = host.send([shell(f"cat {tmp_path}/done")], after=[reader, writer])
    assert last.wait(120).result["stdout"] == "written\n"
    assert reader.wait(120).result["stdout"] == "met\n"


def test_progress_reaches_the_caller_while_the_call_runs(host: RemoteHost, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def on_progress(data: Any, body: bytes) -> None:
        if body == b"waiting\n":
            gate.touch()

    reply = host.call(
        shell(f"echo waiting; until [ -e {gate} ]; do sleep 0.02; done; echo through", live=True),
        timeout=30,
        on_progress=on_progress,
    )
    assert reply.result["code"] == 0


def test_many_threads_share_one_agent(host: RemoteHost) -> None:
    answers: dict[int, str] = {}

    def ask(number: int) -> None:
        answers[number] = host.call(shell(f"echo {number}"), timeout=60).result["stdout"]

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert answers == {n: f"{n}\n" for n in range(20)}


def test_a_call_that_is_late_is_cancelled_and_its_processes_end(host: RemoteHost, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    [pending] = host.send([shell(f"echo $$ > {pid_file}; exec sleep 1000")])
    pid = eventually(lambda: pid_file.exists() and int(pid_file.read_text() or 0))
    with pytest.raises(RemoteError) as caught:
        pending.wait(0.01)
    assert caught.value.kind == "timeout"
    eventually(lambda: not alive(pid))
    assert host.call(shell("echo still here")).result["stdout"] == "still here\n"


def test_when_the_controller_goes_its_processes_and_locks_go_too(
    make_host: MakeHost, sshd: Sshd, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    host = make_host()
    host.call(Call("lock.take", {"holder": {"who": "ann", "run": "r1", "since": "09:00"}}))
    host.send([shell(f"echo $$ > {pid_file}; trap '' HUP; sleep 1000 & wait")])
    pid = eventually(lambda: pid_file.exists() and int(pid_file.read_text() or 0))
    other = make_host()
    with pytest.raises(Locked, match="ann holds the lock for run r1 since 09:00") as caught:
        other.call(Call("lock.take", {"holder": {"who": "bob"}}))
    assert caught.value.exit_code == Exit.LOCKED

    [waiting] = other.send([Call("lock.take", {"holder": {"who": "bob"}, "wait": 30})])
    host.close()
    waiting.wait(120)
    eventually(lambda: not alive(pid))
    assert other.call(Call("lock.show")).result == {"who": "bob"}


def test_signals_one_after_the_other_keep_nobody_from_cleaning_up(
    make_host: MakeHost, agent_pid: Callable[[RemoteHost], int], tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    host = make_host()
    agent = agent_pid(host)
    host.send([shell(f"trap '' HUP TERM; echo $$ > {pid_file}; sleep 1000 & wait; sleep 1000")])
    pid = eventually(lambda: pid_file.exists() and int(pid_file.read_text() or 0))
    os.kill(agent, signal.SIGSTOP)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        os.kill(agent, number)
    os.kill(agent, signal.SIGCONT)
    eventually(lambda: not alive(agent))
    eventually(lambda: not alive(pid))


def test_an_agent_that_stops_is_noticed_though_others_speak_on_its_connection(
    host: RemoteHost, agent_pid: Callable[[RemoteHost], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent, other = agent_pid(host), host.further_agent()
    other.send([shell("true")])[0].wait()
    os.kill(agent, signal.SIGSTOP)
    [pending] = host.send([shell("true")])
    monkeypatch.setattr("opsctl.remote.agent_client.PING_AFTER", 0.2)
    monkeypatch.setattr("opsctl.remote.agent_client.LOST_AFTER", 1.0)
    over = threading.Event()

    def speak() -> None:
        while not over.wait(0.1):
            other.send([shell("true")])[0].wait()

    speaking = threading.Thread(target=speak)
    speaking.start()
    try:
        with pytest.raises(Unreachable, match="no sign of life"):
            pending.wait(120)
    finally:
        over.set()
        speaking.join()
        other.close()
        os.kill(agent, signal.SIGCONT)


def test_a_lost_connection_is_told_to_everybody_who_waits(make_host: MakeHost, sshd: Sshd) -> None:
    host = make_host()
    host.call(shell("true"))
    first, second = host.send([shell("sleep 1000"), shell("sleep 1000")])
    sshd.drop()
    for pending in (first, second):
        with pytest.raises(Unreachable):
            pending.wait(120)
    with pytest.raises(Unreachable):
        host.call(shell("true"))


def test_killed_agent_is_told(make_host: MakeHost, agent_pid: Callable[[RemoteHost], int]) -> None:
    host = make_host()
    [pending] = host.send([shell("sleep 1000")])
    os.kill(agent_pid(host), signal.SIGKILL)
    with pytest.raises(Unreachable, match="lost the agent"):
        pending.wait(120)


def test_an_old_python_is_passed_over_and_none_is_told(make_host: MakeHost, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 121\n")
    old.chmod(0o755)
    with pytest.raises(Unreachable, match=r"no usable python3 \(3.8 or later\)") as caught:
        make_host(python=str(old)).call(shell("true"))
    assert "python" in str(caught.value.hint)
    assert make_host(python=str(old)).raw("echo works").stdout == b"works\n"


@pytest.mark.parametrize("header", ["{bad", "[1]", '{"id": []}', '{"id": 7, "result": 1}', '{"id": 1, "error": "x"}'])
def test_what_only_looks_like_a_frame_is_told(make_host: MakeHost, tmp_path: Path, header: str) -> None:
    python = tmp_path / "python"
    (tmp_path / "frame").write_bytes(LENGTHS.pack(len(header), 0) + header.encode())
    python.write_text(f"#!/bin/sh\ncat {tmp_path}/frame; exec cat > /dev/null\n")
    python.chmod(0o755)
    with pytest.raises(Unreachable, match=r"no frame of ours|never made|an error that is none"):
        make_host(python=str(python)).call(shell("true"), timeout=20)


@pytest.mark.parametrize(("make", "what"), [(os.mkfifo, "a pipe"), (os.mkdir, "a folder")])
def test_what_is_no_file_is_refused_and_blocks_nobody(
    host: RemoteHost, tmp_path: Path, make: Callable[[Path], None], what: str
) -> None:
    make(tmp_path / "odd")
    path = str(tmp_path / "odd")
    asked = [
        Call("filelook.read", {"path": path}),
        Call("serverlog.scan", {"path": path}),
        Call("filelook.read", {"path": "/dev/zero"}),
    ]
    found = host.outcomes(asked, timeout=20)
    assert [str(one) for one in found[:2]] == [f"box: {path} is {what}, not a file"] * 2
    assert "/dev/zero is a device" in str(found[2])


def test_no_thread_but_the_transport_s(make_host: MakeHost) -> None:
    before = set(threading.enumerate())
    hosts = [make_host() for _ in range(3)]
    for host in hosts:
        host.batch([shell("true"), shell("true")])
    new = {thread for thread in threading.enumerate() if thread.name != "opsctl-heartbeat"} - before
    assert len(new) == len(hosts)


def test_nothing_is_left_on_the_host(make_host: MakeHost, state: Path) -> None:
    host = make_host()
    host.call(shell("true"))
    host.close()
    assert not state.exists()
