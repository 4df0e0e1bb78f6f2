"""Looking at the servers of hosts: their state, and waiting until one answers."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from opsctl.errors import AuthFailed, Exit, Lost, RemoteError, Unreachable
from opsctl.text import one_line

if TYPE_CHECKING:
    import httpx

    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.server.api import Server
    from opsctl.sglang.server.served import ServerInfo
    from opsctl.sglang.server.status import Status
    from opsctl.wire.calls.process import Alive
    from opsctl.wire.calls.server import Ready
    from opsctl.wire.protocol import Call, Reply

MARGIN = 60.0  # seconds beyond a wait's own limit until its answer must be here


def here(key: str | None) -> tuple[dict[str, list[Status]], Exit]:
    """The servers of this machine."""
    from opsctl import http_client
    from opsctl.sglang.diagnosis import gather

    def call(asked: Call[Any]) -> Reply[Any]:
        (answer,) = gather.here([asked])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(port: int) -> httpx.Client:
        return http_client.client(f"http://127.0.0.1:{port}")

    return {"this machine": _servers(call, client, key, None)}, Exit.DONE


def there(inventory: str | None, pattern: str | None, key: str | None) -> tuple[dict[str, list[Status]], Exit]:
    """The servers of hosts, by host."""
    from opsctl.cli.hosts import chosen, on_each, tell_errors

    def look(remote: RemoteHost, host: InventoryHost) -> list[Status]:
        api_key = host.sglang.api_key
        return _servers(remote.call, remote.http, key or (api_key.reveal() if api_key else None), host.sglang.port)

    done = on_each(chosen(inventory, pattern), look)
    return {d.host.name: d.value for d in done if d.value is not None}, tell_errors(done)


def _servers(
    call: Callable[[Call[Any]], Reply[Any]], client: Callable[[int], Any], key: str | None, usual: int | None
) -> list[Status]:
    """The host's own server first, then others in the order of their start."""
    from opsctl.secret import Secret
    from opsctl.sglang.diagnosis import gather
    from opsctl.sglang.server.api import Server
    from opsctl.sglang.server.status import status as judge
    from opsctl.wire.calls.gpu import vram_processes
    from opsctl.wire.calls.server import servers_find

    processes = call(servers_find(locate=True)).result
    memory = call(vram_processes()).result if processes else None
    found = []
    for process in processes:
        with client(gather.port_of(process)) as http:
            server = Server(http, Secret(key) if key else None)
            info, refusal = _info(server)
            ready = info is not None and server.generates()
        found.append(judge(process, info, refusal=refusal, ready=ready, memory=memory, usual_port=usual))
    return sorted(found, key=lambda s: not s.ours)


def _info(server: Server) -> tuple[ServerInfo | None, str | None]:
    """What the server says of itself, or why it says nothing; None for both where it is starting, or hung."""
    try:
        return server.info(wake=False), None
    except Lost:
        raise
    except AuthFailed as error:
        return None, error.message
    except Unreachable:
        return None, None
    except RemoteError as error:
        return None, None if error.kind in ("timeout", "lost") else error.message


def wait(remote: RemoteHost, host: InventoryHost, port: int, timeout: float, stall: float) -> Ready:
    """Wait until the host's server generates a token, telling how far it is. Raises RemoteError: what it died of."""
    from opsctl.sglang.diagnosis import gather
    from opsctl.wire.calls.server import ready_wait, servers_find

    servers = remote.call(servers_find()).result
    process = gather.choose(servers, port)
    if process is None:
        raise RemoteError(f"no SGLang server runs on port {port}", where=host.name, hint=_why_none(remote, host))
    log = process["log"] or host.sglang.log
    # What it said since its start lies in the end of its log; an earlier start in there is passed over.
    offset = max(0, process["log_size"] - (16 << 20)) if log else None
    alive: Alive = {"pid": process["pid"], "start": process["start"]}
    call = ready_wait(port, log=log, offset=offset, timeout=timeout, stall=stall, alive=alive)
    result: Ready = remote.call(call, timeout=timeout + MARGIN, on_progress=_telling(host.name)).result
    return result


def _why_none(remote: RemoteHost, host: InventoryHost) -> str:
    """What the last one died of, as its log tells, else how to start one."""
    from opsctl.sglang.logs import timeline
    from opsctl.wire.calls.logs import serverlog_scan

    start = "`opsctl server start` starts it"
    if host.sglang.log is None:
        return start
    try:
        scan = remote.call(serverlog_scan(host.sglang.log)).result
    except RemoteError:
        return start
    error = timeline.build(scan, current=True).first_error
    return f"its log ends with: {one_line(error.message)}" if error else start


def _telling(name: str) -> Callable[[Any, bytes], None]:
    """Progress on stderr: one line that is rewritten on a terminal, else a line for each phase."""
    live = sys.stderr.isatty()
    told: list[str] = []

    def tell(data: Any, body: bytes) -> None:
        text = one_line(f"{name}: {data['text']}", 150)
        if live:
            typer.echo(f"\r\x1b[K{text}", err=True, nl=False)
        elif told[-1:] != [data["phase"]]:
            told.append(data["phase"])
            typer.echo(text, err=True)

    return tell
