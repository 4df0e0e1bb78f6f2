"""A real OpenSSH server on loopback with throw-away keys, running as whoever runs the tests."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from opsctl.remote.hostkeys import HostKey, parse
from opsctl.remote.spec import ConnectionSpec

PATIENCE = 120  # seconds, longer than the slowest machine needs: what is waited for comes in a moment, or never
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """A server in `folder`, on a free port. `spec` says how to reach it.

    Attributes:
        options: further lines of its configuration.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        assert SSHD, "OpenSSH's sshd is not installed"
        self.folder, self.user = folder, getpass.getuser()
        self.host_key_file, self.key_file = folder / "host", folder / "id"
        self.known_hosts, self.log = folder / "known_hosts", folder / "log"
        for file in (self.host_key_file, self.key_file):
            keygen(file)
        self.port = free_port()
        shutil.copy(f"{self.key_file}.pub", folder / "authorized")
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_key}\n")
        config = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.host_key_file}",
            f"AuthorizedKeysFile {folder / 'authorized'}",
            "PermitRootLogin prohibit-password",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "UsePAM no",
            "UseDNS no",
            "StrictModes no",
            "MaxStartups 200",
            "MaxSessions 100",
            "PidFile none",
            "Subsystem sftp internal-sftp",
        ]
        (folder / "sshd_config").write_text(
            "\n".join([*options, *config]) + "\n"
        )  # the first value of a keyword counts
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def host_key(self) -> HostKey:
        return next(iter(parse("x " + Path(f"{self.host_key_file}.pub").read_text()))).key

    @property
    def sessions(self) -> list[int]:
        """Process ids of the server's side of each connection."""
        assert self._process
        return children(self._process.pid)

    def spec(self, **given: Any) -> ConnectionSpec:
        """How to reach it: address, port, user, key and known hosts; `given` replaces any of it."""
        base: dict[str, Any] = {
            **{"name": "box", "address": "127.0.0.1", "port": self.port, "user": self.user, "ssh_config": "none"},
            **{"keys": (str(self.key_file),), "known_hosts": (str(self.known_hosts),)},
        }
        return ConnectionSpec(**{**base, **given})

    def start(self) -> None:
        """Start it and wait until it listens."""
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)  # sshd insists on it as root
        assert SSHD
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise RuntimeError(f"sshd did not start: {self.log.read_text()}")

    def drop(self) -> None:
        """Kill the server's side of every connection; what runs in the sessions sees its input end."""
        for pid in self.sessions:
            for process in (*children(pid), pid):  # the unprivileged half first
                if "sshd" in _command(process):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        if self._process:
            self.drop()
            self._process.terminate()
            self._process.wait(120)
            self._process = None


def keygen(file: Path, *options: str) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", *options, "-f", str(file)], check=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def children(pid: int) -> list[int]:
    """Process ids of the children of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end while we look
        for task in os.listdir(f"/proc/{pid}/task"):
            found += [int(child) for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()]
    return found


def eventually(condition: Any) -> Any:
    """The first true value of `condition()`, looked at until then. Fails once no machine can be as slow as that."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not come true within {PATIENCE} s")


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


_CONNECTOR = """
import os, socket, sys, threading
there = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
def up():
    while data := os.read(0, 65536):
        there.sendall(data)
threading.Thread(target=up, daemon=True).start()
while data := there.recv(65536):
    os.write(1, data)
"""


def proxy_command(folder: Path, port: int) -> str:
    """A ProxyCommand that connects its input and output with a port of this machine, by connector.py of the folder."""
    connector = folder / "connector.py"
    connector.write_text(_CONNECTOR)
    return f"{sys.executable} {connector} {port}"
