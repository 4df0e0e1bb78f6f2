"""Connecting before the command line is read, where it is known to be right: see opsctl.engine.known.

Reading the command line, the inventory and the playbook takes as much time as the round trips of a connection. Imports
only what connecting needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.engine import known
from opsctl.engine.connections import Connections
from opsctl.remote.spec import ConnectionSpec
from opsctl.secret_sources import know

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost


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
        first = known.first(self.words)
        if first is None or not first.hosts:
            return
        self.connections.at_once = first.at_once
        self.connections.begin(first.hosts)
        if any(spec.connection == "ssh" for spec in first.hosts):
            # Loaded before anything else: the connection waits for it, and imports side by side slow each other down.
            import opsctl.remote.ssh  # noqa: F401

    def remember(self, files: Iterable[str | Path], hosts: Iterable[ConnectionSpec], at_once: int) -> None:
        """Note what a command line that has turned out right begins with."""
        if self.words:
            known.remember(self.words, map(str, files), known.First(tuple(hosts), at_once))


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
    know([host.settings for host in hosts])
    begun, specs = take(), [host.connection() for host in hosts]
    begun.remember({host.source.file for host in hosts if host.source}, specs, at_once)
    begun.connections.at_once = at_once
    try:
        begun.connections.begin(specs)
        yield begun.connections
    finally:
        begun.connections.close()
