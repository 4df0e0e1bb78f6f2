"""Known hosts files: what is written into them, and by whom a changed key is accepted."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from opsctl.cli.main import run
from opsctl.errors import Exit, HostKeyError, UsageError
from opsctl.remote import hostkeys
from opsctl.remote.hostkeys import HostKey, Verdict, judge, lines, parse, remember, replace
from opsctl.remote.trust import fetch
from tests.conftest import MakeHost
from tests.remote.test_ssh import works
from tests.sshd import Sshd, keygen


def key(letter: str, kind: str = "ssh-ed25519") -> HostKey:
    return HostKey(kind, letter.encode() * 32)


OLD, NEW, OTHER = key("o"), key("n"), key("x")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "ssh_config"


def configured(config: Path, file: str, strict: str = "accept-new") -> dict[str, Any]:
    text = f"Host *\n  StrictHostKeyChecking {strict}\n  UserKnownHostsFile {file}\n  GlobalKnownHostsFile none\n"
    config.write_text(text)
    return {"known_hosts": None, "ssh_config": str(config)}


@pytest.mark.skipif(not shutil.which("ssh"), reason="the configuration is OpenSSH's to read")
@pytest.mark.parametrize("file", ["/dev/null", "none", "device", "unwritable"])
def test_accept_new_goes_on_where_nothing_can_be_kept_and_says_so(
    make_host: MakeHost, config: Path, tmp_path: Path, file: str
) -> None:
    """`/dev/null` stays what it is, also for root; so does a link to a device, and a folder that cannot be written."""
    named = {"device": str(tmp_path / "null"), "unwritable": "/proc/known_hosts"}.get(file, file)
    if file == "device":
        (tmp_path / "null").symlink_to("/dev/null")
    before = os.stat("/dev/null")
    host = make_host(**configured(config, named))
    assert works(host)
    (warning,) = (text for text in host.warnings if "is accepted, but" in text)
    assert "not kept" in warning or "kept nowhere" in warning
    assert (os.stat("/dev/null").st_mode, os.stat("/dev/null").st_ino) == (before.st_mode, before.st_ino)
    with pytest.raises(HostKeyError, match="is not known"):
        make_host(**configured(config, named, "yes"))


@pytest.mark.skipif(not shutil.which("ssh"), reason="the configuration is OpenSSH's to read")
def test_accept_new_adds_to_the_file_that_a_link_leads_to(make_host: MakeHost, config: Path, tmp_path: Path) -> None:
    kept, link = tmp_path / "dotfiles", tmp_path / "known"
    kept.write_bytes(b"# mine \xff\nother.example ssh-ed25519 AAAA")  # without an end of line
    kept.chmod(0o640)
    link.symlink_to(kept)
    inode = kept.stat().st_ino
    for _ in range(2):
        assert works(make_host(**configured(config, str(link))))
    assert link.is_symlink()
    assert (kept.stat().st_ino, kept.stat().st_mode & 0o777) == (inode, 0o640)
    *old, new = kept.read_bytes().splitlines()
    assert old == [b"# mine \xff", b"other.example ssh-ed25519 AAAA"]
    assert new.startswith(b"[127.0.0.1]:")
    assert {path.name for path in tmp_path.iterdir()} <= {"dotfiles", "known", "ssh_config", "state"}


def _add(file: str, number: int) -> None:
    for each in range(20):
        remember(file, f"host-{number}-{each}", OLD)


def test_two_processes_at_once_lose_no_line(tmp_path: Path) -> None:
    file = str(tmp_path / "known")
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_add, args=(file, number)) for number in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert len(lines([file])) == 40


# What a file says, and what is left of it once box has a new key.
REPLACED = [
    (f"box {OLD}\n", ""),
    (f"# box\n\nbox {OLD} comment\nbay {OLD}\n", f"# box\n\nbay {OLD}\n"),
    (f"BOX,192.0.2.1 {OLD}\n", f"192.0.2.1 {OLD}\n"),
    (f"@cert-authority * {OTHER}\n@revoked box {OLD}\nbox {OLD}\n", f"@cert-authority * {OTHER}\n@revoked box {OLD}\n"),
    (f"[box]:2222 {OLD}\nbox {OLD}\nbox {key('r', 'ssh-rsa')}\n", f"[box]:2222 {OLD}\n"),
    (f"*,!box {OTHER}\nbox {OLD}\n", f"*,!box {OTHER}\n"),
    (f"box {OLD}\nnot a line\n", "not a line\n"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "left"), REPLACED)
def test_only_what_a_file_says_of_the_host_is_replaced(tmp_path: Path, before: str, left: str) -> None:
    file = tmp_path / "known"
    file.write_text(before)
    assert replace([str(file)], "box", NEW) == [str(file)]
    assert file.read_text() == f"{left}box {NEW}\n"
    assert Path(f"{file}.old").read_text() == before
    assert judge(NEW, "box", lines([str(file)])) is Verdict.KNOWN
    assert judge(OLD, "box", lines([str(file)])) is not Verdict.KNOWN


def test_hashed_names_and_all_files_of_the_user_are_replaced(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"box {OLD}\nbay {OLD}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(first)], check=True, capture_output=True)
    second.write_text(f"box {key('r', 'ssh-rsa')}\n")
    assert replace([str(first), str(second), str(tmp_path / "missing")], "box", NEW) == [str(first), str(second)]
    known = lines([str(first), str(second)])
    assert [line.key for line in known if line.covers("box")] == [NEW]
    assert judge(OLD, "bay", known) is Verdict.KNOWN
    assert not (tmp_path / "missing").exists()


def test_a_line_of_many_hosts_is_left_and_told_before_anything_is_written(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text(f"box {OLD}\n")
    second.write_text(f"# ours\nb* {OLD}\n")
    with pytest.raises(UsageError, match="speaks of other hosts than box too") as told:
        replace([str(first), str(second)], "box", NEW)
    assert str(told.value.where) == f"{second}:2"
    assert first.read_text() == f"box {OLD}\n"


class Trusting:
    """`opsctl inventory trust box` on a real server, by a known hosts file or a pin."""

    def __init__(self, sshd: Sshd, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.sshd, self.known, self.inventory, self.capsys = sshd, folder / "known", folder / "inventory.yaml", capsys
        self.write()

    def write(self, *more: str) -> None:
        said = [
            "address: 127.0.0.1",
            f"port: {self.sshd.port}",
            "ssh_config: none",
            f"known_hosts: {self.known}",
            *more,
        ]
        self.inventory.write_text("hosts:\n  box:\n" + "".join(f"    {line}\n" for line in said))

    def __call__(self, *words: str) -> tuple[int, str]:
        code = run(["inventory", "trust", "box", "-i", str(self.inventory), *words])
        return code, "".join(self.capsys.readouterr())


@pytest.fixture
def trusting(sshd: Sshd, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Trusting:
    return Trusting(sshd, tmp_path, capsys)


def test_a_changed_key_is_accepted_by_its_fingerprint_alone(trusting: Trusting, sshd: Sshd, tmp_path: Path) -> None:
    keygen(tmp_path / "other")
    other = next(iter(parse("x " + (tmp_path / "other.pub").read_text()))).key
    before = f"bay {other}\n[127.0.0.1]:{sshd.port} {other}\n"
    trusting.known.write_text(before)
    for words in (["--yes"], ["--yes", "--replace", other.fingerprint]):
        code, told = trusting(*words)
        assert code == Exit.UNREACHABLE
        assert "HAS CHANGED" in told
        assert sshd.host_key.fingerprint in told
        assert trusting.known.read_text() == before
    code, told = trusting("--replace", sshd.host_key.fingerprint)
    assert code == Exit.DONE
    assert trusting.known.read_text() == f"bay {other}\n[127.0.0.1]:{sshd.port} {sshd.host_key}\n"
    assert "known.old is as it was" in told


def test_a_new_key_is_added_with_yes_and_a_replacement_that_nobody_shows_is_refused(
    trusting: Trusting, sshd: Sshd
) -> None:
    assert trusting()[0] == Exit.USAGE  # nobody to ask
    assert trusting("--yes", "--replace", NEW.fingerprint)[0] == Exit.USAGE
    assert not trusting.known.exists()
    assert trusting("--yes")[0] == Exit.DONE
    assert trusting.known.read_text() == f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n"
    assert trusting("--yes") == (Exit.DONE, f"box: ssh-ed25519 {sshd.host_key.fingerprint} (known)\nnothing to add\n")


def test_a_pin_is_not_changed_by_trusting_and_a_revoked_key_is_not_trusted(trusting: Trusting, sshd: Sshd) -> None:
    trusting.write(f"host_key: {OTHER.fingerprint}")
    code, told = trusting("--yes", "--replace", sshd.host_key.fingerprint)
    assert code == Exit.UNREACHABLE
    assert "pinned in the inventory" in told
    assert "edit `host_key`" in told
    assert not trusting.known.exists()
    trusting.write()
    trusting.known.write_text(f"@revoked * {sshd.host_key}\n")
    assert trusting("--yes")[0] == Exit.UNREACHABLE


@pytest.mark.parametrize("where", ["/dev/null", "/proc/known_hosts"])
def test_trusting_says_where_nothing_can_be_kept(trusting: Trusting, where: str) -> None:
    trusting.known = Path(where)
    trusting.write()
    code, told = trusting("--yes")
    assert code == Exit.USAGE
    assert f"not kept{' in' if 'proc' in where else ':'} {where}" in told
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not shutil.which("ssh"), reason="the configuration is OpenSSH's to read")
def test_a_file_of_all_users_is_read_and_never_written(sshd: Sshd, config: Path, tmp_path: Path) -> None:
    system = tmp_path / "system"
    system.write_text(f"[127.0.0.1]:{sshd.port} {OLD}\n")
    config.write_text(f"Host *\n  UserKnownHostsFile none\n  GlobalKnownHostsFile {system}\n")
    found = fetch(sshd.spec(known_hosts=None, ssh_config=str(config)))
    assert (found.verdict, found.files, found.contradicting()) == (Verdict.CHANGED, (), [str(system)])
    with pytest.raises(UsageError, match="UserKnownHostsFile is none"):
        found.replace()
    assert hostkeys.lines([str(system)])[0].key == OLD
