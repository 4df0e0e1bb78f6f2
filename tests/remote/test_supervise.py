"""Confirm or revert: a change that the host takes back by itself when nobody says that it is good."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.errors import Conflict, Locked, RemoteError
from opsctl.remote import steps as journal
from opsctl.remote.host import RemoteHost
from opsctl.wire.protocol import Call
from tests.conftest import MakeHost
from tests.remote.steps import RUN, begin, supervised, writing
from tests.sshd import Sshd, eventually

HOLDER = {"who": "ann", "run": RUN, "since": "12:00"}


@pytest.fixture
def served(tmp_path: Path) -> Path:
    path = tmp_path / "served"
    path.write_bytes(b"old")
    return path


def run_on(host: RemoteHost, run: str = RUN) -> dict[str, Any]:
    found: dict[str, Any] = host.call(Call("history.show", {"run": run})).result
    return found


def open_run(host: RemoteHost, served: Path) -> None:
    """Lock, run, and a first plain step beside the served file."""
    host.call(Call("lock.take", {"holder": HOLDER}))
    host.call(begin())
    host.call(writing(served.with_name("launch"), b"--flag", 1))


def supervisor_of(state: Path) -> int:
    """The process that has the supervisor's log open for writing."""
    log = str(state / "runs" / RUN / "supervisor.log")
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(process / "fd" / "1") == log:
                return int(process.name)
        except OSError:
            continue
    return 0


def test_confirmed_it_stays(host: RemoteHost, served: Path) -> None:
    open_run(host, served)
    result = host.call(supervised(served, b"new", 60)).result
    assert result["state"] == "applied"
    assert run_on(host)["state"] == "supervised"
    host.call(Call("supervise.confirm", {"run": RUN, "outcome": "done"}))
    assert served.read_bytes() == b"new"
    assert (run_on(host)["outcome"], run_on(host)["confirmed"]) == ("done", True)


def test_cut_off_and_not_confirmed_the_host_takes_the_whole_run_back(
    make_host: MakeHost, sshd: Sshd, served: Path
) -> None:
    host = make_host()
    open_run(host, served)
    host.call(supervised(served, b"new", 0.5))
    sshd.drop()
    eventually(lambda: served.read_bytes() == b"old")
    following = make_host()
    eventually(lambda: run_on(following)["outcome"] == "rolled-back")
    assert run_on(following)["why"] == "not confirmed"
    assert not served.with_name("launch").exists()
    with pytest.raises(Conflict, match="too late"):
        following.call(Call("supervise.confirm", {"run": RUN}))


