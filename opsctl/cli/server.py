"""`opsctl server`: the state of the SGLang servers of hosts."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.hosts import HostOption, InventoryOption
from opsctl.errors import Exit, OpsctlError
from opsctl.secret import Secret
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.agent.protocol import Call, Reply
    from opsctl.sglang.http import Server
    from opsctl.sglang.status import Status

app = typer.Typer(no_args_is_help=True, help="Status of servers.")


@app.callback()
def server() -> None:
    """Keeps `status` a command of its own."""


@app.command()
def status(
    host: HostOption = None,
    inventory: InventoryOption = None,
    here: Annotated[bool, typer.Option("--here", help="Look at this machine, without a connection.")] = False,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPSCTL_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """What runs where: process or unit, code, models, and whether it answers."""
    value = os.environ.get(api_key_env)
    key = Secret(value) if value else None
    found, code = _here(key) if here else _there(inventory, host, key)
    if as_json:
        typer.echo(json.dumps({name: [asdict(s) for s in servers] for name, servers in found.items()}))
        return code
    from opsctl.sglang.status import lines

    for name, servers in found.items():
        typer.secho(f"{name}: {len(servers) or 'no'} server{'' if len(servers) == 1 else 's'}", bold=True)
        for one in servers:
            for line in lines(one):
                typer.echo(f"  {printable(line)}")
    return code


def _here(key: Secret | None) -> tuple[dict[str, list[Status]], int]:
    import httpx

    from opsctl.sglang import gather

    def call(asked: Call) -> Reply:
        (answer,) = gather.here([asked])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def client(port: int) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30)

    return {"this machine": _servers(call, client, key)}, Exit.DONE


def _there(inventory: str | None, pattern: str | None, key: Secret | None) -> tuple[dict[str, list[Status]], int]:
    from opsctl.cli.hosts import chosen, on_each, tell_errors

    done = on_each(
        chosen(inventory, pattern), lambda remote, host: _servers(remote.call, remote.http, key or host.sglang.api_key)
    )
    return {d.host.name: d.value for d in done if d.value is not None}, tell_errors(done)


def _servers(call: Callable[[Call], Reply], client: Callable[[int], Any], key: Secret | None) -> list[Status]:
    from opsctl.agent.protocol import Call
    from opsctl.sglang import gather
    from opsctl.sglang.http import Server
    from opsctl.sglang.status import status as judge

    found = []
    for process in call(Call("servers.find", {"locate": True})).result:
        with client(gather.port_of(process)) as http:
            info = _info(Server(http, key))
        found.append(judge(process, info, process["now"]))
    return found


def _info(server: Server) -> Any:
    try:
        return server.info(wake=False)
    except OpsctlError:
        return None  # it is starting, or hung, or keeps strangers out: the state says that it does not answer
