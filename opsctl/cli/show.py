"""`opsctl show`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from opsctl.cli.hosts import on_one, the_host
from opsctl.cli.options import HostOption, InventoryOption
from opsctl.errors import Exit
from opsctl.runname import LAST, meant
from opsctl.text import printable

app = typer.Typer()


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name or its beginning; `last`: the newest of this inventory.")
    ] = "last",
    inventory: InventoryOption = None,
    host: HostOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """One past run: as it was recorded here, or with --host as that host's journal has it.

    Example: opsctl show last
    """
    if host:
        return _from_host(run, inventory, host)
    from opsctl.inventory.load import find, known_as
    from opsctl.report.record import read

    record = read(run, known_as(find(inventory)))
    if as_json:
        typer.echo(json.dumps({"run": record.run, "events": list(record.events)}, indent=2))
        return Exit.DONE
    from opsctl.report.run import lines

    for line in lines(record):
        typer.echo(line)
    return Exit.DONE


def _from_host(run: str, inventory: str | None, host: str) -> int:
    from opsctl.engine import past_runs
    from opsctl.wire.calls import core

    one = the_host(inventory, host)
    with on_one(one) as remote:
        known = [past.run for past in past_runs.past_runs(remote.call(core.history_list(100), timeout=60))]
        if run == LAST and not known:
            typer.echo("no run is known there")
            return Exit.DONE
        told = remote.call(core.history_show(meant(run, known, f"on {one.name}")), timeout=60).result
    typer.echo(printable(json.dumps(told, indent=2, ensure_ascii=False)))
    return Exit.DAMAGED if told.get("damage") else Exit.DONE
