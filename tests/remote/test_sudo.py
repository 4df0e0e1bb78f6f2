"""Becoming another user through a real sudo, with and without a password."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.core import host_lock
from opsctl.engine import hostlock, past_runs
from opsctl.engine.connections import Connections
from opsctl.engine.options import Options
from opsctl.engine.run import execute, plan
from opsctl.engine.undo import looked_up, undo_all
from opsctl.errors import AuthFailed, Exit, Locked
from opsctl.inventory import load
from opsctl.remote.host import RemoteHost, connect
from opsctl.secret import Secret
from opsctl.wire.calls import core
from opsctl.wire.protocol import AgentError, Call, Context
from tests.sshd import SSHD, Sshd, free_port

PASSWORD = "correct horse"
USERS = {"opsctl-asked": "ALL", "opsctl-free": "NOPASSWD: ALL"}

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("sudo") or not shutil.which("useradd") or not SSHD,
    reason="needs root (to make users), sudo and sshd",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Sshd]:
    """An sshd, and two users who may become root: one is asked for a password."""
    rules = Path("/etc/sudoers.d/opsctl-test")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)  # sshd reads the keys as the user who logs in
    try:
        for user, rule in USERS.items():
            subprocess.run(["useradd", "--create-home", "--shell", "/bin/sh", user], check=True)
            subprocess.run(["chpasswd"], input=f"{user}:{PASSWORD}", text=True, check=True)
            with rules.open("a") as file:  # as root they work in a state folder of the test's own
                file.write(f"{user} ALL=(ALL) {rule}\nDefaults:{user} env_file={folder}/environment\n")
        (folder / "environment").write_text(f"OPSCTL_STATE_DIR={folder}/state\n")
        rules.chmod(0o440)
        sshd = Sshd(folder)
        sshd.start()
        yield sshd
        sshd.stop()
    finally:
        rules.unlink(missing_ok=True)
        for user in USERS:
            subprocess.run(["userdel", "--remove", user], check=False, capture_output=True)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def login(server: Sshd) -> Iterator[Callable[..., RemoteHost]]:
    made: list[RemoteHost] = []

    def make(user: str, **given: Any) -> RemoteHost:
        made.append(connect(server.spec(user=user, **given)))
        return made[-1]

    yield make
    for host in made:
        host.close()


def who(host: RemoteHost) -> str:
    answer = host.call(Call("proc.run", {"argv": "id -un; echo $HOME"}), timeout=30)
    return str(answer.result["stdout"])


def test_without_a_password(login: Callable[..., RemoteHost]) -> None:
    host = login("opsctl-free", become="root")
    assert who(host) == "root\n/root\n"
    assert who(host.as_user(None)) == "opsctl-free\n/home/opsctl-free\n"
    assert who(host.as_user("opsctl-asked")) == "opsctl-asked\n/home/opsctl-asked\n"


def test_a_password_that_is_not_asked_for_does_no_harm(login: Callable[..., RemoteHost]) -> None:
    assert who(login("opsctl-free", become="root", become_password=Secret(PASSWORD))) == "root\n/root\n"


def test_with_a_password(login: Callable[..., RemoteHost]) -> None:
    host = login("opsctl-asked", become="root", become_password=Secret(PASSWORD))
    assert who(host) == "root\n/root\n"
    seen = host.call(Call("proc.run", {"argv": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"})).result["stdout"]
    assert PASSWORD not in seen


Play = Callable[..., Exit]
ANN = {"who": "ann", "run": "r1"}
OWN, ROOTS = (f"hosts: box\ntasks: [{{shell: 'true', become: {become}}}]\n" for become in ("false", "true"))
LISTENS = "import socket as s; a = s.create_server(('127.0.0.1', 0)); print(a.getsockname()[1], flush=True); input()"


@contextlib.contextmanager
def serving(user: str) -> Iterator[int]:
    """A process of this user that listens on a port."""
    command = ["setpriv", "--reuid", user, "--clear-groups", "--", "/usr/bin/python3", "-c", LISTENS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout
        yield int(server.stdout.readline())
        server.communicate(b"\n")


@pytest.fixture
def play(server: Sshd, tmp_path: Path) -> Play:
    """Runs a playbook on the server, as `opsctl-free`; the host's SGLang server is to listen on the port `serves`."""

    def run(text: str, serves: int = 1) -> Exit:
        (tmp_path / "inventory.yaml").write_text(
            f"hosts: {{box: {{address: 127.0.0.1, port: {server.port}, user: opsctl-free, ssh_config: none, "
            f"key: {server.key_file}, known_hosts: [{server.known_hosts}], sglang: {{port: {serves}}}}}}}\n"
        )
        (tmp_path / "play.yaml").write_text(text)
        chosen = Options(playbook=str(tmp_path / "play.yaml"), inventory=str(tmp_path / "inventory.yaml"))
        planned, stop = plan(chosen, load(chosen.inventory)), threading.Event()
        return execute(planned, chosen, lambda event: None, stop, lambda question: False, Connections(stop.is_set))

    return run


