"""Tasks written for fabric, over the connection of opsctl."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import fabric
import invoke
import pytest

from opsctl.errors import HostKeyError, Unreachable, UsageError
from opsctl.remote.host import RemoteHost, connect
from opsctl.remote.spec import ConnectionSpec
from opsctl.wire.protocol import Call
from tests.conftest import BOTH_LOGINS, MakeHost
from tests.sshd import Sshd, eventually


@fabric.task
def exchange(c: fabric.Connection, folder: Path) -> str:
    """A task as it may stand in anybody's fabfile."""
    c.run(f"mkdir -p {folder}/there", hide=True)
    c.put(io.BytesIO(b"from here"), f"{folder}/there/file")
    with c.cd(f"{folder}/there"):
        said = c.run("cat file", hide=True).stdout
    c.get(f"{folder}/there/file", f"{folder}/back")
    return str(said)


def connections(sshd: Sshd) -> set[int]:
    return set(sshd.sessions)


@BOTH_LOGINS
@pytest.mark.parametrize("jump", [False, True], ids=["straight", "by a jump host"])
def test_a_task_runs_unchanged_over_the_connection(make_host: MakeHost, sshd: Sshd, tmp_path: Path, jump: bool) -> None:
    host = make_host(jump=f"{sshd.user}@127.0.0.1:{sshd.port}" if jump else None)
    host.call(Call("proc.run", {"argv": "true"}))
    before = connections(sshd)
    with host.fabric() as c:
        assert exchange(c, tmp_path) == "from here"
        assert connections(sshd) == before, "fabric has connected by itself"
    assert (tmp_path / "back").read_bytes() == b"from here"


def test_closing_it_leaves_the_connection_to_its_owner(host: RemoteHost) -> None:
    c = host.fabric()
    c.sftp().listdir("/")
    c.close()
    assert host.call(Call("proc.run", {"argv": "echo ok"})).result["stdout"] == "ok\n"
    assert host.fabric().run("echo ok", hide=True).stdout == "ok\n"


def test_a_command_that_fails_or_takes_too_long_ends_as_with_fabric(host: RemoteHost) -> None:
    with pytest.raises(invoke.UnexpectedExit) as failed:
        host.fabric().run("exit 7", hide=True)
    assert failed.value.result.exited == 7
    with pytest.raises(invoke.CommandTimedOut):
        host.fabric(timeout=1).run("sleep 60", hide=True)


@pytest.mark.skipif(not shutil.which("sudo"), reason="needs sudo")
def test_sudo(host: RemoteHost) -> None:
    assert host.fabric().sudo("id -un", hide=True).stdout == "root\n"


def test_where_the_connection_has_ended_that_is_said(make_host: MakeHost, sshd: Sshd) -> None:
    host = make_host()
    c = host.fabric()
    sshd.drop()
    eventually(lambda: not c.is_connected)
    with pytest.raises(Unreachable, match="the connection has ended"):
        c.run("true")


def test_a_key_that_opsctl_refuses_gives_no_connection(make_host: MakeHost) -> None:
    with pytest.raises(HostKeyError):
        make_host(host_key="SHA256:" + "A" * 43).fabric()


def test_this_machine_is_none_that_fabric_connects_to(state: Path) -> None:
    here = ConnectionSpec("here", "local", state_dir=str(state))
    with connect(here) as host, pytest.raises(UsageError, match="here is this machine"):
        host.fabric()
