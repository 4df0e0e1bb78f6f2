"""Becoming another user through a real sudo, with and without a password."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opsctl.agent.protocol import Call
from opsctl.engine import hostlock, journal
from opsctl.engine.connections import Connections
from opsctl.engine.options import Options
from opsctl.engine.run import execute, plan
from opsctl.engine.undo import looked_up, undo_all
from opsctl.errors import AuthFailed, Exit
from opsctl.inventory import load
from opsctl.remote.host import RemoteHost, connect
from opsctl.secret import Secret
from tests.sshd import SSHD, Sshd

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
            with rules.open("a") as file:
                file.write(f"{user} ALL=(ALL) {rule}\n")
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


Play = Callable[[str], Exit]


@pytest.fixture
def play(server: Sshd, tmp_path: Path) -> Play:
    """Runs a playbook on the server, as `opsctl-free`."""
    (tmp_path / "inventory.yaml").write_text(
        f"hosts: {{box: {{address: 127.0.0.1, port: {server.port}, user: opsctl-free, ssh_config: none, "
        f"key: {server.key_file}, known_hosts: [{server.known_hosts}]}}}}\n"
    )

    def run(text: str) -> Exit:
        (tmp_path / "play.yaml").write_text(text)
        chosen = Options(playbook=str(tmp_path / "play.yaml"), inventory=str(tmp_path / "inventory.yaml"))
        planned, stop = plan(chosen, load(chosen.inventory)), threading.Event()
        return execute(planned, chosen, lambda event: None, stop, lambda question: False, Connections(stop.is_set))

    return run


def test_a_run_is_undone_in_the_journals_of_all_users_that_its_tasks_became(
    play: Play, login: Callable[..., RemoteHost]
) -> None:
    folder, host = Path(tempfile.mkdtemp(dir="/var/tmp")), login("opsctl-free")
    folder.chmod(0o1777)
    try:
        done = play(
            f"hosts: box\non_failure: rollback\nlock: test_{os.getpid()}\ntasks:\n"
            f"  - copy: {{dest: {folder}/own, content: x}}\n"
            f"  - {{copy: {{dest: {folder}/roots, content: x}}, become: true}}\n"
            f"  - {{copy: {{dest: {folder}/late, content: x}}, become: true, supervise: {{confirm_within: 60s}}}}\n"
        )
        assert (done, sorted(os.listdir(folder))) == (Exit.DONE, ["late", "own", "roots"])
        run = journal.past_runs(host.call(journal.list_runs(1)))[0].run
        report = undo_all(looked_up(host, run), print)
        assert (report.whole, len(report.steps), os.listdir(folder)) == (True, 3, [])
    finally:
        shutil.rmtree(folder)


def test_operators_who_become_root_exclude_each_other_whoever_they_log_in_as(
    play: Play, login: Callable[..., RemoteHost]
) -> None:
    ann, lock = login("opsctl-asked", become_password=Secret(PASSWORD)), f"test_{os.getpid()}"  # of nobody else's root
    holder = {"who": "ann", "run": "r1"}

    def changes(become: str) -> Exit:
        return play(f"hosts: box\nlock: {lock}\ntasks: [{{shell: 'true', become: {become}}}]\n")

    ann.call(hostlock.take(holder, "t1", 0.0, lock), timeout=30)
    assert (changes("false"), changes("true")) == (Exit.DONE, Exit.DONE)  # ann changes nothing but what is her own
    ann.as_user("root").call(hostlock.take(holder, "t1", 0.0, lock), timeout=30)
    assert (changes("false"), changes("true")) == (Exit.DONE, Exit.LOCKED)
    ann.as_user("root").call(hostlock.release(lock), timeout=30)
    assert changes("true") == Exit.DONE


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
