"""Running playbooks, and what became of runs: their history, and taking them back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opsctl.errors import Conflict, Exit, UsageError
from opsctl.runname import LAST, meant
from opsctl.text import few, printable
from opsctl.verbs.frontend import SILENT, Done, Frontend, failed
from opsctl.verbs.hosts import choose, on_each, on_one, take

if TYPE_CHECKING:
    from opsctl.engine.events import Event
    from opsctl.engine.options import Options
    from opsctl.engine.past_runs import PastRun, Report
    from opsctl.engine.record import Record
    from opsctl.engine.undo import Undoing
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.secret import Secret
    from opsctl.wire.calls.core import ShownRun

Emit = Callable[["Event"], None]


def playbook(name: str, params: Mapping[str, Any] | None = None, **more: Any) -> Options:
    """What is asked of a run of a shipped playbook, or of the project's own of that name.

    Args:
        name: such as `deploy-drafter`, `stage-drafter`, `patch-sglang`, `restart-server`.
        params: those that are given; of the others the playbook knows better.
        more: fields of `Options`: inventory, limit, check, yes, lock_wait in seconds.
    """
    from opsctl.engine.options import Given, Options

    return Options(playbook=name, given={param: Given(value) for param, value in (params or {}).items()}, **more)


def run(
    options: Options,
    shown: AbstractContextManager[Emit] | None = None,
    front: Frontend = SILENT,
    *,
    stop: threading.Event | None = None,
    sudo_password: Secret | None = None,
) -> Exit:
    """Run a playbook, and record the run on this machine.

    Args:
        shown: opened when the run begins; gets its events, one at a time.
        stop: set from outside, it ends the run at the next safe place.

    Raises UsageError before any host is touched.
    """
    stop, begun = stop or threading.Event(), take()
    connections = begun.connections
    connections.cancelled, connections.at_once = stop.is_set, options.at_once
    try:
        begun.connect()
        from opsctl.engine.run import execute, plan
        from opsctl.inventory import load

        with _noted(options):
            inventory = load(options.inventory)
        if sudo_password is not None:
            inventory = inventory.with_become_password(sudo_password)
        with _noted(options):
            planned = plan(options, inventory)
        files = [*planned.files, *inventory.files]
        begun.remember(files, [host.connection() for host in planned.first], options.at_once)
        code = Exit.DONE
        try:
            with _recorded(shown or nullcontext(lambda event: None), front) as emit, _noted(options):
                code = execute(planned, options, emit, stop, front.ask, connections)
        except OSError:
            if code is Exit.DONE:  # else how the run ended matters more than that some of it was not shown
                raise
        return code
    finally:
        connections.close()


@contextmanager
def _noted(options: Options) -> Iterator[None]:
    """Note a run that is refused before it begins, so that a rollback does not take the one before for it."""
    from opsctl.inventory.load import find, known_as

    try:
        yield
    except UsageError:
        if not options.check:
            from opsctl.engine.record import note_refused

            note_refused(known_as(find(options.inventory)))
        raise


@contextmanager
def _recorded(shown: AbstractContextManager[Emit], front: Frontend) -> Iterator[Emit]:
    """One function for the events of a run, which can be called from any thread."""
    from opsctl.engine.record import Recorder

    guard, recorder = threading.Lock(), Recorder(lambda text: front.say(f"warning: {text}"))
    try:
        with shown as show:

            def emit(event: Event) -> None:
                with guard:
                    recorder(event)
                    show(event)

            yield emit
    finally:
        recorder.close()


def resuming(options: Options, word: str) -> Options:
    """The options to go on with a run. One that is not recorded here may be a colleague's: then the hosts are asked."""
    from dataclasses import replace

    from opsctl.engine.options import Recorded
    from opsctl.engine.record import matching

    if word != LAST and not matching(word):
        return replace(options, resume=word)
    record = record_of(word, options.inventory)
    told = Recorded(str(record.started.get("playbook", "")), tuple(record.started.get("hosts", ())))
    return replace(options, resume=record.run, recorded=told)


@dataclass(frozen=True, slots=True)
class Past:
    """A run that was made from this machine."""

    run: str
    started: str
    playbook: str
    hosts: tuple[str, ...]
    outcome: str
    exit_code: int | None
    undone: tuple[str, ...]  # hosts on which it was taken back later
    inventory: str | None


