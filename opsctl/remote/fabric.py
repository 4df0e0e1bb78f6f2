"""fabric over the connection of opsctl: for tasks and modules that are written for fabric."""

from __future__ import annotations

from typing import Any

from opsctl.errors import Unreachable
from opsctl.remote.lean_paramiko import paramiko
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
