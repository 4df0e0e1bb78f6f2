"""Choosing hosts of the inventory and doing something on each, over connections that may have begun already.

Connecting can begin before the command line is read, where it is known to be right: see `opsctl.engine.connections`.
Reading it, the inventory and the playbook takes as much time as the round trips of a connection. Imports only what
connecting needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from opsctl.engine.connections import Connections, First, first, remember
from opsctl.errors import OpsctlError, UsageError
from opsctl.remote.spec import ConnectionSpec
from opsctl.secret_sources import know
from opsctl.text import few
from opsctl.verbs.frontend import SILENT, Done, Frontend

if TYPE_CHECKING:
    from concurrent.futures import Future

    from opsctl.engine.connections import Connected
    from opsctl.inventory import InventoryHost
    from opsctl.remote.agent_client import Pending
    from opsctl.remote.host import RemoteHost
    from opsctl.wire.protocol import Call

T = TypeVar("T")
_AT_ONCE = 32


def choose(inventory: str | None, pattern: str | None, default: str = "all") -> list[InventoryHost]:
    """The hosts that a pattern names. Raises UsageError."""
    from opsctl.inventory import load

    return load(inventory).select(default if pattern is None else pattern)


def choose_one(inventory: str | None, pattern: str | None) -> InventoryHost:
    """The one host that a pattern names. Raises UsageError if it names several."""
    hosts = choose(inventory, pattern)
    if len(hosts) > 1:
        names = few([host.name for host in hosts])
        raise UsageError(f"one host is needed, and {len(hosts)} are meant: {names}", hint="choose one with --host NAME")
    return hosts[0]


@contextmanager
def on_one(host: InventoryHost, front: Frontend = SILENT) -> Iterator[RemoteHost]:
    """The connection to one host. Raises Unreachable, HostKeyError, AuthFailed, UsageError."""
    with reaching([host]) as connections:
        remote = connections.of(host.connection()).result().remote
        remote.tell_secrets(host.secrets())
        _warn_left_behind(front, remote, remote.send([_left_behind()])[0])
        yield remote


def on_each(
    hosts: Sequence[InventoryHost],
    work: Callable[[RemoteHost, InventoryHost], T],
    front: Frontend = SILENT,
    *,
    at_once: int = _AT_ONCE,
    past: bool = True,
) -> list[Done[T]]:
    """Connect to every host and do `work` there, side by side. What goes wrong on one does not disturb the others.

    past: warn of what earlier runs have left there; it is asked for in the same round trip as what `work` asks.
    """
    from concurrent.futures import ThreadPoolExecutor

    def one(host: InventoryHost, connecting: Future[Connected]) -> Done[T]:
        try:
            with connecting.result().remote as remote:
                remote.tell_secrets(host.secrets())
                asked = remote.send([_left_behind()])[0] if past else None
                value = work(remote, host)
                if asked:
                    _warn_left_behind(front, remote, asked)
                return Done(host, value)
        except OpsctlError as error:
            error.where = error.where or host.name
            return Done(host, error=error)

    with reaching(hosts, at_once) as connections:
        under_way = [connections.of(host.connection()) for host in hosts]
        if len(hosts) == 1:
            return [one(hosts[0], under_way[0])]
        with ThreadPoolExecutor(max_workers=min(at_once, len(hosts)), thread_name_prefix="host") as pool:
            return list(pool.map(one, hosts, under_way))


def _left_behind() -> Call[Any]:
    from opsctl.wire.calls import core

    return core.history_list(10)


def _warn_left_behind(front: Frontend, remote: RemoteHost, asked: Pending) -> None:
    """Warn of what earlier runs have left on a host that somebody has to see to. It spoils no command."""
    from opsctl.engine.past_runs import left_behind, past_runs

    with suppress(OpsctlError, LookupError, TypeError, ValueError):
        for message, hint in left_behind(past_runs(asked.wait(60))):
            front.say(f"{remote.name}: warning: {message}\n    → {hint}")


@dataclass(slots=True)
class Early:
    """The command line that is carried out, and the connections that were begun for it."""

    words: Sequence[str] = ()
    connections: Connections = field(default_factory=Connections)
    _looked: bool = False

    def connect(self) -> None:
        """Begin to connect to the hosts that the words began with before, if nothing has changed since."""
        if self._looked or not self.words:
            return
        self._looked = True
        begins = first(self.words)
        if begins is None or not begins.hosts:
            return
        self.connections.at_once = begins.at_once
        self.connections.begin(begins.hosts)
        if any(spec.connection == "ssh" for spec in begins.hosts):
            # Loaded before anything else: the connection waits for it, and imports side by side slow each other down.
            import opsctl.remote.ssh  # noqa: F401

    def remember(self, files: Iterable[str | Path], hosts: Iterable[ConnectionSpec], at_once: int) -> None:
        """Note what a command line that has turned out right begins with."""
        if self.words:
            remember(self.words, map(str, files), First(tuple(hosts), at_once))


_early = Early()


def begin(words: Sequence[str]) -> None:
    """Begin what `words` are known to begin with. `deploy` has more to check than that, and connects only then."""
    global _early
    _early = Early(words)
    if words[:1] != ["deploy"]:
        _early.connect()


def take() -> Early:
    """What was begun, for the caller to use and to close; it is given out once."""
    global _early
    taken, _early = _early, Early()
    return taken


@contextmanager
def reaching(hosts: Sequence[InventoryHost], at_once: int = 1) -> Iterator[Connections]:
    """Connections to `hosts`, all begun, for a command line that has turned out right."""
    from opsctl.inventory import demand_reachable

    demand_reachable(hosts)
    know([host.settings for host in hosts])
    begun, specs = take(), [host.connection() for host in hosts]
    begun.remember({file for host in hosts if host.source for file in host.source.files}, specs, at_once)
    begun.connections.at_once = at_once
    try:
        begun.connections.begin(specs)
        yield begun.connections
    finally:
        begun.connections.close()
