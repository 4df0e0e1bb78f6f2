"""SSH by paramiko: from a route to an authenticated transport, and commands on its channels.

Imports paramiko, which takes 0.2 s: import this module only once connecting has begun.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opsctl.errors import HostKeyError, Unreachable, UsageError
from opsctl.remote import hostkeys, tcp
from opsctl.remote.hostkeys import HostKey, Verdict
from opsctl.remote.lean_paramiko import paramiko, words
from opsctl.remote.login import Identity, authenticate
from opsctl.remote.scratch import Scratch
from opsctl.remote.spec import Login, Timeouts
from opsctl.remote.ssh_config import Hop
from opsctl.remote.stream import Tail, read_range
from opsctl.remote.transport import Transport

if TYPE_CHECKING:
    import fabric

    from opsctl.secret import Secret

Socket = socket.socket | paramiko.Channel

KEEPALIVE = 15  # seconds
_CHUNK = 1 << 18
_LOOK = 0.25  # seconds between looks at standard error while nothing comes on standard output
_STUCK = 1.0  # seconds without progress in writing after which what need not be said is not

# Ciphers that modern processors do in hardware first; the rest in paramiko's own order.
_FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr")


TRANSPORTS: Mapping[Login, Callable[[tcp.Watched], paramiko.Transport]] = {
    "pipelined": Transport,
    "plain": paramiko.Transport,  # type: ignore[dict-item]  # a Watched acts as a socket
}


class Busy(Unreachable):
    """The server has no room just now (MaxStartups, still booting): worth another try."""


class Link:
    """A chain of authenticated transports, one per hop; the last one is the host's.

    Args:
        login: pipelined, or plain: by fabric.Connection, and by nothing of paramiko's that is not its public interface.
    """

    def __init__(self, login: Login = "pipelined") -> None:
        self._login = login
        self._transports: list[paramiko.Transport] = []
        self._sockets: list[tcp.Watched] = []  # below each of them
        self._proxy: subprocess.Popen[bytes] | None = None
        self._hops: tuple[Hop, ...] = ()
        self._identity: Identity | None = None
        self._scratch: Scratch | None = None
        self.host_key: HostKey | None = None
        self.notes: tuple[str, ...] = ()  # what a user should know of how it was made

    @property
    def transport(self) -> paramiko.Transport:
        return self._transports[-1]

    @property
    def socket(self) -> tcp.Watched:
        """How the connection to the host fares."""
        return self._sockets[-1]

    def open(self, hops: tuple[Hop, ...], dialling: tcp.Dialling | None, timeouts: Timeouts, name: str) -> None:
        """Connect through all hops. Raises Unreachable, HostKeyError, AuthFailed; closes what it had opened then."""
        try:
            for hop in hops:
                where = name if hop is hops[-1] else f"{name} (jump host {hop})"
                sock = tcp.Watched(self.onward(hop, timeouts, name, dialling))
                self._sockets.append(sock)
                if self._login == "plain":
                    from opsctl.remote.fabric import log_in
                else:
                    log_in = pipelined
                came = log_in(sock, hop, timeouts, where, last=hop is hops[-1])
                self._transports.append(came.transport)
                self.host_key, self._identity = came.host_key, came.identity
                self.notes += (came.note,) if came.note else ()
                came.transport.set_keepalive(KEEPALIVE)
            self._hops = hops
        except BaseException:
            self.close()
            raise

    def onward(self, hop: Hop, timeouts: Timeouts, name: str, dialling: tcp.Dialling | None = None) -> Socket:
        """A connected socket to the next hop. Raises Unreachable."""
        if self._transports:
            return tunnel(self.transport, hop.address, hop.port, timeouts.connect, name)
        if hop.proxy_command:
            sock, self._proxy = tcp.proxied(hop.proxy_command)
            return sock
        try:
            return (dialling or tcp.dial(hop.address, hop.port)).finish(timeouts.connect)
        except OSError as error:
            raise unreachable(error, hop, name) from error

    def run(self, command: str, timeout: float, where: str) -> SshStream:
        """Start a command on a channel of its own."""
        transport = self.transport
        try:
            channel = transport.open_session(timeout=timeout)
            channel.settimeout(timeout)
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise Unreachable(f"the server opened no channel: {words(error)}", where=where) from error
        return SshStream(channel, self.socket)

    def fabric(self, name: str, sudo: Secret | None, timeout: float | None) -> fabric.Connection:
        """A fabric connection over this one, as remote.fabric gives it. Raises Unreachable."""
        from opsctl.remote.fabric import connection

        return connection(self.transport, self._hops[-1], name, sudo, timeout)

    def openssh(self, name: str) -> str | None:
        """A shell command that connects once more, as openssh.command gives it."""
        from opsctl.remote import openssh  # only where a lot is sent

        if self._identity is None or self.host_key is None:
            return None
        try:
            self._scratch = self._scratch or Scratch()
        except OSError:  # no room, or nowhere to write: our own connection has to do
            return None
        return openssh.command(self._hops, self.host_key, self._identity, self._scratch.path, name)

    def break_off(self) -> None:
        """Break off the sockets below it, which waits for nobody: whoever writes or reads is told that it has ended."""
        for sock in self._sockets:  # the outermost first: the others write to it
            sock.break_off()

    def close(self) -> None:
        if self._scratch:
            self._scratch.close()
            self._scratch = None
        for transport in reversed(self._transports):
            with contextlib.suppress(Exception):  # whatever state it is in, it is of no use any more
                transport.close()
        self._transports.clear()
        if self._proxy:
            self._proxy.kill()
            self._proxy.wait()
            self._proxy = None


class SshStream:
    """A command on a channel, as a Stream."""

    def __init__(self, channel: paramiko.Channel, sock: tcp.Watched) -> None:
        self._channel, self._socket, self._tail = channel, sock, Tail()

    def send(self, data: bytes, timeout: float) -> None:
        self._channel.settimeout(timeout)
        try:
            # It slices off each packet; of bytes that would be a copy of all the rest.
            self._channel.sendall(memoryview(data))  # type: ignore[arg-type]
        except (EOFError, paramiko.SSHException) as error:  # the packet's own failures come through as they are
            raise ConnectionError(words(error)) from error

    def send_file(self, file: int, start: int, count: int, timeout: float) -> None:
        self.send(read_range(file, start, count), timeout)

    def receive(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            self._channel.settimeout(max(0.0, min(left, _LOOK)))
            try:
                return self._channel.recv(_CHUNK)
            except TimeoutError:
                if left <= _LOOK:
                    raise
            finally:
                self.stderr()  # it shares the window with standard output: never let it fill up

    def heard(self) -> float:
        return self._socket.heard

    def can_send(self) -> bool:
        return self._channel.send_ready() and self._socket.stuck < _STUCK

    def stderr(self) -> str:
        while self._channel.recv_stderr_ready() and (data := self._channel.recv_stderr(1 << 16)):
            self._tail.add(data)
        return self._tail.text()

    def status(self, timeout: float) -> int | None:
        if not self._channel.status_event.wait(timeout):
            return None
        status = self._channel.recv_exit_status()
        return None if status == -1 else status

    def end_input(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.shutdown_write()

    def abandon(self) -> None:
        # It is closed at once; only the word of it to the server waits for whoever writes.
        threading.Thread(target=self.close, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._channel.close()


@dataclass(frozen=True, slots=True)
class Arrived:
    """A transport that is logged in, and what let it in; `note` says why a new key that was accepted is not kept."""

    transport: paramiko.Transport
    host_key: HostKey
    note: str | None
    identity: Identity | None


def pipelined(sock: tcp.Watched, hop: Hop, timeouts: Timeouts, where: str, *, last: bool) -> Arrived:
    """Log in by way of `Transport`. Raises Unreachable, HostKeyError, AuthFailed.

    Args:
        last: whether this is the host itself: a session is opened along with the login then.
    """
    transport = Transport(sock)
    key = introduce(transport, hop, timeouts, where)
    try:
        note = accept(key, hop, where)
        transport.wants_session = last
        return Arrived(transport, key, note, authenticate(transport, hop, where))
    except BaseException:
        transport.close()
        raise


def accept(key: HostKey, hop: Hop, where: str) -> str | None:
    """Check a server's key; says why a new one that is accepted is not kept. Raises HostKeyError.

    What is to be accepted the first time is so whether it can be kept or not, as with ssh.
    """
    verdict = hostkeys.judge(key, hop.key_name, hostkeys.lines(hop.known_hosts), hop.pin)
    if verdict is Verdict.UNKNOWN and hop.accept_new:
        try:
            hostkeys.remember(next(iter(hop.own_known_hosts), None), hop.key_name, key)
        except UsageError as error:
            return f"StrictHostKeyChecking accept-new: {key.fingerprint} is accepted, but {error.message}"
    elif verdict is not Verdict.KNOWN:
        raise _host_key_error(verdict, key, hop, where)
    return None


def introduce(transport: paramiko.Transport, hop: Hop, timeouts: Timeouts, where: str) -> HostKey:
    """Agree on keys with a server, and say what key it has shown. Raises Unreachable."""
    try:
        prepare(transport, hop, timeouts)
        transport.start_client(timeout=timeouts.banner)
        shown = transport.host_key
        if shown is None:
            raise paramiko.SSHException("no answer in time")
    except (paramiko.SSHException, EOFError, OSError) as error:
        transport.sock.close()
        raise not_agreed(error, hop, where) from error
    return HostKey(shown.get_name(), shown.asbytes())


def prepare(transport: paramiko.Transport, hop: Hop, timeouts: Timeouts) -> None:
    """Have a transport ask for quick ciphers, and for a host key of a type that is known, first."""
    transport.daemon = True
    options = transport.get_security_options()
    options.ciphers = _first(_FAST_CIPHERS, options.ciphers)
    preferred = hostkeys.preferred(hop.key_name, hostkeys.lines(hop.known_hosts), hop.pin)
    options.key_types = _first(tuple(_algorithms(preferred)), options.key_types)
    transport.banner_timeout, transport.auth_timeout = timeouts.banner, timeouts.auth
    transport.channel_timeout = timeouts.channel


def not_agreed(error: Exception, hop: Hop, where: str) -> Unreachable:
    """A failure to agree on keys, in words."""
    if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
        return Unreachable(f"no common algorithms with {hop}: {words(error)}", where=where)
    return Busy(
        f"{hop} broke off before keys were agreed: {words(error)}",
        where=where,
        hint="the server may be starting, or refuse many connections at once (MaxStartups)",
    )


def tunnel(transport: paramiko.Transport, address: str, port: int, timeout: float, where: str) -> paramiko.Channel:
    """A channel to `address`:`port` as seen from the transport's host. Raises Unreachable."""
    try:
        return transport.open_channel("direct-tcpip", (address, port), ("127.0.0.1", 0), timeout=timeout)
    except paramiko.ChannelException as error:
        if error.code == 2:  # SSH_OPEN_CONNECT_FAILED, RFC 4254 5.1
            at = f"port {port} of the host" if address == "127.0.0.1" else f"{address}:{port}, as seen from there,"
            raise Unreachable(f"{at} takes no connection", where=where) from error
        if error.code == 1:  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
            raise Unreachable(
                f"the SSH server does not let us on to {address}:{port}",
                where=where,
                hint="see AllowTcpForwarding there",
            ) from error
        raise Unreachable(f"cannot reach {address}:{port} from there: {words(error)}", where=where) from error
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise Unreachable(f"lost the connection: {words(error)}", where=where) from error


