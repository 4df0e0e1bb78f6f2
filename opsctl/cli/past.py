"""`opsctl history`, `show`, `report` and `rollback`: past runs, here and on hosts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.options import DiffOption, HostOption, InventoryOption, YesOption
from opsctl.cli.terminal import TERMINAL, ask, tell_errors, write_file
from opsctl.errors import Exit
from opsctl.runname import LAST
from opsctl.text import few, moment, printable
from opsctl.verbs import runs
from opsctl.verbs.hosts import choose, choose_one

if TYPE_CHECKING:
    from opsctl.engine.past_runs import Report
    from opsctl.engine.undo import Undoing

history_app, show_app, report_app, rollback_app = (typer.Typer() for _ in range(4))

RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's name or its beginning; `last`: the newest of this inventory.")
]


@history_app.command()
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
    found, others = runs.history(inventory, limit, everything=everything)
    return [asdict(one) for one in found], others


def _of_hosts(inventory: str | None, host: str, limit: int) -> tuple[list[dict[str, Any]], Exit]:
    done = runs.history_of(choose(inventory, host), limit, TERMINAL)
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


@show_app.command()
def show(
    run: RunArgument = LAST,
    task: Annotated[str | None, typer.Argument(metavar="[TASK]", help="Only tasks whose name has these words.")] = None,
    inventory: InventoryOption = None,
    host: HostOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """One past run with all output: as it was recorded here, or with --host as that host's journal has it.

    Example: opsctl show last "Stage the files"
    """
    if host:
        return _show_journal(run, inventory, host)
    record = runs.record_of(run, inventory)
    if as_json:
        typer.echo(json.dumps({"run": record.run, "events": list(record.events)}, indent=2))
        return Exit.DONE
    from opsctl.report.run import lines

    for line in lines(record, task):
        typer.echo(line)
    return Exit.DONE


def _show_journal(run: str, inventory: str | None, host: str) -> int:
    told = runs.journal_of(choose_one(inventory, host), run, TERMINAL)
    if told is None:
        typer.echo("no run is known there")
        return Exit.DONE
    typer.echo(printable(json.dumps(told, indent=2, ensure_ascii=False)))
    return Exit.DAMAGED if told.get("damage") else Exit.DONE


@report_app.command()
def report(
    run: RunArgument = LAST,
    inventory: InventoryOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the page.")] = Path(
        "run.html"
    ),
) -> int:
    """A past run as one HTML page: timeline, changes as diffs, measurements, findings. Needs no network to be read.

    Example: opsctl report last -o run.html
    """
    from opsctl.report.run import html

    write_file(out, html(runs.record_of(run, inventory)))
    typer.echo(f"wrote {out}")
    return Exit.DONE


@rollback_app.command()
def rollback(
    run: RunArgument = LAST,
    inventory: InventoryOption = None,
    host: HostOption = None,
    check: Annotated[bool, typer.Option("--check", "-C", help="Only show what would be undone.")] = False,
    diff: DiffOption = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also a deploy that its operator is at work on; and what can be, if not all can."),
    ] = False,
    yes: YesOption = False,
) -> int:
    """Undo a run: every change it made, in reverse order, on every host where it made any.

    Examples:

      opsctl rollback --check --diff

      opsctl rollback 20260301-101500-ab12
    """
    diff = check if diff is None else diff
    wanted = runs.find(run, inventory, host, TERMINAL, unasked=yes)
    looked = runs.look(wanted, TERMINAL, diff=diff)
    failed = tell_errors(looked)
    found = {done.host.name: done.value for done in looked if done.value}
    if not found and failed is not Exit.DONE:
        return failed
    _foretell(wanted, found)
    runs.demand_undoable(wanted, found, TERMINAL, force=force)
    todo = [name for name, past in found.items() if any(runs.left(one) for one in past)]
    if not todo:
        typer.echo("there is nothing left to undo" if found else "there is nothing to undo")
        if run == LAST:
            typer.echo("to undo an earlier run, name it: opsctl rollback RUN (opsctl history lists them)")
        return failed
    if check:
        return failed
    if not yes and not ask("Undo this?"):
        return Exit.INTERRUPTED
    done = runs.undo(wanted, todo, TERMINAL, force=force)
    codes = [tell_report(one.host.name, one.value) for one in done if one.value is not None]
    return next((code for code in (*codes, tell_errors(done), failed) if code is not Exit.DONE), Exit.DONE)


def _foretell(wanted: runs.Wanted, found: Mapping[str, Sequence[Undoing]]) -> None:
    """Say what would be undone on each host, the last change first.

    The secrets of a run are not known any more: besides the known ones, what has the shape of one is masked.
    """
    from opsctl.report.diff import unified
    from opsctl.wire import masking

    typer.echo(printable(f"run {wanted.run} ({wanted.told})"))
    for host in wanted.hosts:
        steps = [(one, step) for one in found.get(host.name, ()) if runs.left(one) for step in one.left]
        for one, step in steps:
            what = "to undo" if step.can_undo else "cannot be undone"
            typer.echo(printable(f"{host.name}: {what}: {step.task}"))
            for would in (would for would in one.foretold if would.seq == step.seq):
                theirs = [f"{would.diff.path} was changed by someone else since: it would be left as it is"]
                for line in unified(would.diff) if would.ours else theirs:
                    typer.echo(printable(f"    {masking.text(line)}"))
        ended = next((one.past.ended_as for one in found.get(host.name, ()) if one.past.outcome == "rolled-back"), None)
        damaged = {sentence for one in found.get(host.name, ()) for sentence in one.past.damage if runs.left(one)}
        for sentence in sorted(damaged):
            typer.echo(printable(f"{host.name}: the journal is damaged: {sentence}"))
        if not steps and not damaged:
            typer.echo(printable(f"{host.name}: {ended or 'it changed nothing'}"))


def tell_report(host: str, report: Report, *, err: bool = False) -> Exit:
    """Say what was undone on a host, and what was not."""
    from opsctl.report.plain import UNDO_WORDS

    for step in report.steps:
        why = f": {step.message}" if step.message else ""
        typer.echo(printable(f"{host}: {UNDO_WORDS.get(step.status, step.status)}: {step.task}{why}"), err=err)
    for sentence in report.damage:
        typer.echo(printable(f"{host}: the journal is damaged: {sentence}"), err=err)
    if report.unlogged:
        typer.echo(printable(f"{host}: this rollback could not be noted in the journal: {report.unlogged}"), err=err)
    typer.echo(printable(f"{host}: {_undone(report)}"), err=err)
    return report.code


def _undone(report: Report) -> str:
    if report.damage:
        return "what the journal still has is undone; more may have been changed, which it does not know of any more"
    if not report.whole:
        return "NOT everything is undone"
    kept = any(step.status == "kept" for step in report.steps)
    return "everything that can be undone is undone" if kept else "everything is undone"
