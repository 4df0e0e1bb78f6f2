"""A connected host: what the engine and the modules talk to."""

from __future__ import annotations

import shlex
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError, Unreachable, UsageError
from opsctl.remote import become, bundle, heartbeat, ssh_config, tcp
from opsctl.remote.agent_client import AgentClient, Pending
from opsctl.remote.local import LocalStream
from opsctl.remote.spec import ConnectionSpec
from opsctl.remote.stream import Stream
from opsctl.wire import output
from opsctl.wire.host import OnProgress, RawResult
from opsctl.wire.protocol import Call, R, Reply

if TYPE_CHECKING:
    import fabric
    import httpx

    from opsctl.remote.hostkeys import HostKey
    from opsctl.remote.parts import Sending
    from opsctl.remote.ssh import Link


class RemoteHost:
    """One host, one connection, one agent per user. Made by `connect`; safe to use from several threads.

    Attributes:
        spec: how it was reached.
        warnings: what of the OpenSSH configuration is not honoured, and keys that are not kept.
    """

    def __init__(self, spec: ConnectionSpec, link: Link | None, warnings: tuple[str, ...] = ()) -> None:
        self.spec, self.warnings = spec, warnings
        self._link = link
        self._agents: dict[str | None, AgentClient] = {}
        self._secrets: set[str] = set()
        self._starting = threading.Lock()

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def fingerprint(self) -> str | None:
        """Of the host key, None without SSH."""
        key = self.host_key
        return key.fingerprint if key else None

    @property
    def host_key(self) -> HostKey | None:
        return self._link.host_key if self._link else None

    @property
    def alive(self) -> bool:
        """Whether the agent can still be spoken to, as far as is known."""
        return all(agent.alive for agent in self._agents.values())

    def prepare(self) -> None:
        """Start the agent if it is not there yet. Raises Unreachable, AuthFailed."""
        self.agent()

    def agent(self) -> AgentClient:
        """The agent that calls go to; never closed by whoever asks for it. Raises Unreachable, AuthFailed."""
        return self._agent(self.spec.become)

    def tell_secrets(self, values: Iterable[str]) -> None:
        """Have the agents mask these values in all that they write from now on. They keep them in memory only."""
        with self._starting:
            new = set(values) - self._secrets
            self._secrets |= new
            for agent in self._agents.values():
                agent.tell_secrets(new)

    def call(self, call: Call[R], *, timeout: float | None = None, on_progress: OnProgress | None = None) -> Reply[R]:
        """One call, one round trip. Raises RemoteError, Locked, Unreachable."""
        return self.send([call], on_progress=on_progress)[0].wait(timeout)

    def batch(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any]]:
        """Independent calls, one round trip, run side by side. Raises the first error once all have ended."""
        replies = self.outcomes(calls, timeout=timeout)
        for reply in replies:
            if isinstance(reply, OpsctlError):
                raise reply
        return [reply for reply in replies if isinstance(reply, Reply)]

    def outcomes(self, calls: Sequence[Call[Any]], *, timeout: float | None = None) -> list[Reply[Any] | OpsctlError]:
        """As `batch`, with an error in the place of each call that failed. Raises Unreachable."""
        found: list[Reply[Any] | OpsctlError] = []
        for pending in self.send(calls):
            try:
                found.append(pending.wait(timeout))
            except Unreachable:
                raise
            except OpsctlError as error:
                found.append(error)
        return found

    def send(
        self,
        calls: Sequence[Call[Any]],
        *,
        after: Iterable[Pending] = (),
        on_progress: OnProgress | None = None,
    ) -> list[Pending]:
        """Send calls in one write without waiting; they start once those in `after` have ended."""
        return self.agent().send(calls, after=after, on_progress=on_progress)

    def as_user(self, user: str | None) -> RemoteHost:
        """The same connection with an agent of another user, started at the first call. Close the original only."""
        if user == self.spec.become:
            return self
        return _Alias(self, user)

    def raw(
        self, command: str, *, timeout: float = 60.0, stdin: bytes = b"", check: Callable[[], None] | None = None
    ) -> RawResult:
        """A shell command without the agent, as the login user. Raises Unreachable, TimeoutError.

        Of its output the first and the last half of output.KEEP bytes are kept. `check` is called now and then, and
        ends it by raising.
        """
        stream = self.stream(command)
        deadline = time.monotonic() + timeout
        out = output.Output(output.KEEP)
        try:
            if stdin:
                stream.send(stdin, timeout)
            stream.end_input()
            while data := _received(stream, deadline, check):
                out.add(data)
            status = stream.status(max(0.1, deadline - time.monotonic()))
            return RawResult(status, out.whole(), stream.stderr())
        except BaseException:
            stream.abandon()
            raise
        finally:
            stream.close()

    def http(self, port: int, check: Callable[[], None] | None = None) -> httpx.Client:
        """A client whose requests reach 127.0.0.1:`port` of the host through the connection.

        check: called now and then while one waits, which it ends by raising.
        """
        from opsctl.remote.http import client

        return client(self._link, port, self.name, check)

    def sending(self, size: int) -> Sending:
        """Streams for about `size` bytes of files, which begin to connect at once."""
        from opsctl.remote.parts import Sending, is_far

        return Sending(self, size, far=bool(size) and is_far(self))

    def cleaning_up(self) -> RemoteHost:
        return self

    def check(self) -> None:
        """Nothing limits it."""

    def fabric(self, timeout: float | None = None) -> fabric.Connection:
        """A fabric connection to the host, as the login user, over this connection. Closing it leaves this one open.

        Args:
            timeout: seconds that each of its commands may take.

        Raises UsageError where the host is this machine itself, Unreachable.
        """
        if self._link is None:
            raise UsageError(
                f"{self.name} is this machine, which fabric does not connect to",
                hint="say `connection: ssh`, or use invoke's own Context for it",
            )
        return self._link.fabric(self.name, self.spec.become_password, timeout)

    def stream(self, command: str) -> Stream:
        """Start a command as the login user."""
        if self._link is None:
            return LocalStream(command)
        return self._link.run(command, self.spec.timeouts.channel, self.name)

    def further_agent(self) -> AgentClient:
        """Another agent of the same user, on its own channel; the caller closes it. Raises Unreachable, AuthFailed."""
        return self._start_agent(self.spec.become)

    def apart(self, name: str) -> Callable[[], AgentClient] | None:
        """As `further_agent`, on a connection of its own by the system's `ssh`; None where that cannot be.

        Agents that are started under one name, once the first of them has answered, share a connection.
        """
        return self._apart(self.spec.become, name)

    def _apart(self, user: str | None, name: str) -> Callable[[], AgentClient] | None:
        with self._starting:
            connect = self._link.openssh(name) if self._link else None
        if connect is None:
            return None
        return lambda: self._start_agent(
            user, lambda command: LocalStream(f"{connect} {shlex.quote(command)}", much=True)
        )

    def _start_agent(self, user: str | None, start: Callable[[str], Stream] | None = None) -> AgentClient:
        boot = bundle.boot({"state": self.spec.state_dir, "lease": heartbeat.LEASE})
        password = self.spec.become_password if user is not None else None
        word = become.nonce() if password else None
        stream = (start or self.stream)(become.command(bundle.command(len(boot), self.spec.python), user, word))
        try:
            if password and word:
                become.answer(stream, word, password, str(user), self.name, self.spec.timeouts.sudo)
            stream.send(boot, self.spec.timeouts.channel)
        except OSError as error:
            raised = error if isinstance(error, OpsctlError) else become.refused(stream, user, self.name)
            stream.close()
            raise raised from error
        agent = AgentClient(stream, self.name, user=user)
        agent.tell_secrets(self._secrets)
        return agent

    @property
    def stuck(self) -> float:
        """Seconds for which the connection has taken nothing of what is to be written; 0.0 where nothing is."""
        return self._link.socket.stuck if self._link else 0.0

    def break_off(self) -> None:
        """End a connection that is stuck; it is still to be closed."""
        if self._link:
            self._link.break_off()

    def close(self) -> None:
        """End the agents (they kill what they started and release their locks) and the connection."""
        for agent in list(self._agents.values()):
            agent.close()
        if self._link:
            self._link.close()

    def __enter__(self) -> RemoteHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _agent(self, user: str | None) -> AgentClient:
        with self._starting:
            agent = self._agents.get(user)
            if agent is None:
                agent = self._agents[user] = self._start_agent(user)
            return agent