def unreachable(error: OSError, hop: Hop, where: str) -> Unreachable:
    """A failure to connect, in words."""
    if isinstance(error, TimeoutError):
        return Unreachable(f"{hop}: no answer in time", where=where, hint="is the host up, and the port right?")
    if isinstance(error, ConnectionRefusedError):
        return Busy(f"{hop} refused the connection", where=where, hint="is sshd running, and the port right?")
    if isinstance(error, socket.gaierror):
        return Unreachable(
            f"the name {hop.address!r} could not be resolved: {error.strerror}",
            where=where,
            hint="check `address` of the host in the inventory",
        )
    return Unreachable(f"{hop}: {words(error)}", where=where)


def _host_key_error(verdict: Verdict, key: HostKey, hop: Hop, where: str) -> HostKeyError:
    shown = f"{key.type} {key.fingerprint}"
    host = where.split(" ")[0]
    if verdict is Verdict.UNKNOWN:
        return HostKeyError(
            f"the host key of {hop.key_name} is not known: {shown}",
            where=where,
            hint=f"compare it with the host's own (ssh-keygen -lf), then: opsctl inventory trust {host}",
        )
    if verdict is Verdict.REVOKED:
        return HostKeyError(f"the host key of {hop.key_name} is revoked: {shown}", where=where)
    source = "the pin in the inventory" if hop.pin else f"{', '.join(hop.known_hosts)}"
    remedy = "change `host_key` there" if hop.pin else f"opsctl inventory trust {host} --replace FINGERPRINT"
    return HostKeyError(
        f"the host key of {hop.key_name} HAS CHANGED: it shows {shown}, which is not what {source} says",
        where=where,
        hint="somebody may be in between. If the host was set up anew, and its own `ssh-keygen -lf` says the same: "
        + remedy,
    )


def _algorithms(types: list[str]) -> Iterator[str]:
    for name in types:
        if name == "ssh-rsa":  # the key type; the signature algorithms have names of their own
            yield from ("rsa-sha2-512", "rsa-sha2-256")
        yield name


def _first(wanted: Sequence[str], available: Sequence[str]) -> tuple[str, ...]:
    front = [w for w in wanted if w in available]
    return (*front, *(a for a in available if a not in front))


def pause(attempt: int, cancelled: Callable[[], bool]) -> None:
    """Wait before another try: 0.5 s, 1 s, 2 s, ... Returns early when cancelled."""
    deadline = time.monotonic() + 0.25 * 2**attempt
    while time.monotonic() < deadline and not cancelled():
        time.sleep(0.05)