def history(inventory: str | None, limit: int = 20, *, everything: bool = False) -> tuple[list[Past], int]:
    """The newest runs of the project one is in, and how many there are of others; of all projects if `everything`."""
    from opsctl.engine.record import known_of, names, read, undone
    from opsctl.inventory.load import find, known_as

    project = None if everything else known_as(find(inventory))
    known, others = known_of(project) if project else (names(), 0)
    found = []
    for name in known[:limit]:
        record = read(name)
        started, ended = record.started, record.ended or {}
        found.append(
            Past(
                name, started.get("started", "?"), started.get("playbook", "?"), tuple(started.get("hosts", ())),
                ended.get("outcome", "did not finish"), ended.get("exit_code"), tuple(sorted(undone(name))),
                started.get("inventory"),
            )
        )  # fmt: skip
    return found, others


def history_of(hosts: Sequence[InventoryHost], limit: int = 20, front: Frontend = SILENT) -> list[Done[list[PastRun]]]:
    """The runs that hosts know of, whoever made them, the newest first."""
    return on_each(hosts, lambda remote, _: past_runs(remote, limit), front, past=False)


def past_runs(remote: RemoteHost, limit: int = 100) -> list[PastRun]:
    """The newest runs in a host's journal."""
    from opsctl.engine import past_runs as past
    from opsctl.wire.calls import core

    return past.past_runs(remote.call(core.history_list(limit), timeout=60))


def record_of(run: str, inventory: str | None) -> Record:
    """The record of a run that was made from here, by its name, its beginning, or `last`. Raises UsageError."""
    from opsctl.engine.record import read
    from opsctl.inventory.load import find, known_as

    return read(run, known_as(find(inventory)))


def journal_of(host: InventoryHost, run: str, front: Frontend = SILENT) -> ShownRun | None:
    """What the journal of a host says of a run, as JSON data; None where it knows no run at all. Raises UsageError."""
    from opsctl.wire.calls import core

    with on_one(host, front) as remote:
        known = [past.run for past in past_runs(remote)]
        if run == LAST and not known:
            return None
        return remote.call(core.history_show(meant(run, known, f"on {host.name}")), timeout=60).result


@dataclass(frozen=True, slots=True)
class Wanted:
    """A run to take back, and the hosts of it that were asked for. told: which run that is, in words."""

    run: str
    hosts: Sequence[InventoryHost]
    told: str


def find(
    word: str = LAST,
    inventory: str | None = None,
    pattern: str | None = None,
    front: Frontend = SILENT,
    *,
    unasked: bool = False,
) -> Wanted:
    """Which run is meant by a name, its beginning, or `last`. Raises UsageError, Unreachable.

    Our own records and the hosts' journals say together which one is the newest: it may be a colleague's, and one that
    failed before it changed anything stands in our records alone.

    unasked: nobody is going to be asked about it, so the newest run has to be one's own.
    """
    from opsctl.engine.hostlock import holder
    from opsctl.engine.record import known_of, matching, names, read, refused_since
    from opsctl.engine.undo import newest
    from opsctl.inventory.load import find as inventory_file
    from opsctl.inventory.load import known_as

    project = known_as(inventory_file(inventory))
    if word != LAST and len(matching(word)) == 1:
        return _recorded_run(matching(word)[0], inventory, pattern)
    hosts = choose(inventory, pattern)
    looked = on_each(hosts, lambda remote, _: past_runs(remote), front, past=False)
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
        lost = [done for done in looked if done.error]
        for done in lost:
            if done.error and run not in ours:
                raise done.error
        if refused_since(ours[0] if ours else None, project) and (not run or run in ours):
            known_as_last = f"opsctl rollback {run} undoes the one before" if run else None
            raise UsageError(
                "the last run here was refused before it began: there is nothing to undo", hint=known_as_last
            )
        if not run:
            raise UsageError("there is no run to roll back", hint="opsctl history --host HOST lists those of a host")
        failed(lost, front)
        if lost:
            front.say(f"a newer run on {few([d.host.name for d in lost])} would not be known")
        if unasked and run not in ours and known[run].meta.get("who") != me:
            who = known[run].meta.get("who", "somebody else")
            raise UsageError(
                f"the newest run is {run} ({known[run].playbook}) by {who}: --yes undoes runs of others only by name",
                hint=f"opsctl rollback {run} --yes",
            )
    if run in ours:
        return _recorded_run(run, inventory, pattern)
    past = known[run]
    named = {*past.meta.get("hosts", ()), *(name for name, runs in there.items() if any(p.run == run for p in runs))}
    told = f"{past.playbook}, by {past.meta.get('who', '?')}: {past.ended_as}"
    return Wanted(run, [one for one in hosts if one.name in named], told)


