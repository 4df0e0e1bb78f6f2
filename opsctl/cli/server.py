"""`opsctl server`: the SGLang servers of hosts: what runs, start, stop, restart, wait."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.options import Asked, HostOption, InventoryOption, duration, runs
from opsctl.cli.playing import play
from opsctl.cli.terminal import TERMINAL, clear_progress, tell_errors
from opsctl.errors import Exit
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.sglang.server.status import Status

app = typer.Typer(no_args_is_help=True, help="The SGLang servers of hosts: status, start, stop, restart, wait.")


@app.command()
def status(
    host: HostOption = None,
    inventory: InventoryOption = None,
    here: Annotated[bool, typer.Option("--here", help="Look at this machine, without a connection.")] = False,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPSCTL_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """What runs where: process or unit, code, models, flags, GPU memory, and whether it generates tokens."""
    from opsctl.verbs import server
    from opsctl.verbs.hosts import choose

    key, code = os.environ.get(api_key_env), Exit.DONE
    if here:
        found = {"this machine": server.status_here(key)}
    else:
        done = server.status(choose(inventory, host), key, TERMINAL)
        found, code = {d.host.name: d.value for d in done if d.value is not None}, tell_errors(done)
    if as_json:
        typer.echo(json.dumps({name: [asdict(s) for s in servers] for name, servers in found.items()}))
        return code
    for name, servers in found.items():
        _show(name, servers)
    return code


def _show(name: str, servers: list[Status]) -> None:
    from opsctl.sglang.server.status import line, lines

    ours = [s for s in servers if s.ours]
    typer.secho(name if servers else f"{name}: no server", bold=True)
    if servers and not ours and name != "this machine":
        typer.echo("  the server that the inventory describes does not run")
    for one in ours or servers:
        for text in lines(one):
            typer.echo(f"  {printable(text)}")
    others = [s for s in servers if not s.ours] if ours else []
    if others:
        typer.echo("  also on this machine (--json tells more):")
    for one in others:
        typer.echo(f"    {printable(line(one))}")


@app.command()
@runs("start-server")
def start(asked: Asked) -> int:
    """Start the server as the inventory describes it, and wait for its first token (playbook start-server)."""
    return play(asked.options(), asked.showing)


@app.command()
@runs("restart-server")
def restart(asked: Asked) -> int:
    """Restart the server; one that does not come up gives way to the one before (playbook restart-server)."""
    return play(asked.options(), asked.showing)


@app.command()
@runs("stop-server")
def stop(asked: Asked) -> int:
    """Let requests finish, stop the server, wait until its GPU memory is free (playbook stop-server)."""
    return play(asked.options(), asked.showing)


@app.command()
def wait(
    host: HostOption = None,
    inventory: InventoryOption = None,
    port: Annotated[int | None, typer.Option(help="Its port, where it is not the one of the inventory.")] = None,
    timeout: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait.")] = "20m",
    stall: Annotated[
        str, typer.Option(metavar="DURATION", help="Give up when neither log nor GPU memory grows for this time.")
    ] = "3m",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Wait until the server generates a token, showing how far it is; change nothing."""
    from opsctl.verbs import server
    from opsctl.verbs.hosts import choose

    limit, still = duration("--timeout", timeout), duration("--stall", stall)
    done = server.wait(choose(inventory, host), port, limit, still, TERMINAL)
    clear_progress()
    ready = {d.host.name: d.value for d in done if d.value is not None}
    if as_json:
        typer.echo(json.dumps(ready))
    else:
        for name, found in ready.items():
            typer.echo(f"{name}: ready after {found['seconds']:g} s")
    return tell_errors(done)
