"""`opsctl rollback`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.hosts import Done, chosen, on_each, tell_errors
from opsctl.cli.options import DiffOption, HostOption, InventoryOption, YesOption
from opsctl.cli.playing import ask
from opsctl.errors import Conflict, Exit, UsageError
from opsctl.runname import LAST, meant
from opsctl.text import few, printable

if TYPE_CHECKING:
    from opsctl.engine.past_runs import PastRun, Report
    from opsctl.engine.undo import Undoing
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost

app = typer.Typer()


@app.command()
def rollback(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name or its beginning; `last`: the newest of this inventory.")
    ] = LAST,
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
    from opsctl.engine.undo import looked_up, refuse_if_worked_on, undo_all
    from opsctl.report.record import note_undone

    diff = check if diff is None else diff
    wanted = _wanted(run, inventory, host, yes=yes)
    looked = on_each(wanted.hosts, lambda remote, _: looked_up(remote, wanted.run, diff=diff), past=False)
    failed = tell_errors(looked)
    found = {done.host.name: done.value for done in looked if done.value}
    if not found and failed is not Exit.DONE:
        return failed
    _show(wanted, found)
    for name, past in found.items():
        refuse_if_worked_on(name, past, force=force)
    lacks = [f"{name}: {why}" for name, past in found.items() for one in past for why in one.lacks]
    if lacks and not force:
        for line in lacks:
            typer.echo(printable(line), err=True)
        raise Conflict(f"run {wanted.run} cannot be undone as a whole, so nothing of it was touched",
                       hint="put back what is missing, or undo what can be undone with --force")  # fmt: skip
    todo = {name: past for name, past in found.items() if any(_left(one) for one in past)}
    if not todo:
        typer.echo("there is nothing left to undo" if found else "there is nothing to undo")
        if run == LAST:
            typer.echo("to undo an earlier run, name it: opsctl rollback RUN (opsctl history lists them)")
        return failed
    if check:
        return failed
    if not yes and not ask("Undo this?"):
        return Exit.INTERRUPTED

    def work(remote: RemoteHost, one: InventoryHost) -> Report:
        past = looked_up(remote, wanted.run)
        refuse_if_worked_on(one.name, past, force=force)
        return undo_all(one, past, lambda text: typer.echo(printable(f"{one.name}: {text}"), err=True))

    done = on_each([one for one in wanted.hosts if one.name in todo], work, past=False)
    for one in done:
        if one.value and one.value.whole:
            note_undone(wanted.run, one.host.name)
    codes = [_tell(one) for one in done] + [tell_errors(done), failed]
    return next((code for code in codes if code is not Exit.DONE), Exit.DONE)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The run that is meant, and the hosts of it that were asked for."""

    run: str
    hosts: Sequence[InventoryHost]
    told: str


def _wanted(word: str, inventory: str | None, pattern: str | None, *, yes: bool) -> _Wanted:
    """Which run is meant. Raises UsageError, Unreachable.

    Our own records and the hosts' journals say together which one is the newest: it may be a colleague's, and one that
    failed before it changed anything stands in our records alone.
    """
    from opsctl.engine.hostlock import holder
    from opsctl.engine.undo import newest
    from opsctl.inventory.load import find, known_as
    from opsctl.report.record import known_of, matching, names, read, refused_since

    project = known_as(find(inventory))
    if word != LAST and len(matching(word)) == 1:
        return _recorded(matching(word)[0], inventory, pattern)
    hosts = chosen(inventory, pattern)
    looked = on_each(hosts, lambda remote, _: _runs(remote), past=False)
    there = {done.host.name: done.value or [] for done in looked}
    ours = known_of(project)[0] if project else names()
    others = set(names()) - set(ours)
    if pattern is not None:  # then a run counts only where it was for one of these hosts
        ours = [name for name in ours if {*read(name).started.get("hosts", ())} & there.keys()]
    me = str(holder("", "")["who"])

    def counts(past: PastRun) -> bool:
        """Whether it is a run of this project, as far as can be told: another machine has it under another path."""
        elsewhere = past.run in others or (
            past.meta.get("who") == me and past.meta.get("inventory") not in (project, None)
        )
        return not elsewhere and ("digest" in past.meta or past.outcome != "rolled-back")

    known = {past.run: past for runs in there.values() for past in runs}
    if word != LAST:
        run = meant(word, sorted({*names(), *known}, reverse=True), "on this machine, nor on the hosts")
    else:
        run = newest([ours, *([past.run for past in runs if counts(past)] for runs in there.values())]) or ""
        failed = [done for done in looked if done.error]
        if failed and run not in ours:
            raise failed[0].error or AssertionError
        if refused_since(ours[0] if ours else None, project) and (not run or run in ours):
            known_as_last = f"opsctl rollback {run} undoes the one before" if run else None
            raise UsageError(
                "the last run here was refused before it began: there is nothing to undo", hint=known_as_last
            )
        if not run:
            raise UsageError("there is no run to roll back", hint="opsctl history --host HOST lists those of a host")
        tell_errors(failed)
        if failed:
            typer.echo(f"a newer run on {few([d.host.name for d in failed])} would not be known", err=True)
        if yes and run not in ours and known[run].meta.get("who") != me:
            who = known[run].meta.get("who", "somebody else")
            raise UsageError(
                f"the newest run is {run} ({known[run].playbook}) by {who}: --yes undoes runs of others only by name",
                hint=f"opsctl rollback {run} --yes",
            )
    if run in ours:
        return _recorded(run, inventory, pattern)
    past = known[run]
    named = {*past.meta.get("hosts", ()), *(name for name, runs in there.items() if any(p.run == run for p in runs))}
    return _Wanted(run, [one for one in hosts if one.name in named], _told(past))


