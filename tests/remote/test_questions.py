"""A server that asks for more than a password."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import paramiko
import pytest
from paramiko.server import InteractiveQuery

from opsctl.errors import AuthFailed
from opsctl.remote.host import connect
from opsctl.remote.questions import is_for_the_password
from opsctl.remote.spec import ConnectionSpec, Login
from opsctl.secret import Secret
from tests.sshd import keygen


class Asking(paramiko.ServerInterface):
    """Asks in rounds; `answers` are what came, round by round."""

    def __init__(self, rounds: Sequence[str]) -> None:
        self.left, self.answers = list(rounds), list[str]()

    def get_allowed_auths(self, username: str) -> str:
        return "keyboard-interactive"

    def check_auth_interactive(self, username: str, submethods: str) -> InteractiveQuery | int:
        return self._next()

    def check_auth_interactive_response(self, responses: list[str]) -> int | InteractiveQuery:
        self.answers += responses
        return self._next() if self.left else paramiko.common.AUTH_SUCCESSFUL

    def _next(self) -> InteractiveQuery:
        return InteractiveQuery("", "", (self.left.pop(0), False))


class Server:
    def __init__(self, folder: Path, *rounds: str) -> None:
        keygen(folder / "host")
        self._key = paramiko.Ed25519Key.from_private_key_file(str(folder / "host"))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.asking = Asking(rounds)
        self._transports: list[paramiko.Transport] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while True:
                transport = paramiko.Transport(self._listening.accept()[0])
                self._transports.append(transport)
                transport.add_server_key(self._key)
                transport.start_server(server=self.asking)

    def close(self) -> None:
        self._listening.close()
        for transport in self._transports:
            transport.close()

    def spec(self, login: Login = "pipelined") -> ConnectionSpec:
        key = f"{self._key.get_name()} {self._key.get_base64()}"
        return ConnectionSpec(
            "box", address="127.0.0.1", port=self.port, user="ann", ssh_config="none", host_key=key,
            password=Secret("correct horse"), login=login,
        )  # fmt: skip


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    made: list[Server] = []

    def serve(*rounds: str) -> Server:
        made.append(Server(tmp_path, *rounds))
        return made[-1]

    yield serve
    for server in made:
        server.close()


@pytest.mark.parametrize("login", ["pipelined", "plain"])
@pytest.mark.parametrize("prompt", ["Verification code: ", "One-time password (OATH) for `ann': ", "New password: "])
def test_the_password_goes_to_its_own_prompt_alone(serve: Callable[..., Server], prompt: str, login: Login) -> None:
    server = serve("Password: ", prompt)
    with pytest.raises(AuthFailed) as caught:
        connect(server.spec(login))
    assert server.asking.answers == ["correct horse"]
    assert prompt.strip() in caught.value.message
    assert "terminal" in str(caught.value.hint)


def test_other_prompts_are_asked_on_the_terminal(serve: Callable[..., Server]) -> None:
    server = serve("Password: ", "Verification code: ")
    script = (
        "import sys\n"
        "from opsctl.errors import OpsctlError\n"
        "from opsctl.remote.host import connect\n"
        "from opsctl.remote.spec import ConnectionSpec\n"
        "from opsctl.secret import Secret\n"
        "port, key = sys.argv[1:]\n"
        "try:\n"
        "    connect(ConnectionSpec('box', address='127.0.0.1', port=int(port), user='ann', ssh_config='none',\n"
        "                           host_key=key, password=Secret('correct horse')))\n"
        "except OpsctlError:\n    pass  # it lets us in, and opens no channel\n"
    )
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-c", script, str(server.port), str(server.spec().host_key)]
    child = subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    said = b""
    while b"code:" not in said and select.select([ours], [], [], 30)[0]:
        said += os.read(ours, 1024)
    assert b"ann@127.0.0.1" in said
    os.write(ours, b"123456\n")
    child.wait(120)
    os.close(ours)
    assert server.asking.answers == ["correct horse", "123456"]


@pytest.mark.parametrize(
    ("prompt", "is_it"),
    [
        (("Password: ", False), True),
        (("ann@newton's password:", False), True),
        (("Passwort:", False), True),
        (("Password: ", True), False),
        (("Verification code: ", False), False),
        (("Password & verification code: ", False), False),
        (("(current) UNIX password: ", False), False),
        (("Retype new password: ", False), False),
        (("Duo two-factor login, passcode or option: ", False), False),
        (("Enter PIN for 'YubiKey': ", False), False),
        (("", False), False),
    ],
)
def test_which_prompt_is_for_the_password(prompt: tuple[str, bool], is_it: bool) -> None:
    assert is_for_the_password(prompt) is is_it
