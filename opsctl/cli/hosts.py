"""What every command that works on hosts has in common: its options, and doing something on many hosts at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import typer

from opsctl.errors import Exit, OpsctlError, UsageError
from opsctl.text import few, printable

if TYPE_CHECKING:
    from concurrent.futures import Future

    from opsctl.engine.connections import Connected
    from opsctl.inventory import InventoryHost
    from opsctl.remote.agent_client import Pending
    from opsctl.remote.host import RemoteHost
    from opsctl.wire.protocol import Call

T = TypeVar("T")
_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What came of the work on one host: a value, or an error."""

    host: InventoryHost
    value: T | None = None
    error: OpsctlError | None = None


def chosen(inventory: str | None, pattern: str | None, default: str = "all") -> list[InventoryHost]:
    """The hosts that the options name. Raises UsageError."""
    from opsctl.inventory import load

    return load(inventory).select(default if pattern is None else pattern)


def the_host(inventory: str | None, pattern: str | None) -> InventoryHost:
    """The one host that the options name. Raises UsageError if they name several."""
    hosts = chosen(inventory, pattern)
    if len(hosts) > 1:
        names = few([host.name for host in hosts])
        raise UsageError(f"one host is needed, and {len(hosts)} are meant: {names}", hint="choose one with --host NAME")
    return hosts[0]


@contextmanager
def on_one(host: InventoryHost) -> Iterator[RemoteHost]:
    """The connection to one host. Raises Unreachable, HostKeyError, AuthFailed, UsageError."""
    from opsctl.cli import early

    with early.reaching([host]) as connections:
        remote = connections.of(host.connection()).result().remote
        remote.tell_secrets(host.secrets())
        _tell_left_behind(remote, remote.send([_left_behind()])[0])
        yield remote


def on_each(
    hosts: Sequence[InventoryHost],
    work: Callable[[RemoteHost, InventoryHost], T],
    *,
    at_once: int = _AT_ONCE,
    past: bool = True,
) -> list[Done[T]]:
    """Connect to every host and do `work` there, side by side. What goes wrong on one does not disturb the others.

    past: say first what earlier runs have left there; it is asked for in the same round trip as what `work` asks.
    """
    from concurrent.futures import ThreadPoolExecutor

    from opsctl.cli import early

    def one(host: InventoryHost, connecting: Future[Connected]) -> Done[T]:
        try:
            with connecting.result().remote as remote:
                remote.tell_secrets(host.secrets())
                asked = remote.send([_left_behind()])[0] if past else None
                value = work(remote, host)
                if asked:
                    _tell_left_behind(remote, asked)
                return Done(host, value)
        except OpsctlError as error:
            error.where = error.where or host.name
            return Done(host, error=error)

    with early.reaching(hosts, at_once) as connections:
        under_way = [connections.of(host.connection()) for host in hosts]
        if len(hosts) == 1:
            return [one(hosts[0], under_way[0])]
        with ThreadPoolExecutor(max_workers=min(at_once, len(hosts)), thread_name_prefix="host") as pool:
            return list(pool.map(one, hosts, under_way))


def _left_behind() -> Call[Any]:
    from opsctl.wire.calls import core

    return core.history_list(10)


def _tell_left_behind(remote: RemoteHost, asked: Pending) -> None:
    """Say what earlier runs have left on a host that somebody has to see to. What cannot be told spoils no command."""
    from opsctl.engine.past_runs import left_behind, past_runs

    with suppress(OpsctlError, LookupError, TypeError, ValueError):
        for message, hint in left_behind(past_runs(asked.wait(60))):
            typer.echo(printable(f"{remote.name}: warning: {message}\n    → {hint}"), err=True)


def tell_errors(done: Sequence[Done[T]]) -> Exit:
    """Print the errors, one per host, on stderr. The exit code is that of the first one, else DONE."""
    from opsctl.cli.main import tell

    errors = [one.error for one in done if one.error]
    for error in errors:
        tell(error)
    return errors[0].exit_code if errors else Exit.DONE
