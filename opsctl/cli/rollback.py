"""`opsctl rollback`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from opsctl.cli.hosts import Done, HostOption, InventoryOption, chosen, on_each, tell_errors
from opsctl.cli.playing import YesOption, ask
from opsctl.errors import Exit, UsageError
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.engine.journal import PastRun, Report
    from opsctl.remote.host import RemoteHost

app = typer.Typer()


@app.command()
def rollback(
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="Default: on each host the last run that is not undone.")
    ] = None,
    inventory: InventoryOption = None,
    host: HostOption = None,
    yes: YesOption = False,
) -> int:
    """Undo a run: every change it made, in reverse order, on every host where it made any.

    Example: opsctl rollback 20260301-101500-ab12
    """
    from opsctl.report.record import note_undone

    hosts = chosen(inventory, host, _hosts_of(run))
    looked = on_each(hosts, lambda remote, one: _find(remote, run))
    found = {d.host.name: d.value for d in looked if d.value}
    failed = tell_errors(looked)
    if failed is not Exit.DONE and (not found or run is None):
        return failed
    if not found:
        raise UsageError(f"no host knows of a run {run}" if run else "there is no run to roll back",
                         hint="opsctl history --host HOST lists them")  # fmt: skip
    for name, past in found.items():
        typer.echo(printable(f"{name}: {past.run} ({past.playbook}, by {past.meta.get('who', '?')}): {past.ended_as}"))
    found = {name: past for name, past in found.items() if past.outcome != "rolled-back"}
    if not found:
        typer.echo("there is nothing left to undo")
        return Exit.DONE
    if not yes and not ask(f"Undo {'this run' if len(found) == 1 else 'these runs'}?"):
        return Exit.INTERRUPTED
    targets = [h for h in hosts if h.name in found]
    done = on_each(targets, lambda remote, one: undo_run(remote, found[one.name]))
    for one in done:
        if one.value and one.value.whole:
            note_undone(found[one.host.name].run, one.host.name)
    codes = [_tell(one) for one in done] + [tell_errors(done)]
    return next((code for code in codes if code is not Exit.DONE), Exit.DONE)


def _hosts_of(run: str | None) -> str:
    """The hosts of a run according to our own record; all hosts if there is none."""
    from opsctl.report.record import is_known, read

    if run is None or not is_known(run):
        return "all"
    return ",".join(read(run).started.get("hosts", ())) or "all"


def _find(remote: RemoteHost, run: str | None) -> PastRun | None:
    from opsctl.engine import journal

    runs = journal.past_runs(remote.call(journal.list_runs(100), timeout=60))
    if run is None:
        return next((past for past in runs if past.outcome != "rolled-back" and past.steps), None)
    return next((past for past in runs if past.run == run), None)


def undo_run(remote: RemoteHost, past: PastRun) -> Report:
    """Undo one run on a host, under the host's lock. Raises Locked, RemoteError."""
    from opsctl.engine import hostlock, journal

    def on_progress(data: Any, body: bytes) -> None:
        if waits := journal.waits(data):
            typer.echo(printable(f"{remote.name}: {waits}"), err=True)

    if past.state == "supervised":  # its supervisor has the lock, and does the work
        told: Any = remote.call(journal.revert(past.run), on_progress=on_progress).result
        return journal.report(told)
    with hostlock.held(remote, past.run, "rollback"):
        told = remote.call(journal.rollback(past.run, "asked for"), on_progress=on_progress).result
    return journal.report(told)


def _tell(done: Done[Report]) -> Exit:
    # An error is told with the others.
    return Exit.DONE if done.value is None else tell_report(done.host.name, done.value)


def tell_report(host: str, report: Report, *, err: bool = False) -> Exit:
    """Say what was undone on a host, and what was not."""
    from opsctl.report.plain import UNDO_WORDS

    for step in report.steps:
        why = f": {step.message}" if step.message else ""
        typer.echo(printable(f"{host}: {UNDO_WORDS.get(step.status, step.status)}: {step.task}{why}"), err=err)
    typer.echo(printable(f"{host}: {'everything is undone' if report.whole else 'NOT everything is undone'}"), err=err)
    return Exit.DONE if report.whole else Exit.ROLLBACK_FAILED
