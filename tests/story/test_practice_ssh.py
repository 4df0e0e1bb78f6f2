"""The practice host's SSH server outlives its clients, as a real one does."""

from __future__ import annotations

import os
import select
import socket
import struct
from pathlib import Path

import paramiko
import pytest

from opsctl.practice import ssh_server


@pytest.mark.parametrize("gone", [OSError, EOFError, paramiko.SSHException])
def test_what_a_command_says_is_taken_from_it_although_nobody_listens(gone: type[Exception]) -> None:
    def send(data: bytes) -> None:
        raise gone

    reading, writing = os.pipe()
    os.write(writing, bytes(50_000))
    os.close(writing)
    ssh_server._pump(reading, send)
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_a_client_that_vanishes_in_mid_answer_disturbs_nobody(tmp_path: Path) -> None:
    # An exception that a thread of the server let go fails this test through pytest's own check.
    host, user = paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate()
    server = ssh_server.PracticeSSH(host, user, tmp_path, {"PATH": "/usr/bin:/bin"})
    os.mkfifo(tmp_path / "answered")
    answered = os.open(tmp_path / "answered", os.O_RDWR)
    try:
        for _ in range(6):
            link = socket.create_connection(("127.0.0.1", server.port))
            transport = paramiko.Transport(link)
            transport.start_client()
            transport.auth_publickey("practice", user)
            channel = transport.open_session()
            channel.exec_command("head -c 60000000 /dev/zero; echo said > answered")
            assert channel.recv(1 << 20)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            transport.close()
            link.close()
            # The command could say all it had to say, to nobody.
            assert select.select([answered], [], [], 20)[0]
            assert os.read(answered, 64) == b"said\n"
    finally:
        server.close()
        os.close(answered)
