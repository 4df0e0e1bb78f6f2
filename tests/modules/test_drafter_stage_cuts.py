"""Staging that is cut, or runs out of disk, at awkward moments: nothing half-done shows, and the next run goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent import stage
from opsctl.agent.protocol import Context
from opsctl.errors import OpsctlError, RemoteError
from opsctl.remote.host import RemoteHost, connect
from tests.modules.test_drafter_stage import MIB, MakeHost, Staging, contents, drafter
from tests.proxy import Proxy
from tests.sshd import Sshd, children

KILLED = 9


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "controller"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=112m", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_meanwhile_is_told_and_leaves_nothing_visible(
    host: RemoteHost, small_disk: Path, tmp_path: Path
) -> None:
    staging, source = Staging(host, small_disk), drafter(tmp_path / "source")
    (source / "more.bin").write_bytes(os.urandom(16 * MIB))
    other = small_disk / "somebody"

    def fill(text: str) -> None:
        if not other.exists():
            with contextlib.suppress(OSError), other.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(MIB))

    with pytest.raises(RemoteError, match="No space left") as full:
        staging.run(fill, path=str(source))
    assert full.value.kind == "no-space"
    assert staging.releases == []
    other.unlink()
    assert contents(staging.run(path=str(source))["release"]) == contents(source)


def test_a_cut_while_the_host_copies_what_it_has(
    make_host: MakeHost, slow_link: Callable[[float], Proxy], sshd: Sshd, tmp_path: Path
) -> None:
    Staging(make_host(), tmp_path / "weights").run(path=str(drafter(tmp_path / "one")))
    tuned = drafter(tmp_path / "two", fc=1)
    proxy = slow_link(0.0)
    lossy = Staging(make_host(port=proxy.port, host_key=str(sshd.host_key)), tmp_path / "weights")
    told: list[str] = []

    def cut(text: str) -> None:
        told.append(text)
        if text == "copying what the host has":
            proxy.cut()

    with pytest.raises(OpsctlError):
        lossy.run(cut, path=str(tuned))
    assert "copying what the host has" in told
    assert len(lossy.releases) == 1
    staging = Staging(make_host(), tmp_path / "weights")
    staging.runs = 1
    result = staging.run(path=str(tuned))
    assert contents(result["release"]) == contents(tuned)


def test_what_is_left_goes_over_the_one_session_there_is_when_all_streams_are_gone(state: Path, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    (source / "more.bin").write_bytes(os.urandom(96 * MIB))
    (tmp_path / "sshd").mkdir()
    server = Sshd(tmp_path / "sshd", "MaxSessions 1")
    server.start()
    killed: set[int] = set()

    def kill(text: str) -> None:
        if " MiB of " in text and float(text.split()[0]) >= 20:
            for pid in children(os.getpid()):
                if Path(f"/proc/{pid}/comm").read_text() == "ssh\n":
                    os.kill(pid, KILLED)
                    killed.add(pid)

    try:
        with connect(server.spec(state_dir=str(state))) as host:
            result = Staging(host, tmp_path / "weights").run(kill, path=str(source))
    finally:
        server.stop()
    assert len(killed) == 2
    assert contents(result["release"]) == contents(source)


def test_more_files_than_a_process_may_have_open(host: RemoteHost, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    for number in range(300):
        (source / f"{number}.txt").write_text(str(number))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 150, hard))
    try:
        result = Staging(host, tmp_path / "weights").run(path=str(source))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert contents(result["release"]) == contents(source)


class _Dies(Context):
    """Ends its process without a word at the first progress, or never."""

    def __init__(self, blobs: Path, *, at_progress: bool) -> None:
        blobs.mkdir()
        self.blobs, self._at_progress = str(blobs), at_progress

    def progress(self, data: Any, body: bytes = b"") -> None:
        if self._at_progress:
            os._exit(KILLED)


@pytest.mark.parametrize("moment", ["verifying", "the last rename"])
def test_an_agent_that_dies_while_it_makes_the_release(staging: Staging, tmp_path: Path, moment: str) -> None:
    source = drafter(tmp_path / "source")
    _, _, change = staging.plan(path=str(source))
    assert change is not None
    assert change.transfer is not None
    change.transfer(staging.host, lambda text, fraction: None)
    child = os.fork()
    if not child:
        try:
            if moment == "the last rename":
                os.rename = lambda *_: os._exit(KILLED)  # type: ignore[assignment]
            stage.place(_Dies(tmp_path / "blobs", at_progress=moment == "verifying"), **change.calls[0].args)
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED
    assert staging.releases == []
    _, _, again = staging.plan(path=str(source))
    assert again is not None
    result = staging.run(path=str(source))
    assert staging.releases == [os.path.basename(result["release"])]
    assert contents(result["release"]) == contents(source)


@pytest.fixture
def staging(host: RemoteHost, tmp_path: Path) -> Staging:
    return Staging(host, tmp_path / "weights")
