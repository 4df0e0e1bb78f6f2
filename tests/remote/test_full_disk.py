"""A disk with opsctl's state that is full: what was done is still taken back, and what was not confirmed, too."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import history, journal
from opsctl.remote.host import connect
from opsctl.remote.spec import ConnectionSpec
from opsctl.wire.protocol import AgentError, Call, Context
from tests.campaigns.damages import child
from tests.remote.steps import RUN, begin, supervised, tree, writing
from tests.sshd import Sshd, eventually

FILES = 60


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    place = tmp_path / "state"
    place.mkdir(mode=0o700)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", place], check=False, capture_output=True
    ).returncode:
        pytest.skip("cannot mount a small file system: needs root")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def fill(place: Path) -> None:
    """Leave not a byte."""
    with open(place / "filler", "ab", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    assert os.statvfs(place).f_bavail == 0


def change(box: Path) -> None:
    box.mkdir()
    journal.begin(Context(), RUN, {"who": "ann"})
    for seq in range(1, FILES + 1):
        (box / f"{seq}").write_bytes(b"before %d" % seq)
        step = writing(box / f"{seq}", b"after", seq)
        call = Context()
        call.body = step.body
        journal.apply(call, **step.args)


def rolled_back() -> dict[str, Any]:
    return journal.rollback(Context(), RUN)


def before() -> dict[str, bytes]:
    return {f"{seq}": b"before %d" % seq for seq in range(1, FILES + 1)}


def test_a_full_state_disk_keeps_nothing_from_being_taken_back(small: Path, tmp_path: Path) -> None:
    child(tmp_path, lambda: change(tmp_path / "box"))
    fill(small)
    report = child(tmp_path, rolled_back)
    assert report is not None
    assert (report["outcome"], report["unlogged"], report["damage"]) == ("rolled-back", None, [])
    assert tree(tmp_path / "box") == before()
    [told] = (child(tmp_path, lambda: history.newest(Context())) or {})["runs"]
    assert (told["outcome"], told["undone"]) == ("rolled-back", FILES), "there was room for it in the log"


def test_a_run_that_could_not_be_taken_back_is_not_begun(small: Path, tmp_path: Path) -> None:
    def refused() -> str:
        fill(small)
        with pytest.raises(AgentError) as caught:
            journal.begin(Context(), RUN, {})
        return caught.value.kind

    child(tmp_path, lambda: history.newest(Context()))
    assert child(tmp_path, refused) == "no-space"
    assert (child(tmp_path, lambda: history.newest(Context())) or {})["runs"] == []


def test_an_undo_goes_on_without_its_log_and_says_so(tmp_path: Path) -> None:
    """Nothing at all can be written into the journal; the limit is one for files, which stands for any such cause."""
    child(tmp_path, lambda: change(tmp_path / "box"))

    def unlogged() -> dict[str, Any]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        report = rolled_back()
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        return report

    report = child(tmp_path, unlogged)
    assert report is not None
    assert tree(tmp_path / "box") == before()
    assert report["outcome"] == "rolled-back"
    assert "File too large" in report["unlogged"]
    again = child(tmp_path, rolled_back)
    assert again is not None
    assert (again["outcome"], again["unlogged"]) == ("rolled-back", None)


def test_an_unconfirmed_change_is_taken_back_on_a_full_disk(small: Path, sshd: Sshd, tmp_path: Path) -> None:
    served = tmp_path / "served"
    served.write_bytes(b"old")
    with connect(sshd.spec(state_dir=str(small))) as host:
        host.call(begin())
        host.call(supervised(served, b"new", 1.0))
        fill(small)
    eventually(lambda: served.read_bytes() == b"old")
    with connect(ConnectionSpec("here", "local", state_dir=str(small))) as host:
        found = eventually(lambda: ended(host.call(Call("history.show", {"run": RUN})).result))
        assert (found["outcome"], found["why"]) == ("rolled-back", "not confirmed")


def ended(told: dict[str, Any]) -> dict[str, Any] | None:
    return told if told["state"] == "ended" else None