def test_after_a_lost_connection_it_can_still_be_followed_and_confirmed(
    make_host: MakeHost, sshd: Sshd, served: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    slow = Call("proc.run", {"argv": f"echo working; until [ -e {gate} ]; do sleep 0.05; done", "live": True})
    host = make_host()
    open_run(host, served)
    host.send([supervised(served, b"new", 60, slow)])
    eventually(lambda: served.read_bytes() == b"new")
    sshd.drop()

    following = make_host()
    with pytest.raises(Locked) as caught:
        following.call(Call("lock.take", {"holder": {"who": "bob"}}))
    assert caught.value.holder == HOLDER, "the supervisor holds the host while it works"
    gate.touch()
    said: list[bytes] = []
    result = following.call(
        Call("supervise.follow", {"run": RUN}), on_progress=lambda data, body: said.append(body)
    ).result
    assert result["state"] == "applied"
    assert b"working\n" in said, "also what was said while nobody listened"
    following.call(Call("supervise.confirm", {"run": RUN, "outcome": "done"}))
    assert served.read_bytes() == b"new"
    following.call(Call("lock.take", {"holder": {"who": "bob"}}))


def test_a_change_that_fails_is_taken_back_at_once(host: RemoteHost, served: Path) -> None:
    open_run(host, served)
    failing = Call("proc.run", {"argv": "echo no room >&2; exit 4", "ok": [0]})
    result = host.call(supervised(served, b"new", 60, failing)).result
    assert (result["state"], result["why"]) == ("reverted", "failed")
    assert "no room" in result["error"]["message"]
    assert result["report"]["outcome"] == "rolled-back"
    assert served.read_bytes() == b"old"


def test_a_supervisor_that_cannot_be_started_leaves_no_step_behind(host: RemoteHost, served: Path, state: Path) -> None:
    open_run(host, served)
    in_the_way = state / "runs" / RUN / "supervisor.log"
    in_the_way.mkdir()
    with pytest.raises(RemoteError, match=r"supervisor\.log"):
        host.call(supervised(served, b"new", 60))
    assert [step["seq"] for step in run_on(host)["log"]] == [1]
    assert run_on(host)["state"] == "running"
    in_the_way.rmdir()
    assert host.call(supervised(served, b"new", 60)).result["state"] == "applied"
    host.call(Call("supervise.confirm", {"run": RUN, "outcome": "done"}))


def test_a_step_that_the_journal_refuses_leaves_no_supervisor_behind(host: RemoteHost, served: Path) -> None:
    open_run(host, served)
    with pytest.raises(RemoteError, match="has a step 1 already"):
        host.call(supervised(served, b"new", 60, seq=1))
    assert run_on(host)["state"] == "running"
    assert served.read_bytes() == b"old"
    assert host.call(supervised(served, b"new", 60)).result["state"] == "applied"
    host.call(Call("supervise.confirm", {"run": RUN, "outcome": "done"}))


def test_confirming_what_was_not_made_yet_confirms_nothing(
    make_host: MakeHost, served: Path, state: Path, tmp_path: Path
) -> None:
    host, other = make_host(), make_host()
    open_run(host, served)
    failing = Call("proc.run", {"argv": f"until [ -e {tmp_path}/gate ]; do sleep 0.05; done; exit 4", "ok": [0]})
    [started] = host.send([supervised(served, b"new", 60, failing)])
    eventually(lambda: served.read_bytes() == b"new")
    [confirmed] = other.send([Call("supervise.confirm", {"run": RUN, "outcome": "done"})])
    eventually((state / "runs" / RUN / "verdict").exists)
    (tmp_path / "gate").touch()
    with pytest.raises(Conflict):
        confirmed.wait(120)
    assert started.wait(120).result["why"] == "failed"
    assert served.read_bytes() == b"old"
    assert run_on(host)["outcome"] == "rolled-back"


def test_reverting_also_stops_a_change_in_the_middle(make_host: MakeHost, served: Path) -> None:
    host, other = make_host(), make_host()
    open_run(host, served)
    endless = Call("proc.run", {"argv": ["sleep", "1000"]})
    [started] = host.send([supervised(served, b"new", 60, endless)])
    eventually(lambda: served.read_bytes() == b"new")
    report = other.call(Call("supervise.revert", {"run": RUN}), timeout=20).result
    assert report["outcome"] == "rolled-back"
    assert served.read_bytes() == b"old"
    assert started.wait(120).result["state"] == "reverted"


@pytest.mark.parametrize("when", ["working", "waiting"])
def test_killed_supervisor_leaves_a_run_that_the_next_can_take_back(
    make_host: MakeHost, sshd: Sshd, served: Path, state: Path, when: str
) -> None:
    host = make_host()
    open_run(host, served)
    more = [Call("proc.run", {"argv": ["sleep", "1000"]})] if when == "working" else []
    [started] = host.send([supervised(served, b"new", 60, *more)])
    pid = eventually(lambda: served.read_bytes() == b"new" and supervisor_of(state))
    if when == "waiting":
        assert started.wait(120).result["state"] == "applied"
    os.kill(pid, signal.SIGKILL)
    if when == "working":
        with pytest.raises(RemoteError) as caught:
            started.wait(120)
        assert caught.value.kind == "lost"
        with pytest.raises(Conflict, match="not in place"):
            host.call(Call("supervise.confirm", {"run": RUN}))
    sshd.drop()
    following = make_host()
    eventually(lambda: run_on(following)["state"] == "unfinished")
    assert following.call(Call("journal.rollback", {"run": RUN})).result["outcome"] == "rolled-back"
    assert served.read_bytes() == b"old"


def test_killed_agent_does_not_stop_the_supervisor(
    make_host: MakeHost, served: Path, agent_pid: Callable[[RemoteHost], int]
) -> None:
    host = make_host()
    open_run(host, served)
    host.call(supervised(served, b"new", 1.0))
    os.kill(agent_pid(host), signal.SIGKILL)
    eventually(lambda: served.read_bytes() == b"old")
    assert run_on(make_host())["why"] == "not confirmed"


def test_steps_after_the_supervised_one_are_taken_back_too(make_host: MakeHost, served: Path) -> None:
    """Also where that takes agent code which the supervisor did not start with."""
    host = make_host()
    open_run(host, served)
    host.call(supervised(served, b"new", 3.0))
    mark = served.with_name("mark")
    undo = Call("proc.run", {"argv": ["touch", str(mark)]})
    host.call(journal.apply(RUN, 3, "after", [Call("filelook.stat", {"path": "/"})], [undo]))
    eventually(lambda: served.read_bytes() == b"old")
    assert mark.exists()
    assert run_on(make_host())["outcome"] == "rolled-back"
