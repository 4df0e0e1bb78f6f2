"""Background processes: known for sure, stopped without touching others, brought back by a rollback."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from opsctl.agent.process import pids, process
from opsctl.secret import Secret
from opsctl.wire.protocol import AgentError
from tests.modules.conftest import InProcess, Play
from tests.sshd import eventually

# Starts a child that outlives it, says so, and ends on SIGTERM; with STUBBORN the child ignores SIGTERM.
PARENT = """
import os, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c",
    "import signal, time; STUBBORN and signal.signal(signal.SIGTERM, signal.SIG_IGN); print('child', flush=True)"
    "; time.sleep(600)".replace("STUBBORN", sys.argv[1])])
print("up", os.environ.get("KEY"), child.pid, flush=True)
time.sleep(600)
"""


def alive(pid: int) -> bool:
    seen = pids.look(pid)
    return seen is not None and seen.alive


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, play: Play, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(process, "LASTS", 0.0)
    yield
    for record in (tmp_path / "state" / "processes").glob("*.json"):
        for member in process.living(json.loads(record.read_text())):
            os.kill(member.pid, signal.SIGKILL)
    for child in process._children:
        child.wait()


def test_a_process_is_started_once_and_stopped_with_its_children(play: Play, top: Path) -> None:
    log = top / "log"
    wanted = {"name": "s", "argv": [sys.executable, "-c", PARENT, "0"], "log": str(log), "env": {"KEY": Secret("k3y!")}}
    first = play.run("process", **wanted)
    eventually(lambda: log.read_text().count("\n") == 2)
    assert "up k3y!" in log.read_text()
    assert play.run("process", **wanted)["changed"] is False
    members = process.status(InProcess(), "s")["members"]
    assert len(members) == 2
    assert "k3y!" not in json.dumps(process.status(InProcess(), "s"))
    stopped = process.stop(InProcess(), "s", wait=10)
    assert stopped == {"stopped": True, "pid": first["pid"]}
    assert not any(alive(member["pid"]) for member in members)
    assert process.status(InProcess(), "s") == {"state": "absent"}


def test_children_that_outlive_their_parent_are_still_ours(
    play: Play, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "TERM_REST", 0.3)
    log = top / "log"
    started = play.run("process", name="s", argv=[sys.executable, "-c", PARENT, "1"], log=str(log))
    eventually(lambda: log.read_text().count("\n") == 2)
    child = int(log.read_text().split("up None ")[1].split()[0])
    os.kill(started["pid"], signal.SIGKILL)
    eventually(lambda: process.status(InProcess(), "s")["state"] == "orphans")
    assert play.run("process", name="s", state="stopped")["changed"] is True  # SIGTERM is ignored: SIGKILL it is
    assert not alive(child)


def test_rollback_of_a_restart_brings_the_old_program_back_with_its_environment(play: Play, top: Path) -> None:
    log = top / "log"
    say = "import os, time; print(os.environ['KEY'], flush=True); time.sleep(600)"
    old = {"name": "s", "argv": [sys.executable, "-c", say], "log": str(log), "env": {"KEY": Secret("old-key")}}
    play.run("process", **old)
    play.steps.clear()
    play.run("process", **{**old, "env": {"KEY": "new-key"}})
    eventually(lambda: "new-key" in log.read_text())
    new = process.status(InProcess(), "s")["pid"]
    play.rollback()
    eventually(lambda: log.read_text().splitlines() == ["old-key", "new-key", "old-key"])
    assert not alive(new)
    assert play.run("process", **old)["changed"] is False
    again = process.status(InProcess(), "s")["pid"]
    play.rollback()  # a second time: nothing more to do
    assert process.status(InProcess(), "s")["pid"] == again


def test_a_restart_cut_after_the_stop_can_be_undone(play: Play, top: Path) -> None:
    old = {"name": "s", "argv": ["sleep", "600"], "log": str(top / "log")}
    play.run("process", **old)
    play.steps.clear()
    _, _, _, change = play.plan("process", name="s", argv=["sleep", "601"], log=str(top / "log"))
    assert change is not None
    blobs = play.folder / "cut"
    play.steps.append((blobs, change))
    process.stop(InProcess(blobs=blobs), **{**change.calls[0].args, "wait": 10})
    play.rollback()
    assert process.status(InProcess(), "s")["argv"] == ["sleep", "600"]
    assert process.status(InProcess(), "s")["state"] == "running"


def test_a_pid_that_is_someone_elses_now_is_never_signalled(play: Play, top: Path, tmp_path: Path) -> None:
    play.run("process", name="s", argv=["sleep", "600"], log=str(top / "log"))
    path = tmp_path / "state" / "processes" / "s.json"
    record = json.loads(path.read_text())
    os.kill(record["pid"], signal.SIGKILL)
    # Start times are counted in ticks of 10 ms, within which no pid comes round again.
    tick = 1 / os.sysconf("SC_CLK_TCK")
    eventually(lambda: time.clock_gettime(time.CLOCK_BOOTTIME) >= (record["start"] + 1) * tick)
    foreign = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        for change in ({"pid": foreign.pid, "sid": foreign.pid}, {"boot": "an earlier boot"}):
            path.write_text(json.dumps({**record, "pid": foreign.pid, "sid": foreign.pid, **change}))
            assert process.status(InProcess(), "s")["state"] == "dead"
            process.stop(InProcess(), "s", wait=1)
            assert alive(foreign.pid)
    finally:
        foreign.kill()
        foreign.wait()


def test_what_a_rollback_has_started_again_can_itself_be_undone(play: Play, top: Path) -> None:
    runs = [Play(top / name) for name in ("first", "good", "bad")]
    for seconds, run in enumerate(runs, start=600):
        run.run("process", name="s", argv=["sleep", str(seconds)], log=str(top / "log"))
    runs[2].rollback()
    assert process.status(InProcess(), "s")["argv"] == ["sleep", "601"]
    runs[1].rollback()  # of a process that it had not started itself
    assert process.status(InProcess(), "s")["argv"] == ["sleep", "600"]
    runs[0].rollback()
    assert process.status(InProcess(), "s")["state"] == "absent"


def test_a_process_started_anew_by_someone_else_is_not_undone(play: Play, top: Path) -> None:
    play.run("process", name="s", argv=["sleep", "600"], log=str(top / "log"))
    process.stop(InProcess(), "s", wait=10)
    process.start(InProcess(), "s", ["sleep", "602"], str(top / "log"))
    with pytest.raises(AgentError, match="started anew with another command") as caught:
        play.rollback()
    assert caught.value.kind == "conflict"
    assert process.status(InProcess(), "s")["state"] == "running"


@pytest.mark.parametrize(
    ("argv", "message"),
    [(["no-such-program"], "no-such-program is not a program"), (["/etc/passwd"], "/etc/passwd may not be executed")],
)
def test_a_program_that_cannot_be_started_is_told_at_once(play: Play, top: Path, argv: list[str], message: str) -> None:
    with pytest.raises(AgentError, match=message):
        play.run("process", name="s", argv=argv, log=str(top / "log"))
    assert process.status(InProcess(), "s") == {"state": "absent"}


def test_a_process_that_ends_at_once_has_failed_each_time(
    play: Play, top: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LASTS", 60.0)
    log = top / "log"
    log.write_text("an earlier crash\n")
    silent = {"name": "s", "argv": ["/bin/false"], "log": str(log)}
    for _ in range(2):
        with pytest.raises(AgentError, match=r"^s ended at once: exit code 1$"):
            play.run("process", **silent)
    words = ["/bin/sh", "-c", "echo no such model >&2; exit 3"]
    with pytest.raises(AgentError, match=r"^s ended at once: exit code 3; the last it said: no such model$"):
        play.run("process", name="s", argv=words, log=str(log))


def test_a_port_that_another_program_holds_is_named(play: Play, top: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(AgentError, match=f"port {port} is taken by pid {os.getpid()}"):
            play.run("process", name="s", argv=["sleep", "1"], log=str(top / "log"), port=port)


def test_the_record_is_for_its_owner_alone(play: Play, top: Path, tmp_path: Path) -> None:
    play.run("process", name="s", argv=["sleep", "600"], log=str(top / "log"), env={"KEY": "secret"})
    path = tmp_path / "state" / "processes" / "s.json"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
