"""Long files: sent over the wire beside their place, then put in place; cut, stopped, refused, and taken back."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl import modules
from opsctl.agent.core import dispatch
from opsctl.engine.session import Interrupted
from opsctl.errors import RemoteError, Unreachable
from opsctl.modules import copy
from opsctl.modules.contract import Change, Module, Progress
from opsctl.remote import parts
from opsctl.remote.host import RemoteHost, connect
from opsctl.wire.protocol import Call, Reply
from tests.conftest import MakeHost
from tests.modules.conftest import InProcess, site
from tests.proxy import Proxy
from tests.sshd import Sshd

LONG = copy.IN_FRAME + 12345


def quiet(text: str, done: float | None) -> None:
    """Progress that nobody looks at."""


def planned(host: RemoteHost, tmp_path: Path, src: str, dest: Path | str) -> Change | None:
    module = modules.get("copy")
    assert isinstance(module, Module)
    args = module.args.model_validate({"src": src, "dest": str(dest)})
    here = site(project=tmp_path / "project")
    return module.plan(args, host.batch(module.observe(args, here)), here)


def bring(change: Change | None, host: RemoteHost, step: Path, progress: Progress = quiet) -> Change:
    assert change is not None
    assert change.transfer is not None
    change.transfer(host, progress)
    for call in change.calls:
        dispatch.invoke(call.name, call.args, InProcess(call.body, step))
    return change


@pytest.fixture
def weights(tmp_path: Path) -> bytes:
    content = os.urandom(LONG)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "weights").write_bytes(content)
    (tmp_path / "host").mkdir()
    return content


def test_a_long_file_arrives_whole_and_its_undo_brings_the_old_one(
    local_host: RemoteHost, tmp_path: Path, weights: bytes
) -> None:
    top = tmp_path / "host"
    (top / "weights").write_text("old")
    (top / "weights").chmod(0o640)
    told: list[float | None] = []
    change = bring(
        planned(local_host, tmp_path, "weights", f"{top}/"),
        local_host,
        tmp_path / "step",
        lambda text, done: told.append(done),
    )
    assert (top / "weights").read_bytes() == weights
    assert (top / "weights").stat().st_mode & 0o777 == 0o640
    assert told[-1] == 1.0
    assert planned(local_host, tmp_path, "weights", f"{top}/") is None
    assert change.undo is not None
    for call in change.undo:
        dispatch.invoke(call.name, call.args, InProcess(blobs=tmp_path / "step"))
    assert (top / "weights").read_text() == "old"
    assert os.listdir(top) == ["weights"]


def test_a_folder_with_a_long_file_goes_into_one_that_is_not_there_yet(
    local_host: RemoteHost, tmp_path: Path, weights: bytes
) -> None:
    source, dest = tmp_path / "project" / "model", tmp_path / "host" / "a" / "b"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "long").write_bytes(weights)
    (source / "short").write_text("x")
    change = bring(planned(local_host, tmp_path, "model", dest), local_host, tmp_path / "step")
    assert (dest / "sub" / "long").read_bytes() == weights
    assert sorted(os.listdir(dest)) == ["short", "sub"]
    assert change.undo is not None
    for call in change.undo:
        dispatch.invoke(call.name, call.args, InProcess(blobs=tmp_path / "step"))
    assert os.listdir(tmp_path / "host") == []


def test_cut_off_it_goes_on_where_it_was(
    make_host: MakeHost, sshd: Sshd, slow_link: Callable[..., Proxy], tmp_path: Path, weights: bytes
) -> None:
    (tmp_path / "project" / "weights").write_bytes(weights * 3)
    dest, proxy = tmp_path / "host" / "weights", slow_link()
    host = make_host(port=proxy.port, host_key=str(sshd.host_key))

    def cut(text: str, done: float | None) -> None:
        if done and done > 0.3:
            proxy.cut()

    with pytest.raises(Unreachable) as caught:
        bring(planned(host, tmp_path, "weights", dest), host, tmp_path / "step", cut)
    assert "go on from there" in str(caught.value.hint)
    told: list[float] = []
    again = make_host()
    bring(
        planned(again, tmp_path, "weights", dest), again, tmp_path / "step", lambda text, done: told.append(done or 0.0)
    )
    assert min(told, default=1) > 0.3  # where the cut came after the last of it, nothing is left to send
    assert dest.read_bytes() == weights * 3
    assert os.listdir(tmp_path / "host") == ["weights"]


def test_stopped_it_leaves_nothing_and_says_so(local_host: RemoteHost, tmp_path: Path, weights: bytes) -> None:
    def stop(text: str, done: float | None) -> None:
        if done:
            raise Interrupted("stopped")

    with pytest.raises(Interrupted, match=r"what had arrived .* was removed"):
        bring(planned(local_host, tmp_path, "weights", tmp_path / "host" / "w"), local_host, tmp_path / "step", stop)
    assert os.listdir(tmp_path / "host") == []


def test_what_was_begun_for_other_content_is_removed(local_host: RemoteHost, tmp_path: Path, weights: bytes) -> None:
    dest = tmp_path / "host" / "w"
    change = planned(local_host, tmp_path, "weights", dest)
    assert change is not None
    assert change.transfer is not None
    change.transfer(local_host, quiet)
    assert len(os.listdir(tmp_path / "host")) == 1
    (tmp_path / "project" / "weights").write_bytes(os.urandom(LONG))
    bring(planned(local_host, tmp_path, "weights", dest), local_host, tmp_path / "step")
    assert os.listdir(tmp_path / "host") == ["w"]


def test_one_session_is_enough(state: Path, tmp_path: Path, weights: bytes) -> None:
    (tmp_path / "sshd").mkdir()
    server = Sshd(tmp_path / "sshd", "MaxSessions 1")
    server.start()
    try:
        with connect(server.spec(state_dir=str(state))) as host:
            bring(planned(host, tmp_path, "weights", tmp_path / "host" / "w"), host, tmp_path / "step")
    finally:
        server.stop()
    assert (tmp_path / "host" / "w").read_bytes() == weights


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 12 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12m", "tmpfs", disk], check=False).returncode
    ):
        pytest.skip("nothing can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", disk], check=True)


def test_a_disk_that_fills_is_told_with_its_path_and_left_as_it_was(
    local_host: RemoteHost, tmp_path: Path, weights: bytes, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = local_host.call

    def filling(asked: Call, **how: Any) -> Reply:
        reply = call(asked, **how)
        if asked.name == "arrival.begin":  # there was room when it was looked at
            with contextlib.suppress(OSError), (small_disk / "other").open("ab", buffering=0) as file:
                while file.write(bytes(1 << 20)):
                    pass
        return reply

    monkeypatch.setattr(local_host, "call", filling)
    change = planned(local_host, tmp_path, "weights", small_disk / "w")
    with pytest.raises(RemoteError) as caught:
        bring(change, local_host, tmp_path / "step")
    assert caught.value.kind == "no-space"
    assert str(small_disk) in caught.value.message
    assert os.listdir(small_disk) == ["other"]
    with pytest.raises(RemoteError, match="there is room for 0 B") as caught:  # and is known before
        planned(local_host, tmp_path, "weights", small_disk / "w")
    assert caught.value.kind == "no-space"


def test_what_is_missing_of_a_file() -> None:
    assert list(copy._missing(10, [])) == [(0, 10)]
    assert list(copy._missing(10, [[2, 4], [3, 6]])) == [(0, 2), (6, 10)]
    assert list(copy._missing(10, [[0, 10]])) == []
    assert parts.LOAD < LONG, "more than one load is sent"
