"""How a host is reached, as the inventory says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from opsctl.secret import Secret

Login = Literal["pipelined", "plain"]


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Seconds that each kind of wait may take.

    Attributes:
        connect: until TCP (or the proxy command) has connected.
        banner: until the SSH server has introduced itself and keys are agreed.
        auth: until the server has judged one key or password.
        channel: until it has opened a channel.
        sudo: until sudo has asked, or let us in. LDAP and DNS make some slow.
    """

    connect: float = 10.0
    banner: float = 30.0
    auth: float = 30.0
    channel: float = 30.0
    sudo: float = 30.0


@dataclass(frozen=True, slots=True)
class ConnectionSpec:
    """What the inventory says about reaching one host. None: as the OpenSSH configuration says, else its default.

    Attributes:
        name: in the inventory.
        address: host name, IP address or alias of the OpenSSH configuration. None: `name`.
        keys: private key files, tried first and in this order.
        jump: as OpenSSH's ProxyJump: `[user@]host[:port]`, several separated by commas, or "none".
        become: the user that the agent runs as, through sudo.
        python: interpreter on the host. None: the first usable one is found.
        host_key: pin: `SHA256:...` or `ssh-ed25519 AAAA...`. Known hosts files do not matter then.
        known_hosts: files instead of the configured ones; the first is where trusted keys are added.
        ssh_config: file instead of the user's; "none" for no configuration at all.
        state_dir: where the agent keeps its journal on the host.
        login: pipelined sends all that an OpenSSH server takes at once; plain waits for each answer, as paramiko does.
        attempts: connection attempts in all, where the failure is of a kind that passes.
    """

    name: str
    connection: Literal["ssh", "local"] = "ssh"
    address: str | None = None
    port: int | None = None
    user: str | None = None
    keys: tuple[str, ...] = ()
    jump: str | None = None
    password: Secret | None = None
    become: str | None = None
    become_password: Secret | None = None
    python: str | None = None
    host_key: str | None = None
    known_hosts: tuple[str, ...] | None = None
    ssh_config: str | None = None
    state_dir: str | None = None
    login: Login = "pipelined"
    attempts: int = 3
    timeouts: Timeouts = Timeouts()
