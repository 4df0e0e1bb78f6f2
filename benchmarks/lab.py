"""Ten SSH servers at two distances, in network namespaces of our own: `near` (about 0 ms) and `far` (50 ms round trip).

Needs root, openssh-server, iproute2 and a C compiler. Everything it makes is below one folder and is taken away at
the end; traffic stays inside the two namespaces.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CLIENT, SERVERS = "opsctl-bench-c", "opsctl-bench-s"
ADDRESS = {"near": "10.77.0.2", "far": "10.78.0.2"}
HOSTS = 10
FIRST_PORT = 2201

SSHD_CONFIG = """\
Port {port}
ListenAddress 0.0.0.0
HostKey {keys}/host
AuthorizedKeysFile {keys}/id.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
StrictModes no
PrintMotd no
MaxStartups 200
MaxSessions 100
PidFile {run}/sshd-{port}.pid
Subsystem sftp /usr/lib/openssh/sftp-server
"""

SSH_CONFIG = """\
Host *
  User root
  IdentityFile {keys}/id
  IdentitiesOnly yes
  UserKnownHostsFile {run}/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
"""


@dataclass(frozen=True, slots=True)
class Lab:
    """Names are near1..near10 and far1..far10; `ssh_config` knows them all."""

    run: Path

    @property
    def ssh_config(self) -> Path:
        return self.run / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.run / "known_hosts"

    @property
    def key(self) -> Path:
        return self.run / "keys" / "id"

    @property
    def home(self) -> Path:
        """Home of the clients: empty, so that nobody's own settings count."""
        return self.run / "clienthome"

    def client(self, argv: Sequence[str | Path]) -> list[str]:
        """`argv` as a command that runs where the clients are."""
        return ["ip", "netns", "exec", CLIENT, *map(str, argv)]


@contextlib.contextmanager
def lab(run: Path, rtt_ms: int = 50) -> Iterator[Lab]:
    run.mkdir(parents=True, exist_ok=True)
    built = Lab(run)
    for folder in (run / "keys", run / "roothome", built.home, Path("/run/sshd")):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    started: list[subprocess.Popen[str]] = []
    try:
        _network(run, rtt_ms, started)
        _servers(built, started)
        yield built
    finally:
        for process in reversed(started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
        for namespace in (CLIENT, SERVERS):
            subprocess.run(["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL, check=False)


def _network(run: Path, rtt_ms: int, started: list[subprocess.Popen[str]]) -> None:
    link = run / "link"
    _do("cc", "-O2", "-o", link, Path(__file__).with_name("link.c"))
    for namespace in (CLIENT, SERVERS):
        _do("ip", "netns", "add", namespace)
    _do("ip", "link", "add", "veth0", "netns", CLIENT, "type", "veth", "peer", "name", "veth0", "netns", SERVERS)
    started.append(_start(run, [str(link), CLIENT, SERVERS, str(rtt_ms * 500)], until="ready"))
    for n, namespace in enumerate((CLIENT, SERVERS), 1):
        ip = ("ip", "-n", namespace)
        _do(*ip, "link", "set", "lo", "up")
        for device, net in (("veth0", 77), ("wire0", 78)):
            _do(*ip, "addr", "add", f"10.{net}.0.{n}/24", "dev", device)
            _do(*ip, "link", "set", device, "txqueuelen", "20000", "up")
        # Linux's default of 4 MiB caps one TCP stream at about 54 MB/s here; the wire is not what is measured.
        _do("ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.tcp_wmem=4096 16384 67108864")


def _servers(built: Lab, started: list[subprocess.Popen[str]]) -> None:
    run, keys = built.run, built.run / "keys"
    for name in ("host", "id"):
        if not (keys / name).exists():
            _do("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name)
    public = " ".join((keys / "host.pub").read_text().split()[:2])
    known, config = [], [SSH_CONFIG.format(keys=keys, run=run)]
    for i in range(HOSTS):
        port = FIRST_PORT + i
        file = run / f"sshd-{port}.conf"
        file.write_text(SSHD_CONFIG.format(port=port, keys=keys, run=run))
        # `ip netns exec` has a mount namespace of its own: the servers get an empty /root, the machine keeps its own.
        inside = f"mount --bind {run}/roothome /root && exec /usr/sbin/sshd -D -e -f {file}"
        argv = ["ip", "netns", "exec", SERVERS, "sh", "-c", inside]
        started.append(_start(run, argv, until="Server listening"))
        for where, address in ADDRESS.items():
            known.append(f"[{address}]:{port} {public}\n")
            config.append(f"Host {where}{i + 1}\n  HostName {address}\n  Port {port}\n")
    built.known_hosts.write_text("".join(known))
    built.ssh_config.write_text("".join(config))


def _start(run: Path, argv: list[str], until: str) -> subprocess.Popen[str]:
    """Start a process in a group of its own and wait for the line that says it is up."""
    log = run / "started.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, text=True, start_new_session=True
        )
    deadline = time.monotonic() + 10
    while until not in log.read_text():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{argv[0]} did not start: {log.read_text()[-500:]}")
        time.sleep(0.02)
    return process


def _do(*argv: str | Path) -> None:
    subprocess.run([str(word) for word in argv], check=True, stdin=subprocess.DEVNULL)
