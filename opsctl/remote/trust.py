"""Looking at a host's key before anything else, and trusting it."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.remote import hostkeys, ssh_config, tcp
from opsctl.remote.hostkeys import HostKey, Verdict
from opsctl.remote.spec import ConnectionSpec


@dataclass(frozen=True, slots=True)
class Found:
    """The key that a host shows, and what is thought of it.

    Attributes:
        name: what the key is filed under.
        files: the user's known hosts files; `trust` adds it to the first.
        system: the known hosts files of all users, which are not ours to change.
        pin: what the inventory says it is; no file matters then.
    """

    key: HostKey
    name: str
    verdict: Verdict
    files: tuple[str, ...]
    system: tuple[str, ...] = ()
    pin: str | None = None

    def trust(self) -> str:
        """Add the key of a host that is not known. Gives the file. Raises UsageError."""
        hostkeys.remember(next(iter(self.files), None), self.name, self.key)
        return self.files[0]

    def replace(self) -> list[str]:
        """Put the key in the place of the other ones of the host. Gives the changed files. Raises UsageError."""
        return hostkeys.replace(self.files, self.name, self.key)

    def contradicting(self) -> list[str]:
        """The files of all users that know the host by another key."""
        said = {file: [line.key for line in hostkeys.lines([file]) if self._meant(line)] for file in self.system}
        return [file for file, keys in said.items() if any(key != self.key for key in keys)]

    def _meant(self, line: hostkeys.Line) -> bool:
        return not line.marker and line.covers(self.name)


def fetch(spec: ConnectionSpec) -> Found:
    """The key that a host shows now; nobody logs in. Jump hosts on the way must be trusted already.

    Raises Unreachable, HostKeyError and AuthFailed (of a jump host), UsageError.
    """
    route = ssh_config.route(spec)
    *jumps, last = route.hops
    from opsctl.remote import ssh
    from opsctl.remote.host import open_link

    link = open_link(tuple(jumps), spec) if jumps else ssh.Link(spec.login)
    try:
        sock = link.onward(last, spec.timeouts, spec.name)
        transport = ssh.TRANSPORTS[spec.login](tcp.Watched(sock))
        key = ssh.introduce(transport, last, spec.timeouts, spec.name)
        transport.close()
    finally:
        link.close()
    verdict = hostkeys.judge(key, last.key_name, hostkeys.lines(last.known_hosts), last.pin)
    system = tuple(file for file in last.known_hosts if file not in last.own_known_hosts)
    return Found(key, last.key_name, verdict, last.own_known_hosts, system, last.pin)
