"""Which server's logs to collect: what the inventory says, and what runs on the host."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import Any

from opsctl.errors import RemoteError
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted
from opsctl.inventory.model import SglangSettings
from opsctl.sglang.diagnosis import gather
from opsctl.sglang.logs.log_parts import Server
from opsctl.wire.calls.logs import logfiles_look
from opsctl.wire.calls.server import ServerProcess, servers_find
from opsctl.wire.protocol import Call, Reply

_DESCRIBES = ("log", "unit", "container", "launch", "checkout")  # settings of a server of the host's own


def survey(
    ask: Callable[[Call[Any]], Reply[Any]], settings: SglangSettings, wanted: Wanted, *, source: bool = False
) -> Server:
    """The server on a host, as far as it can be told. Changes nothing.

    settings: the host's `sglang` section. source: also find out where its code is, where they do not say so.
    """
    process = _running(ask(servers_find(locate=source)).result, settings)
    unit, user_unit, container = settings.unit, settings.user_unit, settings.container
    if process and not unit and not settings.launch and not process["container"]:
        unit, user_unit = process["unit"], process["user_unit"]
    log = (process and process["log"]) or settings.log
    return Server(
        unit=unit,
        user_unit=user_unit,
        container=container or (process and process["container"]) or None,
        record=f"sglang-{settings.port}" if not unit and not container else None,
        logs=files(ask, log) if log else (),
        pids=(process["pid"],) if process else (),
        port=gather.port_of(process) if process else settings.port,
        # It is run to list its packages: that of a server of somebody else only if the inventory names it.
        python=(process["python"] if process and process["own"] else None) or settings.interpreter,
        source=settings.checkout or (process and _root(process.get("package"))) or None,
        health=gathered.ask(wanted).args,
    )


def files(ask: Callable[[Call[Any]], Reply[Any]], log: str) -> Sequence[str]:
    """The files of a log, oldest first; the log's own name where nothing is found, so that its absence is told."""
    try:
        found = [file["path"] for file in ask(logfiles_look(log)).result["files"]]
    except RemoteError:
        found = []
    return found or [log]


def _running(servers: Sequence[ServerProcess], settings: SglangSettings) -> ServerProcess | None:
    """The server that is meant: the one on its port. Another one only where the inventory says nothing of a server."""
    expected = next((s for s in servers if gather.port_of(s) == settings.port), None)
    if expected is None and servers and not any(getattr(settings, key) for key in _DESCRIBES):
        return servers[-1]  # the newest is the likeliest to be asked about
    return expected


def _root(package: str | None) -> str | None:
    """The folder above `python/sglang` of a checkout."""
    return posixpath.dirname(posixpath.dirname(package)) if package else None
