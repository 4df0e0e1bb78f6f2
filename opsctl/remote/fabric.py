"""fabric over the connection of opsctl, for tasks that are written for it; and the plain login, which is fabric's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from paramiko.auth_strategy import AuthResult, AuthSource, AuthStrategy

from opsctl.errors import OpsctlError, Unreachable
from opsctl.remote import tcp
from opsctl.remote.hostkeys import HostKey
from opsctl.remote.lean_paramiko import paramiko
from opsctl.remote.login import Identity, authenticate
from opsctl.remote.spec import Timeouts
from opsctl.remote.ssh import Arrived, accept, not_agreed, prepare
from opsctl.remote.ssh_config import Hop
from opsctl.secret import Secret

# After paramiko, which then loads only what it needs.
from fabric import Config, Connection  # isort: skip


class _Client(paramiko.SSHClient):
    """A client that is connected already, by somebody who alone ends the connection."""

    def __init__(self, transport: paramiko.Transport, name: str) -> None:
        super().__init__()
        self._transport, self._name = transport, name  # the first is where paramiko's client keeps what it connects

    def connect(self, *_: Any, **__: Any) -> None:
        """Raises Unreachable where the connection has ended."""
        if not self._transport.is_active():
            raise Unreachable("the connection has ended", where=self._name)

    def close(self) -> None:
        pass


def connection(
    transport: paramiko.Transport, hop: Hop, name: str, sudo: Secret | None = None, timeout: float | None = None
) -> Connection:
    """Returns a fabric connection to `hop` whose commands and transfers go over `transport`.

    No configuration of OpenSSH is read for it: where the host is, and by which way, has been decided. What is typed
    here does not go to its commands, unless one is given `in_stream`: many hosts may be at work.

    Args:
        name: of the host, for errors.
        sudo: the password that `Connection.sudo` answers with.
        timeout: seconds that a command may take.
    """
    said: dict[str, dict[str, Any]] = {
        "run": {"in_stream": False},
        "sudo": {"password": sudo.reveal()} if sudo else {},
        "timeouts": {"command": timeout} if timeout else {},
    }
    config = Config(overrides=said, ssh_config=paramiko.SSHConfig())
    made = Connection(hop.address, hop.user, hop.port, config=config, gateway=False)
    made.client = _Client(transport, name)
    made.open()
    return made


def log_in(sock: tcp.Watched, hop: Hop, timeouts: Timeouts, where: str, *, last: bool) -> Arrived:
    """Log in by fabric.Connection, step by step. Raises Unreachable, HostKeyError, AuthFailed.

    The host key is checked, and keys and passwords are tried, as ever.
    """
    check, login = _HostKeyCheck(hop, where), _Login(hop, where)

    def transport(sock: Any, **options: Any) -> paramiko.Transport:
        made = paramiko.Transport(sock, **options)
        prepare(made, hop, timeouts)
        return made

    made = Connection(
        hop.address,
        hop.user,
        hop.port,
        config=Config(lazy=True, ssh_config=paramiko.SSHConfig()),
        gateway=False,
        connect_timeout=math.ceil(timeouts.banner),
        connect_kwargs={
            **{"sock": sock, "transport_factory": transport, "auth_strategy": login},
            **{"banner_timeout": timeouts.banner, "auth_timeout": timeouts.auth, "channel_timeout": timeouts.channel},
        },
    )
    made.client.set_missing_host_key_policy(check)
    try:
        made.open()
    except BaseException as error:
        made.client.close()
        sock.close()
        if isinstance(error, paramiko.SSHException | EOFError | OSError) and not isinstance(error, OpsctlError):
            raise not_agreed(error, hop, where) from error
        raise
    assert check.key
    return Arrived(made.transport, check.key, check.note, login.identity)


class _HostKeyCheck(paramiko.MissingHostKeyPolicy):
    """Checks every host key as the pipelined login does: a client is given no known hosts, so it asks each time."""

    key: HostKey | None = None
    note: str | None = None

    def __init__(self, hop: Hop, where: str) -> None:
        self._hop, self._where = hop, where

    def missing_host_key(self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey) -> None:
        self.key = HostKey(key.get_name(), key.asbytes())
        self.note = accept(self.key, self._hop, self._where)


class _Login(AuthStrategy):
    """Tries what the pipelined login tries, in its order."""

    identity: Identity | None = None

    def __init__(self, hop: Hop, where: str) -> None:
        super().__init__(paramiko.SSHConfig())
        self._hop, self._where = hop, where

    def get_sources(self) -> Iterator[AuthSource]:
        return iter(())

    def authenticate(self, transport: paramiko.Transport) -> AuthResult:
        self.identity = authenticate(transport, self._hop, self._where)
        return AuthResult(self)