def test_a_run_is_undone_in_the_journals_of_all_users_that_its_tasks_became(
    play: Play, login: Callable[..., RemoteHost], tmp_path: Path
) -> None:
    folder, host = Path(tempfile.mkdtemp(dir="/var/tmp")), login("opsctl-free")
    folder.chmod(0o1777)
    try:
        done = play(
            f"hosts: box\non_failure: rollback\ntasks:\n"
            f"  - copy: {{dest: {folder}/own, content: x}}\n"
            f"  - {{copy: {{dest: {folder}/roots, content: x}}, become: true}}\n"
            f"  - {{copy: {{dest: {folder}/late, content: x}}, become: true, supervise: {{confirm_within: 60s}}}}\n"
        )
        assert (done, sorted(os.listdir(folder))) == (Exit.DONE, ["late", "own", "roots"])
        run = past_runs.past_runs(host.call(core.history_list(1)))[0].run
        [box] = load(str(tmp_path / "inventory.yaml")).select()
        report = undo_all(box, looked_up(host, run), print)
        assert (report.whole, len(report.steps), os.listdir(folder)) == (True, 3, [])
    finally:
        shutil.rmtree(folder)


def test_operators_who_become_root_exclude_each_other_whoever_they_log_in_as(
    play: Play, login: Callable[..., RemoteHost]
) -> None:
    ann = login("opsctl-asked", become_password=Secret(PASSWORD))
    ann.call(hostlock.take(ANN, "t1", 0.0), timeout=30)
    assert (play(OWN), play(ROOTS)) == (Exit.DONE, Exit.DONE)  # ann changes nothing but what is her own
    ann.as_user("root").call(hostlock.take(ANN, "t1", 0.0), timeout=30)
    assert (play(OWN), play(ROOTS)) == (Exit.DONE, Exit.LOCKED)
    ann.as_user("root").call(hostlock.release(), timeout=30)
    assert play(ROOTS) == Exit.DONE


def test_root_and_the_user_whose_server_it_is_exclude_each_other(play: Play, login: Callable[..., RemoteHost]) -> None:
    ann = login("opsctl-asked")
    with serving("opsctl-asked") as port:
        ann.call(hostlock.take(ANN, "t1", 0.0), timeout=30)
        assert (play(OWN, port), play(ROOTS, port)) == (Exit.DONE, Exit.LOCKED)
        ann.call(hostlock.release(), timeout=30)
        assert play(ROOTS, port) == Exit.DONE


def test_the_user_of_a_unit_that_does_not_run_is_locked_out_while_root_changes_it(
    login: Callable[..., RemoteHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemctl = tmp_path / "systemctl"
    systemctl.write_text('#!/bin/sh\ncase "$*" in *--property=User*" sglang") echo opsctl-asked;; esac\n')
    systemctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    host_lock.take(Context(), {"who": "root"}, server={"port": free_port(), "unit": "sglang"})
    try:
        with pytest.raises(Locked, match="root holds the lock"):
            login("opsctl-asked").call(hostlock.take(ANN, "t1", 0.0), timeout=30)
        login("opsctl-free").call(hostlock.take(ANN, "t1", 0.0), timeout=30)
    finally:
        host_lock.release(Context())
    login("opsctl-asked").call(hostlock.take(ANN, "t1", 0.0), timeout=30)


def test_what_lies_in_the_place_of_a_users_lock_is_opened_with_their_rights_alone(
    login: Callable[..., RemoteHost], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link to what only root may write leads nowhere, and is no way to have it overwritten."""
    monkeypatch.setenv("OPSCTL_STATE_DIR", str(tmp_path / "state"))
    locks, roots = Path("/home/opsctl-asked/.local/state/opsctl/locks"), tmp_path / "host"
    roots.write_text("root's own")
    shutil.rmtree(locks, ignore_errors=True)
    locks.mkdir(parents=True)
    os.chown(locks, pwd.getpwnam("opsctl-asked").pw_uid, -1)
    (locks / "host").symlink_to(roots)
    with serving("opsctl-asked") as port:
        with pytest.raises(AgentError, match="symbolic link"):
            host_lock.take(Context(), {"who": "root"}, server={"port": port, "unit": None})
        shutil.rmtree(locks)
        locks.symlink_to(tmp_path)
        with pytest.raises(AgentError, match="cannot keep"):
            host_lock.take(Context(), {"who": "root"}, server={"port": port, "unit": None})
        locks.unlink()
        host_lock.take(Context(), {"who": "root"}, server={"port": port, "unit": None})
        host_lock.release(Context())
    assert roots.read_text() == "root's own"
    assert (locks / "host").stat().st_uid == locks.stat().st_uid == pwd.getpwnam("opsctl-asked").pw_uid


def test_a_password_that_is_missing_or_wrong_is_told_at_once(login: Callable[..., RemoteHost]) -> None:
    with pytest.raises(AuthFailed, match="does not let us become root unasked") as missing:
        who(login("opsctl-asked", become="root"))
    assert "become_password" in str(missing.value.hint)
    with pytest.raises(AuthFailed, match="refused the password") as wrong:
        who(login("opsctl-asked", become="root", become_password=Secret("wrong horse")))
    assert "wrong horse" not in str(wrong.value)


def test_a_user_that_does_not_exist_is_told(login: Callable[..., RemoteHost]) -> None:
    with pytest.raises(AuthFailed, match="nobody-of-that-name"):
        who(login("opsctl-free", become="nobody-of-that-name"))
