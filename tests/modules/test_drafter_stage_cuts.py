"""Staging that is cut, or runs out of disk, at awkward moments: nothing half-done shows, and the next run goes on."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.stage import stage
from opsctl.drafter.staging import read_source
from opsctl.errors import OpsctlError, RemoteError, TaskFailed, Unreachable, UsageError
from opsctl.remote.host import RemoteHost, connect
from opsctl.wire.protocol import Context
from tests.modules.test_drafter_stage import MIB, MakeHost, Staging, contents, drafter, once_at
from tests.proxy import Proxy
from tests.sshd import Sshd, children, eventually, proxy_command

KILLED = 9
HERE = Path(__file__).parents[2]


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

    with pytest.raises(RemoteError, match=f"cannot write into {small_disk}/.*: No space left") as full:
        staging.run(fill, path=str(source))
    assert full.value.kind == "no-space"
    assert full.value.hint == "free some space there, then run it again: what has arrived is not sent twice"
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


def test_another_draft_model_of_the_name_leaves_alone_what_was_begun(
    make_host: MakeHost, slow_link: Callable[[float], Proxy], sshd: Sshd, tmp_path: Path
) -> None:
    """Its own next run goes on with that. Of models that are alike in part, the part is used: see the cuts above."""
    source = _much(tmp_path / "source")
    proxy = slow_link(0.0)
    lossy = Staging(make_host(port=proxy.port, host_key=str(sshd.host_key)), tmp_path / "weights")

    with pytest.raises(OpsctlError):
        lossy.run(once_at(60, proxy.cut), path=str(source))
    staging = Staging(make_host(), tmp_path / "weights")
    other = drafter(tmp_path / "other", embed_tokens=1, fc=1, lm_head=1)
    assert contents(staging.run(path=str(other))["release"]) == contents(other)
    result = staging.run(path=str(source))
    assert contents(result["release"]) == contents(source)
    assert result["sent"] <= 60 * MIB


def test_what_is_left_goes_over_the_one_session_there_is_when_all_streams_are_gone(state: Path, tmp_path: Path) -> None:
    source = drafter(tmp_path / "source")
    (source / "more.bin").write_bytes(os.urandom(96 * MIB))
    (tmp_path / "sshd").mkdir()
    server = Sshd(tmp_path / "sshd", "MaxSessions 1")
    server.start()
    killed: set[int] = set()

    def kill() -> None:
        for pid in children(os.getpid()):
            if Path(f"/proc/{pid}/comm").read_text() == "ssh\n":
                os.kill(pid, KILLED)
                killed.add(pid)

    try:
        with connect(server.spec(state_dir=str(state))) as host:
            result = Staging(host, tmp_path / "weights").run(once_at(20, kill), path=str(source))
    finally:
        server.stop()
    assert len(killed) >= 2  # a busy machine looks far away, and has more of them
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


def _much(folder: Path) -> Path:
    """So much that connections of their own pay."""
    drafter(folder)
    (folder / "more.bin").write_bytes(os.urandom(96 * MIB))
    return folder


def _shrink(file: Path) -> None:
    os.truncate(file, 100)


def _become_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


SPOILT = pytest.mark.parametrize(
    ("spoil", "why"),
    [(Path.unlink, "No such file"), (_shrink, "it became shorter"), (_become_a_folder, "Is a directory")],
)


@SPOILT
def test_a_source_that_cannot_be_read_while_it_is_sent_is_told_as_such(
    staging: Staging, tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    source = drafter(tmp_path / "source")
    file = source / "model.safetensors"
    content = file.read_bytes()
    read_source(source)  # so that it is only read to be sent
    _, _, change = staging.plan(path=str(source))
    spoil(file)
    assert change is not None
    assert change.transfer is not None
    with pytest.raises(UsageError, match=f"cannot read {file}: {why}"):
        change.transfer(staging.host, lambda text, fraction: None)
    assert staging.releases == []
    if file.is_dir():
        file.rmdir()
    file.write_bytes(content)
    assert contents(staging.run(path=str(source))["release"]) == contents(source)


@SPOILT
def test_so_it_is_over_connections_of_their_own(
    staging: Staging, tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    source = _much(tmp_path / "source")
    (source / "zz.bin").write_bytes(os.urandom(MIB))
    read_source(source)

    def spoil_the_last() -> None:
        if (source / "zz.bin").is_file():
            spoil(source / "zz.bin")

    with pytest.raises(UsageError, match=f"cannot read {source}/zz.bin: {why}"):
        staging.run(once_at(60, spoil_the_last), path=str(source))
    assert staging.releases == []
    assert staging.host.alive  # not taken for a fault of each connection in turn, our own the last


def test_a_source_on_a_disk_with_errors_is_told_as_such(staging: Staging, tmp_path: Path) -> None:
    unreadable = Path("/sys/class/net/lo/speed")  # a regular file of 4096 bytes that cannot be read, even by root
    if not unreadable.exists():
        pytest.skip("needs a file that gives errors")
    source = drafter(tmp_path / "source")
    (source / "bad.json").symlink_to(unreadable)
    with pytest.raises(UsageError, match=r"cannot read .*bad\.json: Invalid argument"):
        staging.run(path=str(source), follow_links=True)
    with pytest.raises(UsageError, match=r"cannot read bad\.json: Invalid argument"):
        read_source(source, follow_links=True)
    assert staging.releases == []


@pytest.fixture
def hanging_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """An `ssh` that hangs in connecting, and does not give up by itself. Gives the processes of it that are there."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/ssh").write_text(f"#!/bin/sh\necho $$ >>{tmp_path}/pids\nexec sleep 100000\n")
    (tmp_path / "bin/ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    def there() -> list[int]:
        pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
        assert pids
        return [pid for pid in pids if Path(f"/proc/{pid}").exists()]

    yield there
    for pid in there():
        os.kill(pid, KILLED)


def ended(work: Callable[[], Any]) -> Any:
    """What `work` gives or raises, if it ends at all."""
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised to whoever asks
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result(60)


def test_connections_that_never_come_up_are_not_waited_for(
    staging: Staging, tmp_path: Path, hanging_ssh: Callable[[], list[int]]
) -> None:
    source = _much(tmp_path / "source")
    result = ended(lambda: staging.run(path=str(source)))
    assert contents(result["release"]) == contents(source)
    assert hanging_ssh() == []


def test_a_network_that_freezes_is_told_though_some_streams_have_not_noticed_and_the_next_run_goes_on(
    make_host: MakeHost, slow_link: Callable[..., Proxy], sshd: Sshd, tmp_path: Path,
    hanging_ssh: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = _much(tmp_path / "source")
    proxy = slow_link()
    frozen = Staging(make_host(port=proxy.port, host_key=str(sshd.host_key)), tmp_path / "weights")
    with monkeypatch.context() as hurried:
        hurried.setattr("opsctl.remote.parts.WATCH", 0.1)

        def freeze() -> None:
            proxy.freeze()
            hurried.setattr("opsctl.remote.agent_client.PING_AFTER", 0.2)
            hurried.setattr("opsctl.remote.agent_client.LOST_AFTER", 1.0)

        with pytest.raises(Unreachable, match="no sign of life") as told:
            ended(lambda: frozen.run(once_at(60, freeze), path=str(source)))
    assert told.value.hint == "run it again: what has arrived is not sent twice"
    assert hanging_ssh() == []
    assert frozen.releases == []
    result = Staging(make_host(), tmp_path / "weights").run(path=str(source))
    assert contents(result["release"]) == contents(source)


def test_a_link_so_slow_that_answers_are_long_in_coming_is_not_taken_for_lost(
    make_host: MakeHost, slow_link: Callable[..., Proxy], sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each answer waits behind megabytes; that these arrive is a sign of life."""
    source = drafter(tmp_path / "source")
    proxy = slow_link(rate=2.0 * MIB)
    staging = Staging(make_host(port=proxy.port, host_key=str(sshd.host_key)), tmp_path / "weights")
    monkeypatch.setattr("opsctl.remote.agent_client.PING_AFTER", 0.5)
    monkeypatch.setattr("opsctl.remote.agent_client.LOST_AFTER", 2.0)
    assert contents(staging.run(path=str(source))["release"]) == contents(source)


def test_ctrl_c_ends_the_reading_of_a_source(local_host: RemoteHost, tmp_path: Path) -> None:
    """Which is read before it is sent where the host has something to compare it with."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "inventory.yaml").write_text(f"hosts:\n  a: {{connection: local, state_dir: {tmp_path}/state}}\n")
    (project / "play.yaml").write_text(
        "hosts: all\ntasks:\n  - name: Stage\n"
        f"    drafter_stage: {{path: {tmp_path}/source, name: draft, releases: {tmp_path}/weights/releases}}\n"
    )
    Staging(local_host, tmp_path / "weights").run(path=str(drafter(tmp_path / "one")))
    source = drafter(tmp_path / "source")
    with (source / "more.bin").open("wb") as file:
        file.truncate(16 << 30)  # without a byte on the disk, and long to read
    for path in source.iterdir():
        os.utime(path, (1, 1))
    env = {**os.environ, "OPSCTL_STATE_DIR": str(tmp_path / "another"), "OPSCTL_RECORDS": str(tmp_path / "records")}
    run = subprocess.Popen(
        [sys.executable, "-m", "opsctl", "run", "play.yaml"], cwd=project, env={**env, "PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        read = eventually(lambda: list((tmp_path / "another/digests").glob("*")))
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=60)
    finally:
        run.kill()
    assert run.returncode == 130, out
    assert "a: INTERRUPTED" in out
    assert read[0].read_bytes().count(b"more.bin") < 16 << 30 >> 23  # chunks of 8 MiB


@pytest.mark.parametrize("how", ["told", "stopped"])
def test_a_connection_that_takes_nothing_more_ends_the_staging(
    make_host: MakeHost, sshd: Sshd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Whoever writes to it waits without end, and all the others for him."""
    source = drafter(tmp_path / "source")
    (source / "more.bin").write_bytes(os.urandom(32 * MIB))
    (tmp_path / "config").write_text(f"Host box\n  ProxyCommand {proxy_command(tmp_path, sshd.port)}\n")
    host = make_host(address="box", ssh_config=str(tmp_path / "config"), host_key=str(sshd.host_key))
    (relay,) = (pid for pid in children(os.getpid()) if b"connector.py" in Path(f"/proc/{pid}/cmdline").read_bytes())
    staging = Staging(host, tmp_path / "weights")
    monkeypatch.setattr("opsctl.remote.parts.WATCH", 0.1)
    monkeypatch.setattr("opsctl.remote.parts.GOODBYE", 0.5)

    def stop() -> None:
        os.kill(relay, signal.SIGSTOP)
        if how == "stopped":
            raise KeyboardInterrupt
        monkeypatch.setattr("opsctl.remote.agent_client.PING_AFTER", 0.2)
        monkeypatch.setattr("opsctl.remote.agent_client.LOST_AFTER", 1.0)

    with pytest.raises(KeyboardInterrupt if how == "stopped" else Unreachable):
        ended(lambda: staging.run(once_at(8, stop), path=str(source)))
    assert staging.releases == []
    os.kill(relay, signal.SIGCONT)


def test_what_an_interrupted_staging_of_other_files_has_left_is_not_taken_for_room(
    make_host: MakeHost, slow_link: Callable[[float], Proxy], sshd: Sshd, small_disk: Path, tmp_path: Path
) -> None:
    proxy = slow_link(0.0)
    lossy = Staging(make_host(port=proxy.port, host_key=str(sshd.host_key)), small_disk)
    source, other = drafter(tmp_path / "source"), drafter(tmp_path / "other", embed_tokens=1, fc=1, lm_head=1)
    for folder in (source, other):
        (folder / "more.bin").write_bytes(os.urandom(16 * MIB))

    with pytest.raises(OpsctlError):
        lossy.run(once_at(24, proxy.cut), path=str(source))
    (left,) = small_disk.glob("releases/draft/.partial-*")
    with pytest.raises(TaskFailed, match="are needed") as full:
        Staging(make_host(), small_disk).run(path=str(other))
    assert f"remove {left}" in str(full.value.hint)