def _received(stream: Stream, deadline: float, check: Callable[[], None] | None) -> bytes:
    """What has come of a command's output. Raises TimeoutError, and what `check` raises."""
    while True:
        left = max(0.0, deadline - time.monotonic())
        if check is not None:
            check()
        try:
            return stream.receive(left if check is None else min(left, 1.0))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise


class _Alias(RemoteHost):
    """A host seen through the agent of another user."""

    def __init__(self, host: RemoteHost, user: str | None) -> None:
        self._host, self._user = host, user
        self.spec, self.warnings, self._link = host.spec, host.warnings, host._link

    def _agent(self, user: str | None) -> AgentClient:
        return self._host._agent(self._user)

    def tell_secrets(self, values: Iterable[str]) -> None:
        self._host.tell_secrets(values)

    def further_agent(self) -> AgentClient:
        return self._host._start_agent(self._user)

    def apart(self, name: str) -> Callable[[], AgentClient] | None:
        return self._host._apart(self._user, name)

    @property
    def alive(self) -> bool:
        return self._host.alive

    def as_user(self, user: str | None) -> RemoteHost:
        return self._host.as_user(user)

    def close(self) -> None:
        pass


def _never() -> bool:
    return False


def connect(spec: ConnectionSpec, cancelled: Callable[[], bool] = _never) -> RemoteHost:
    """Connect and start the agent, without waiting for it to speak: what is wrong with it is told by the first call.

    Failures that pass (refused while booting, too many connections at once) are tried again, `spec.attempts` times in
    all; those that do not (name, key, login) are not. Raises Unreachable, HostKeyError, AuthFailed, UsageError.
    """
    if spec.connection == "local":
        host = RemoteHost(spec, None)
    else:
        route = ssh_config.route(spec)
        link = open_link(route.hops, spec, cancelled)
        host = RemoteHost(spec, link, (*route.warnings, *link.notes))
    try:
        host.prepare()
    except BaseException:
        host.close()
        raise
    return host


def open_link(hops: tuple[ssh_config.Hop, ...], spec: ConnectionSpec, cancelled: Callable[[], bool] = _never) -> Link:
    """Connect through `hops`, trying again what passes. Raises Unreachable, HostKeyError, AuthFailed."""
    attempt = 0
    while True:
        dialling = _dial(hops[0])
        from opsctl.remote import ssh  # loads paramiko while the first packets travel

        link = ssh.Link(spec.login)
        try:
            link.open(hops, dialling, spec.timeouts, spec.name)
        except ssh.Busy:
            attempt += 1
            if attempt >= spec.attempts or cancelled():
                raise
            ssh.pause(attempt, cancelled)
        else:
            return link


def _dial(hop: ssh_config.Hop) -> tcp.Dialling | None:
    if hop.proxy_command:
        return None
    try:
        return tcp.dial(hop.address, hop.port)
    except OSError:
        return None  # said with everything else that can go wrong, once there are words for it
