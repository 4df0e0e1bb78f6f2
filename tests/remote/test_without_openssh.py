"""A controller without OpenSSH: the user's configuration is read by fabric."""

from pathlib import Path

import pytest

from opsctl.remote.ssh_config import read

CONFIG = """\
Host k25 kimi
    HostName 10.9.8.7
    User ops
    Port 2222
    ProxyJump bastion.example
    IdentityFile ~/.ssh/k25
Match host other
    User matched
Host *
    ServerAliveInterval 30
"""


def test_aliases_users_ports_jumps_keys_and_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    file = tmp_path / "config"
    file.write_text(CONFIG)

    found = read("k25", str(file), None, None)
    assert found["hostname"] == ["10.9.8.7"]
    assert found["user"] == ["ops"]
    assert found["port"] == ["2222"]
    assert found["proxyjump"] == ["bastion.example"]
    assert found["identityfile"][0].endswith("/.ssh/k25")

    assert read("other", str(file), None, None)["user"] == ["matched"]
    # What is given on the command line wins over the file.
    assert read("k25", str(file), "me", 22)["user"] == ["me"]


def test_the_users_own_file_is_read_when_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text(CONFIG)
    assert read("kimi", None, None, None)["hostname"] == ["10.9.8.7"]
