"""The server that a probe is about: at an address, or on a host, through its connection."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.server.api import Server


@dataclass(frozen=True, slots=True)
class Reached:
    """A server, and how to read a file beside it.

    name: what its results are kept under. simulated: SGLANG_SIMULATE_ACC_LEN of its process, where that can be read.
    host, remote: the host it was reached on; None with --url.
    """

    name: str
    server: Server
    read: Callable[[str], str | None]
    simulated: str = ""
    host: InventoryHost | None = None
    remote: RemoteHost | None = None


def _address(url: str) -> bool:
    import httpx

    try:
        return bool(re.match(r"https?://[^/\s]+", url)) and bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        return False


@contextmanager
def reached_at(
    url: str | None, inventory: str | None, pattern: str | None, port: int | None, key: str | None, at_once: int
) -> Iterator[Reached]:
    """The server at `url`, or on the host, reached through its connection."""
    from opsctl import http_client
    from opsctl.secret import Secret
    from opsctl.sglang.diagnosis import gather
    from opsctl.sglang.server.api import Server

    secret = Secret(key) if key else None
    if url is not None:
        if not _address(url):
            raise UsageError(
                f"not an address of a server: {url!r}", where="--url", hint="such as http://127.0.0.1:30000"
            )
        with http_client.client(url, connections=at_once + 1) as http:
            yield Reached(url.split("://")[-1], Server(http, secret), read_here)
        return
    from opsctl.cli.hosts import on_one, the_host
    from opsctl.errors import RemoteError
    from opsctl.wire.calls.files import filelook_read
    from opsctl.wire.calls.server import servers_find

    chosen = the_host(inventory, pattern)
    with on_one(chosen) as remote:
        running = gather.choose(remote.call(servers_find()).result, port, chosen.sglang.port)
        at = port or (gather.port_of(running) if running else None)
        if at is None:
            raise UsageError("no SGLang server runs there", where=chosen.name, hint="`opsctl server start` starts one")

        def read(path: str) -> str | None:
            try:
                return remote.call(filelook_read(path)).body.decode("utf-8", "replace")
            except RemoteError:
                return None

        with remote.http(at) as http:
            environment = (running["environment"] if running else None) or {}
            simulated = environment.get("SGLANG_SIMULATE_ACC_LEN", "")
            yield Reached(chosen.name, Server(http, secret or chosen.sglang.api_key), read, simulated, chosen, remote)


def read_here(path: str) -> str | None:
    place = Path(path)
    return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else None