def _recorded(run: str, inventory: str | None, pattern: str | None) -> _Wanted:
    """A run of our own records. Raises UsageError."""
    from opsctl.report.record import read

    record = read(run)
    started, ended = record.started, record.ended or {}
    was_for = list(started.get("hosts", ()))
    hosts = [one for one in chosen(inventory, pattern, ",".join(was_for) or "all") if one.name in was_for]
    if not hosts:
        raise UsageError(f"run {run} was for {few(was_for)}, and none of them is meant")
    return _Wanted(run, hosts, f"{started.get('playbook', '?')}, from here: {ended.get('outcome', 'did not finish')}")


def _told(past: PastRun) -> str:
    return f"{past.playbook}, by {past.meta.get('who', '?')}: {past.ended_as}"


def _runs(remote: RemoteHost) -> list[PastRun]:
    from opsctl.engine.past_runs import past_runs
    from opsctl.wire.calls import core

    return past_runs(remote.call(core.history_list(100), timeout=60))


def _left(one: Undoing) -> bool:
    return one.past.outcome != "rolled-back" and bool(one.left or one.past.state != "ended")


def _show(wanted: _Wanted, found: Mapping[str, Sequence[Undoing]]) -> None:
    """Say what would be undone on each host, the last change first.

    The secrets of a run are not known any more: besides the known ones, what has the shape of one is masked.
    """
    from opsctl.report.diff import unified
    from opsctl.wire import masking

    typer.echo(printable(f"run {wanted.run} ({wanted.told})"))
    for host in wanted.hosts:
        steps = [(one, step) for one in found.get(host.name, ()) if _left(one) for step in one.left]
        for one, step in steps:
            what = "to undo" if step.can_undo else "cannot be undone"
            typer.echo(printable(f"{host.name}: {what}: {step.task}"))
            for would in (would for would in one.foretold if would.seq == step.seq):
                theirs = [f"{would.diff.path} was changed by someone else since: it would be left as it is"]
                for line in unified(would.diff) if would.ours else theirs:
                    typer.echo(printable(f"    {masking.text(line)}"))
        ended = next((one.past.ended_as for one in found.get(host.name, ()) if one.past.outcome == "rolled-back"), None)
        damaged = {sentence for one in found.get(host.name, ()) for sentence in one.past.damage if _left(one)}
        for sentence in sorted(damaged):
            typer.echo(printable(f"{host.name}: the journal is damaged: {sentence}"))
        if not steps and not damaged:
            typer.echo(printable(f"{host.name}: {ended or 'it changed nothing'}"))


def _tell(done: Done[Report]) -> Exit:
    # An error is told with the others.
    return Exit.DONE if done.value is None else tell_report(done.host.name, done.value)


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
    typer.echo(printable(f"{host}: {_end(report)}"), err=err)
    if report.damage:
        return Exit.DAMAGED
    return Exit.DONE if report.whole else Exit.ROLLBACK_FAILED


def _end(report: Report) -> str:
    if report.damage:
        return "what the journal still has is undone; more may have been changed, which it does not know of any more"
    if not report.whole:
        return "NOT everything is undone"
    kept = any(step.status == "kept" for step in report.steps)
    return "everything that can be undone is undone" if kept else "everything is undone"
