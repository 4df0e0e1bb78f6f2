"""Further connections to a host by the system's own `ssh`, for moving a lot of data.

It encrypts several times as fast as we do and each one on a processor of its own, and every connection brings its own
window. Nothing is decided there that our own connection has not decided: the address, the user, the very host key and
the very login key are given, no configuration is read, and nothing is asked. Where that cannot be said on a command
line (passwords, jump hosts, proxy commands) there is no such connection.
"""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path

from opsctl.remote.hostkeys import HostKey
from opsctl.remote.login import Identity
from opsctl.remote.ssh_config import Hop

_ALIAS = "opsctl"  # what the host's key is filed under, in the file that holds nothing else
_OPTIONS = (
    *("BatchMode=yes", "StrictHostKeyChecking=yes", f"HostKeyAlias={_ALIAS}", "GlobalKnownHostsFile=none"),
    *("UpdateHostKeys=no", "CheckHostIP=no", "PreferredAuthentications=publickey", "IdentitiesOnly=yes"),
    *("ControlMaster=auto", "ControlPersist=no", "ClearAllForwardings=yes", "Compression=no", "LogLevel=ERROR"),
    *("ConnectTimeout=10", "ServerAliveInterval=15", "TCPKeepAlive=yes"),
    # As ours agrees on; the hybrid ones of OpenSSH take 50 ms of processor time more, on either side.
    "KexAlgorithms=curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,diffie-hellman-group14-sha256",
    "Ciphers=aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,chacha20-poly1305@openssh.com",
)


def command(hops: tuple[Hop, ...], key: HostKey, identity: Identity, folder: Path, name: str) -> str | None:
    """The shell command that connects to the host as we did, None where there is none. What to run there is to follow.

    The first one of a name brings a connection up, those that follow once it works are further sessions of it.

    Args:
        key: what the host has shown and was known by.
        identity: what it let us in by.
        folder: a private one, for the files that `ssh` is given. It runs there and is told their names alone: a path
            may be longer than that of a socket can be, or hold what `ssh` would expand.
    """
    ssh, hop = shutil.which("ssh"), hops[-1]
    if ssh is None or len(hops) > 1 or hop.proxy_command:
        return None
    (folder / "known_hosts").write_text(f"{_ALIAS} {key}\n")
    if identity.file is not None:
        login, agent = "id", "none"
        (folder / login).unlink(missing_ok=True)
        (folder / login).symlink_to(os.path.abspath(identity.file))
    else:  # the agent has it: its public half says which one is meant
        login, agent = "id.pub", "SSH_AUTH_SOCK"
        (folder / login).write_text(f"{identity.public}\n")
    algorithms = "rsa-sha2-512,rsa-sha2-256" if key.type == "ssh-rsa" else key.type
    own = (f"ControlPath={name}", "UserKnownHostsFile=known_hosts", f"HostKeyAlgorithms={algorithms}")
    options = [word for option in (*_OPTIONS, *own, f"IdentityAgent={agent}") for word in ("-o", option)]
    to = ["-i", login, "-p", str(hop.port), "-l", hop.user, "--", hop.address]
    connect = shlex.join([os.path.abspath(ssh), "-F", "none", "-T", "-a", "-x", *options, *to])
    return f"cd {shlex.quote(str(folder))} && exec {connect}"