def _recorded_run(run: str, inventory: str | None, pattern: str | None) -> Wanted:
    """A run of our own records. Raises UsageError."""
    from opsctl.engine.record import read

    record = read(run)
    started, ended = record.started, record.ended or {}
    was_for = list(started.get("hosts", ()))
    hosts = [one for one in choose(inventory, pattern, ",".join(was_for) or "all") if one.name in was_for]
    if not hosts:
        raise UsageError(f"run {run} was for {few(was_for)}, and none of them is meant")
    return Wanted(run, hosts, f"{started.get('playbook', '?')}, from here: {ended.get('outcome', 'did not finish')}")


def look(wanted: Wanted, front: Frontend = SILENT, *, diff: bool = False) -> list[Done[list[Undoing]]]:
    """How the run stands in the journals of its hosts. diff: also what would become of files."""
    from opsctl.engine.undo import looked_up

    return on_each(wanted.hosts, lambda remote, _: looked_up(remote, wanted.run, diff=diff), front, past=False)


def left(one: Undoing) -> bool:
    """Whether there is something to take back."""
    return one.past.outcome != "rolled-back" and bool(one.left or one.past.state != "ended")


def demand_undoable(wanted: Wanted, found: Mapping[str, Sequence[Undoing]], front: Frontend, *, force: bool) -> None:
    """Raise Locked where its operator is at work, Conflict where not all of it can be undone; neither with `force`."""
    from opsctl.engine.undo import refuse_if_worked_on

    for name, past in found.items():
        refuse_if_worked_on(name, past, force=force)
    lacks = [f"{name}: {why}" for name, past in found.items() for one in past for why in one.lacks]
    if lacks and not force:
        for line in lacks:
            front.say(line)
        raise Conflict(f"run {wanted.run} cannot be undone as a whole, so nothing of it was touched",
                       hint="put back what is missing, or undo what can be undone with --force")  # fmt: skip


def undo(wanted: Wanted, names: Sequence[str], front: Frontend = SILENT, *, force: bool = False) -> list[Done[Report]]:
    """Take the run back on those of its hosts that `names` has, and note that where it was recorded here."""
    from opsctl.engine.record import note_undone
    from opsctl.engine.undo import looked_up, refuse_if_worked_on

    def work(remote: RemoteHost, host: InventoryHost) -> Report:
        past = looked_up(remote, wanted.run)
        refuse_if_worked_on(host.name, past, force=force)
        return undo_on(host, past, front)

    done = on_each([one for one in wanted.hosts if one.name in names], work, front, past=False)
    for one in done:
        if one.value and one.value.whole:
            note_undone(wanted.run, one.host.name)
    return done


def undo_on(host: InventoryHost, past: Sequence[Undoing], front: Frontend) -> Report:
    """Take a run back on a host that is connected, the last change first."""
    from opsctl.engine.undo import undo_all

    return undo_all(host, past, lambda text: front.say(printable(f"{host.name}: {text}")))


def rollback(
    word: str = LAST,
    inventory: str | None = None,
    pattern: str | None = None,
    front: Frontend = SILENT,
    *,
    force: bool = False,
) -> list[Done[Report]]:
    """Undo a run: every change it made, in reverse order, on every host where it made any. Asks nobody.

    Raises UsageError, Unreachable, Locked, Conflict; errors of single hosts are in what it gives.
    """
    wanted = find(word, inventory, pattern, front, unasked=True)
    looked = look(wanted, front)
    found = {done.host.name: done.value for done in looked if done.value}
    demand_undoable(wanted, found, front, force=force)
    todo = [name for name, past in found.items() if any(left(one) for one in past)]
    lost: list[Done[Report]] = [Done(done.host, error=done.error) for done in looked if done.error]
    return lost + undo(wanted, todo, front, force=force)
