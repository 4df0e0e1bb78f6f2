"""A small SSH server for one user with one key, on loopback: commands, and connections to ports of this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import paramiko
from paramiko.common import (
    AUTH_FAILED,
    AUTH_SUCCESSFUL,
    OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED,
    OPEN_FAILED_CONNECT_FAILED,
    OPEN_SUCCEEDED,
)

_CHUNK = 32 << 10
# What sending to a client that has gone raises: its channel is closed, its link, or the keys cannot be renewed.
_GONE = (OSError, EOFError, paramiko.SSHException)


class PracticeSSH:
    """Serves until `close`. Every command runs with the practice host's own home and environment."""

    def __init__(self, host_key: paramiko.PKey, user_key: paramiko.PKey, home: Path, env: Mapping[str, str]) -> None:
        self.home, self.env = home, dict(env)
        self._host_key, self._user_key = host_key, user_key
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="practice-ssh", daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:  # closed
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        transport = paramiko.Transport(client)
        transport.add_server_key(self._host_key)
        session = _Session(self, self._user_key)
        # A client that leaves in mid-handshake is no event for a practice host.
        with contextlib.suppress(*_GONE):
            transport.start_server(server=session)
            while transport.is_active():
                channel = transport.accept(1)
                if channel is not None:
                    session.opened(channel)


class _Session(paramiko.ServerInterface):
    def __init__(self, server: PracticeSSH, key: paramiko.PKey) -> None:
        self._server, self._key = server, key
        self._tunnels: dict[int, socket.socket] = {}

    def opened(self, channel: paramiko.Channel) -> None:
        """A channel that a check below allowed is there now: join it to its port, if it has one."""
        target = self._tunnels.pop(channel.get_id(), None)
        if target is not None:
            threading.Thread(target=_join, args=(channel, target), daemon=True).start()

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL if key == self._key else AUTH_FAILED

    def check_channel_request(self, kind: str, chanid: int) -> int:
        if kind == "session":
            return OPEN_SUCCEEDED
        return OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Thread(target=self._run, args=(channel, command), daemon=True).start()
        return True

    def check_channel_direct_tcpip_request(
        self, chanid: int, origin: tuple[str, int], destination: tuple[str, int]
    ) -> int:
        try:
            target = socket.create_connection(("127.0.0.1", destination[1]), timeout=5)
        except OSError:
            return OPEN_FAILED_CONNECT_FAILED
        target.settimeout(None)
        self._tunnels[chanid] = target
        return OPEN_SUCCEEDED

    def _run(self, channel: paramiko.Channel, command: bytes) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command.decode()],
            cwd=self._server.home,
            env=self._server.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdin and process.stdout and process.stderr
        outputs = [
            threading.Thread(target=_pump, args=(process.stdout.fileno(), channel.sendall), daemon=True),
            threading.Thread(target=_pump, args=(process.stderr.fileno(), channel.sendall_stderr), daemon=True),
        ]
        for thread in outputs:
            thread.start()
        threading.Thread(target=_feed, args=(channel, os.dup(process.stdin.fileno())), daemon=True).start()
        process.stdin.close()
        with process.stdout, process.stderr:
            code = process.wait()
            for thread in outputs:
                thread.join()
        with contextlib.suppress(*_GONE):
            channel.send_exit_status(code if code >= 0 else 128 - code)
            channel.close()


def _pump(source: int, send: Callable[[bytes], None]) -> None:
    """Send what a process writes. A client that has gone is no reason to stop reading: the process would block."""
    gone = False
    with contextlib.suppress(OSError):
        while data := os.read(source, _CHUNK):
            if not gone:
                try:
                    send(data)
                except _GONE:
                    gone = True


def _feed(channel: paramiko.Channel, target: int) -> None:
    with contextlib.suppress(*_GONE), os.fdopen(target, "wb", buffering=0) as pipe:
        while data := channel.recv(_CHUNK):
            pipe.write(data)


def _join(channel: paramiko.Channel, target: socket.socket) -> None:
    """Carry bytes both ways until both sides have said all they had to say."""
    with target:
        back = threading.Thread(target=_copy, args=(target.recv, channel.sendall, channel), daemon=True)
        back.start()
        _copy(channel.recv, target.sendall, target)
        back.join()


def _copy(read: Callable[[int], bytes], write: Callable[[bytes], None], end: socket.socket | paramiko.Channel) -> None:
    with contextlib.suppress(*_GONE):
        while data := read(_CHUNK):
            write(data)
    with contextlib.suppress(*_GONE):
        end.shutdown(socket.SHUT_WR)
