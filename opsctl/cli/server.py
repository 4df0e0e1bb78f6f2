"""`opsctl server`: the SGLang servers of hosts: what runs, start, stop, restart, wait."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli import asked
from opsctl.cli.hosts import HostOption, InventoryOption
from opsctl.cli.playing import (
    AdoptOption,
    CheckOption,
    DiffOption,
    LockWaitOption,
    OutputOption,
    Showing,
    VerboseOption,
    YesOption,
    play,
)
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.sglang.server.status import Status

app = typer.Typer(no_args_is_help=True, help="The SGLang servers of hosts: status, start, stop, restart, wait.")

ReadyOption = Annotated[
    str | None, typer.Option("--ready-timeout", metavar="DURATION", help="Longest time from start to first token.")
]


@app.command()
def status(
    host: HostOption = None,
    inventory: InventoryOption = None,
    here: Annotated[bool, typer.Option("--here", help="Look at this machine, without a connection.")] = False,
    api_key_env: Annotated[str, typer.Option(help="Environment variable with the API key.")] = "OPSCTL_API_KEY",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """What runs where: process or unit, code, models, flags, GPU memory, and whether it generates tokens."""
    from opsctl.answers import understood
    from opsctl.cli import server_look

    key = os.environ.get(api_key_env)
    found, code = server_look.here(key) if here else server_look.there(inventory, host, key)
    if as_json:
        typer.echo(json.dumps({name: [asdict(s) for s in servers] for name, servers in found.items()}))
        return code
    for name, servers in found.items():
        with understood(name, before=True):
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
def start(
    host: HostOption = None,
    inventory: InventoryOption = None,
    ready_timeout: ReadyOption = None,
    adopt: AdoptOption = False,
    check: CheckOption = False,
    diff: DiffOption = None,
    lock_wait: LockWaitOption = "0s",
    output: OutputOption = "human",
    verbose: VerboseOption = False,
) -> int:
    """Start the server as the inventory describes it, and wait for its first token (playbook start-server)."""
    params = {"ready_timeout": ready_timeout, "adopt": adopt or None}
    options = asked.playbook("start-server", params, inventory=inventory, host=host, lock_wait=lock_wait, check=check)
    return play(options, Showing(output, diff, verbose))


@app.command()
def restart(
    host: HostOption = None,
    inventory: InventoryOption = None,
    ready_timeout: ReadyOption = None,
    adopt: AdoptOption = False,
    check: CheckOption = False,
    diff: DiffOption = None,
    lock_wait: LockWaitOption = "0s",
    output: OutputOption = "human",
    verbose: VerboseOption = False,
) -> int:
    """Restart the server; one that does not come up gives way to the one before (playbook restart-server)."""
    params = {"ready_timeout": ready_timeout, "adopt": adopt or None}
    options = asked.playbook("restart-server", params, inventory=inventory, host=host, lock_wait=lock_wait, check=check)
    return play(options, Showing(output, diff, verbose))


@app.command()
def stop(
    host: HostOption = None,
    inventory: InventoryOption = None,
    stop_wait: Annotated[
        str | None, typer.Option("--stop-wait", metavar="DURATION", help="How long running requests may take.")
    ] = None,
    check: CheckOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = "0s",
    output: OutputOption = "human",
    verbose: VerboseOption = False,
) -> int:
    """Let requests finish, stop the server, wait until its GPU memory is free (playbook stop-server)."""
    params = {"stop_wait": stop_wait}
    options = asked.playbook(
        "stop-server", params, inventory=inventory, host=host, lock_wait=lock_wait, check=check, yes=yes
    )
    return play(options, Showing(output, None, verbose))


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
    from opsctl.cli.hosts import chosen, on_each, tell_errors
    from opsctl.cli.server_look import wait as wait_for

    limit, still = asked.duration("--timeout", timeout), asked.duration("--stall", stall)
    done = on_each(
        chosen(inventory, host), lambda remote, one: wait_for(remote, one, port or one.sglang.port, limit, still)
    )
    if sys.stderr.isatty():
        typer.echo("", err=True)
    ready = {d.host.name: d.value for d in done if d.value is not None}
    if as_json:
        typer.echo(json.dumps(ready))
    else:
        for name, found in ready.items():
            typer.echo(f"{name}: ready after {found['seconds']:g} s")
    return tell_errors(done)
