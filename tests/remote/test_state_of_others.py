"""State that somebody else can write is nothing to act on: "Another user's files never become root's actions"."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import file_locks, history, journal
from opsctl.agent.core.durable import demand_safe
from opsctl.agent.process import process
from opsctl.errors import RemoteError
from opsctl.wire.protocol import AgentError, Context
from tests.campaigns.damages import child
from tests.conftest import MakeHost
from tests.remote.steps import begin

NOBODY = 65534
root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to have files of another user")


def made(path: Path, mode: int = 0o700, owner: int | None = None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, owner)
    return path


SAFE: dict[str, Callable[[Path], Path]] = {
    "ours": lambda top: made(top / "state"),
    "readable for all": lambda top: made(top / "state", 0o755),
    "not there yet": lambda top: top / "none" / "state",
    "by a link of ours": lambda top: linked(top / "link", made(top / "state")),
}
UNSAFE: dict[str, Callable[[Path], Path]] = {
    "writable for all": lambda top: made(top / "state", 0o777),
    "sticky, but not above": lambda top: made(top / "state", 0o1777),
    "a folder above writable for all": lambda top: made(made(top / "above", 0o777) / "state"),
    "above, and not there yet": lambda top: made(top / "above", 0o777) / "state",
    "a link to what others can write": lambda top: linked(top / "link", made(top / "state", 0o777)),
    "a link in what others can write": lambda top: linked(made(top / "above", 0o777) / "link", made(top / "state")),
    "by way of .. and a link": lambda top: linked(top / "link", made(made(top / "a", 0o777) / "b")) / ".." / "state",
}


OF_OTHERS: dict[str, Callable[[Path], Path]] = {
    "another user's": lambda top: made(top / "state", 0o700, NOBODY),
    "a folder above is another user's": lambda top: made(made(top / "above", 0o755, NOBODY) / "state"),
    "writable for a group of others": lambda top: shared(top / "state"),
}


def linked(link: Path, to: Path) -> Path:
    link.symlink_to(to)
    return link


@pytest.mark.parametrize("kind", SAFE)
def test_state_that_only_we_can_write_is_used(kind: str, tmp_path: Path) -> None:
    demand_safe(str(SAFE[kind](tmp_path)))


@pytest.mark.parametrize("kind", UNSAFE)
def test_state_that_others_can_write_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="is not acted on") as caught:
        demand_safe(str(UNSAFE[kind](tmp_path)))
    assert caught.value.kind == "unsafe"


@root
@pytest.mark.parametrize("kind", OF_OTHERS)
def test_state_of_others_is_refused(kind: str, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"belongs to user 65534|others can write"):
        demand_safe(str(OF_OTHERS[kind](tmp_path)))


def shared(path: Path) -> Path:
    made(path)
    os.chown(path, 0, NOBODY)
    path.chmod(0o770)
    return path


def test_a_state_dir_that_others_can_write_is_named_with_what_to_do(make_host: MakeHost, tmp_path: Path) -> None:
    open_to_all = made(tmp_path / "open", 0o777)
    with pytest.raises(RemoteError, match="others can write to it") as caught:
        make_host(state_dir=str(open_to_all / "state")).call(begin())
    assert "state_dir" in str(caught.value.hint)
    assert not (open_to_all / "state").exists()


@root
def test_a_planted_run_is_told_and_never_undone(tmp_path: Path) -> None:
    """Its undo would run a command of its maker's as root."""
    mark = tmp_path / "ran-as-root"

    def plant() -> None:
        journal.begin(Context(), "ours", {})
        planted = made(tmp_path / "state/runs/planted")
        undo = [["proc.run", {"argv": ["touch", str(mark)]}]]
        lines = [{"begin": {}, "at": 1.0}, {"step": 1, "calls": [], "undo": undo, "settle": [], "at": 2.0}, {"done": 1}]
        (planted / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
        made(planted / "steps" / "1")
        for path in (planted, *planted.rglob("*")):
            os.chown(path, NOBODY, NOBODY)

    def told() -> Any:
        with pytest.raises(AgentError) as caught:
            journal.rollback(Context(), "planted")
        listed = {one["run"]: one for one in history.newest(Context())["runs"]}
        return {"kind": caught.value.kind, "message": caught.value.message, "listed": listed["planted"]}

    child(tmp_path, plant)
    found = child(tmp_path, told)
    assert found is not None
    assert (found["kind"], found["listed"]["state"], found["listed"]["steps"]) == ("damaged", "unreadable", 0)
    assert "belongs to user 65534" in found["message"]
    assert not mark.exists()


@root
def test_a_planted_record_of_a_process_is_not_acted_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    record = made(tmp_path / "state/processes") / "server.json"
    record.write_text(json.dumps({"name": "server", "pid": os.getpid(), "argv": ["x"]}))
    os.chown(record, NOBODY, NOBODY)
    with pytest.raises(AgentError, match="belongs to user 65534"):
        process.stop(Context(), "server")
    record.unlink()
    record.symlink_to("/etc/hostname")
    with pytest.raises(AgentError, match="is a link"):
        process.status(Context(), "server")


def test_a_lock_that_its_owner_has_made_a_terabyte_long_still_says_who_holds_it(tmp_path: Path) -> None:
    """It is theirs: root takes it, too, where it changes their server, and must not read it into memory."""
    path = tmp_path / "lock"
    path.touch(mode=0o600)
    os.truncate(path, 1 << 40)
    held = file_locks.take(str(path))
    assert held is not None
    file_locks.say(held, b'{"who": "us"}')
    os.close(held)
    assert path.stat().st_size < 1 << 20
    assert json.loads(path.read_bytes()) == {"who": "us"}
