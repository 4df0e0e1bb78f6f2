"""`opsctl history`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from opsctl.cli.hosts import chosen, on_each, tell_errors
from opsctl.cli.options import HostOption, InventoryOption
from opsctl.errors import Exit
from opsctl.text import few, moment, printable

app = typer.Typer()


@app.command()
def history(
    inventory: InventoryOption = None,
    host: HostOption = None,
    limit: Annotated[int, typer.Option("--count", "-n", min=1, help="How many runs to show.")] = 20,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Also the runs that were made from here for other inventories.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Past runs: those made from here with this inventory, or with --host those that hosts know of, whoever made them.

    Example: opsctl history --host blackwell
    """
    others = 0
    if host:
        rows, code = _of_hosts(inventory, host, limit)
    else:
        (rows, others), code = _of_this_machine(inventory, limit, everything=everything), Exit.DONE
    if as_json:
        typer.echo(json.dumps({"runs": rows}, indent=2))
        return code
    if not rows and code is Exit.DONE:
        typer.echo("no run is recorded here" if host is None else "no run is known there")
    mixed = len({row.get("inventory") for row in rows}) > 1
    for row in rows:
        where = f"{row['host']}  " if "host" in row else ""
        hosts = f" on {few(row['hosts'])}" if "hosts" in row else f" by {row['who']}"
        project = f" (of {row['inventory']})" if mixed and row.get("inventory") else ""
        begun = f"{row['run']}  {moment(row['started'])}"
        typer.echo(printable(f"{where}{begun}  {row['playbook']}{hosts}: {_end(row)}{project}"))
    if others:
        typer.echo(f"{others} {'run' if others == 1 else 'runs'} of other inventories: opsctl history --all", err=True)
    return code


def _end(row: dict[str, Any]) -> str:
    end = str(row.get("summary") or row["outcome"])
    undone, others = row.get("undone"), set(row.get("hosts", ())) - set(row.get("undone", ()))
    return end + (f", undone later{f' on {few(undone)}' if others else ''}" if undone else "")


def _of_this_machine(inventory: str | None, limit: int, *, everything: bool) -> tuple[list[dict[str, Any]], int]:
    """The runs of the project one is in (of all, where that is none), and how many there are of others."""
    from opsctl.inventory.load import find, known_as
    from opsctl.report.record import known_of, names, read, undone

    project = None if everything else known_as(find(inventory))
    known, others = known_of(project) if project else (names(), 0)
    rows = []
    for name in known[:limit]:
        record = read(name)
        started, ended = record.started, record.ended or {}
        rows.append({
            "run": name, "started": started.get("started", "?"), "playbook": started.get("playbook", "?"),
            "hosts": list(started.get("hosts", ())), "outcome": ended.get("outcome", "did not finish"),
            "exit_code": ended.get("exit_code"), "undone": sorted(undone(name)),
            "inventory": started.get("inventory"),
        })  # fmt: skip
    return rows, others


def _of_hosts(inventory: str | None, host: str, limit: int) -> tuple[list[dict[str, Any]], Exit]:
    from opsctl.engine.past_runs import past_runs
    from opsctl.wire.calls import core

    done = on_each(
        chosen(inventory, host),
        lambda remote, _: past_runs(remote.call(core.history_list(limit), timeout=60)),
        past=False,
    )
    rows = [
        {
            "host": one.host.name, "run": past.run, "started": _time(past.begun), "playbook": past.playbook,
            "who": str(past.meta.get("who", "?")), "steps": past.steps,
            "outcome": past.outcome if past.state == "ended" else past.state, "why": past.why,
            "summary": past.ended_as, "damage": list(past.damage),
        }
        for one in done
        for past in one.value or ()
    ]  # fmt: skip
    return rows, tell_errors(done)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
