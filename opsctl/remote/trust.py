"""Looking at a host's key before anything else, and trusting it."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.remote import hostkeys, ssh_config
from opsctl.remote.hostkeys import HostKey, Verdict
from opsctl.remote.spec import ConnectionSpec


@dataclass(frozen=True, slots=True)
class Found:
    """The key that a host shows, and what is thought of it.

    Attributes:
        name: what the key is filed under.
        file: the known hosts file where `trust` puts it.
    """

    key: HostKey
    name: str
    verdict: Verdict
    file: str

    def trust(self) -> None:
        """Add the key to the file, in place of another one of the same host."""
        hostkeys.trust(self.file, self.name, self.key, replace=self.verdict is Verdict.CHANGED)


def fetch(spec: ConnectionSpec) -> Found:
    """The key that a host shows now; nobody logs in. Jump hosts on the way must be trusted already.

    Raises Unreachable, HostKeyError and AuthFailed (of a jump host), UsageError.
    """
    route = ssh_config.route(spec)
    *jumps, last = route.hops
    from opsctl.remote import ssh
    from opsctl.remote.host import open_link

    link = open_link(tuple(jumps), spec) if jumps else ssh.Link()
    try:
        sock = link.onward(last, spec.timeouts, spec.name)
        known = hostkeys.lines(last.known_hosts)
        transport, key = ssh.introduce(
            sock, hostkeys.preferred(last.key_name, known, last.pin), spec.timeouts, last, spec.name
        )
        transport.close()
    finally:
        link.close()
    return Found(key, last.key_name, hostkeys.judge(key, last.key_name, known, last.pin), last.known_hosts[0])
