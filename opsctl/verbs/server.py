"""The SGLang servers of hosts: their state, and waiting until one answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opsctl.errors import AuthFailed, Lost, RemoteError, Unreachable
from opsctl.text import one_line
from opsctl.verbs.frontend import SILENT, Done, Frontend
from opsctl.verbs.hosts import on_each

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

_MARGIN = 60.0  # seconds beyond a wait's own limit until its answer must be here


def status_here(key: str | None) -> list[Status]:
    """The servers of this machine."""
    from opsctl import http_client, this_machine

    def client(port: int) -> httpx.Client:
        return http_client.client(f"http://127.0.0.1:{port}")

    return _servers(this_machine.call, client, key, None)


def status(
    hosts: Sequence[InventoryHost], key: str | None = None, front: Frontend = SILENT
) -> list[Done[list[Status]]]:
    """The servers of each host, its own one first, then others in the order of their start.

    key: API key, where the inventory does not name it.
    """

    def look(remote: RemoteHost, host: InventoryHost) -> list[Status]:
        api_key = host.sglang.api_key
        return _servers(remote.call, remote.http, key or (api_key.reveal() if api_key else None), host.sglang.port)

    return on_each(hosts, look, front)


def _servers(
    call: Callable[[Call[Any]], Reply[Any]], client: Callable[[int], Any], key: str | None, usual: int | None
) -> list[Status]:
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


def wait(
    hosts: Sequence[InventoryHost], port: int | None, timeout: float, stall: float, front: Frontend = SILENT
) -> list[Done[Ready]]:
    """Wait until each host's server generates a token, saying each phase and how far it is. Changes nothing.

    Args:
        port: where it is not the one of the inventory.
        timeout: seconds to wait at most.
        stall: seconds without growth of log or GPU memory after which it is given up.
    """

    def one(remote: RemoteHost, host: InventoryHost) -> Ready:
        told = ""

        def tell(data: Any, body: bytes) -> None:
            nonlocal told
            if data["phase"] != told:
                told = data["phase"]
                front.say(one_line(f"{host.name}: {data['text']}", 150))
            else:
                front.progress(host.name, data["text"], None)

        return _wait(remote, host, port or host.sglang.port, timeout, stall, tell)

    return on_each(hosts, one, front)


def _wait(
    remote: RemoteHost,
    host: InventoryHost,
    port: int,
    timeout: float,
    stall: float,
    tell: Callable[[Any, bytes], None],
) -> Ready:
    """Raises RemoteError: what it died of."""
    from opsctl.sglang.diagnosis import gather
    from opsctl.wire.calls.server import ready_wait, servers_find

    process = gather.choose(remote.call(servers_find()).result, port)
    if process is None:
        raise RemoteError(f"no SGLang server runs on port {port}", where=host.name, hint=_why_none(remote, host))
    log = process["log"] or host.sglang.log
    # What it said since its start lies in the end of its log; an earlier start in there is passed over.
    offset = max(0, process["log_size"] - (16 << 20)) if log else None
    alive: Alive = {"pid": process["pid"], "start": process["start"]}
    call = ready_wait(port, log=log, offset=offset, timeout=timeout, stall=stall, alive=alive)
    return remote.call(call, timeout=timeout + _MARGIN, on_progress=tell).result


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
