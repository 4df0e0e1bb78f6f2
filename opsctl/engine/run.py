"""Running a playbook, from its name to an exit code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from opsctl import __version__, runname
from opsctl.engine import find, params, past_runs, preflight, templating, usage
from opsctl.engine.connections import Connections
from opsctl.engine.events import Event, RunEnded, RunStarted
from opsctl.engine.execute import Reverted
from opsctl.engine.fleet import Fleet, batches
from opsctl.engine.hostlock import holder
from opsctl.engine.hostrun import PlayOnHost
from opsctl.engine.loader import load_playbook
from opsctl.engine.model import Param
from opsctl.engine.options import Options
from opsctl.engine.prepare import TaskContext
from opsctl.engine.scope import Layer, Scope
from opsctl.engine.session import RunInfo, Session
from opsctl.engine.tasks import Play, Playbook, straight
from opsctl.engine.templating import At
from opsctl.engine.undo import looked_up
from opsctl.errors import Damaged, Exit, OpsctlError, RemoteError, UsageError
from opsctl.inventory import Inventory, InventoryHost, demand_reachable
from opsctl.inventory.load import known_as
from opsctl.secret import masked
from opsctl.secret_sources import know
from opsctl.text import few
from opsctl.wire import masking
from opsctl.wire.calls import core
from opsctl.wire.calls.core import RunMeta
from opsctl.yaml_source import Source

_OUTCOMES = {
    Exit.DONE: "done", Exit.FAILED: "failed", Exit.UNREACHABLE: "unreachable", Exit.LOCKED: "locked",
    Exit.ROLLED_BACK: "rolled back", Exit.CONFLICT: "conflict", Exit.GATE: "gate not met",
    Exit.ROLLBACK_FAILED: "rollback failed", Exit.INTERRUPTED: "interrupted", Exit.CHANGES: "changes needed",
    Exit.DAMAGED: "journal damaged", Exit.USAGE: "refused", Exit.UNKNOWN: "unknown",
    Exit.MISTAKE: "stopped by a mistake in the playbook",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stage:
    """A play with its hosts and variables: everything is known but the hosts themselves."""

    index: int
    play: Play
    hosts: tuple[InventoryHost, ...]
    given: Layer
    layers: Mapping[str, tuple[Layer, ...]]  # by host, nearest first
    chosen: frozenset[int]
    uses_facts: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is going to do. `inventory`: the full path of the file, None where there is none."""

    playbook: Playbook
    inventory: str | None
    run: str
    stages: tuple[Stage, ...]

    @property
    def files(self) -> list[str]:
        """Every file the playbook was read from."""
        return [source.file for source in self.playbook.sources]

    @property
    def first(self) -> list[InventoryHost]:
        """The hosts that the run begins with."""
        stage = next(s for s in self.stages if s.hosts)
        return batches(stage.play, stage.hosts)[0]

    @property
    def become(self) -> frozenset[bool | str]:
        """What the tasks that may run say of the user they want to be."""
        tasks = (task for stage in self.stages for task in stage.play.all_tasks() if task.number in stage.chosen)
        return frozenset(task.become for task in tasks if task.become is not None)

    @property
    def hosts(self) -> list[InventoryHost]:
        return list({h.name: h for stage in self.stages for h in stage.hosts}.values())


Ask = Callable[[str], bool]


def plan(options: Options, inventory: Inventory) -> Plan:
    """Read and check everything. No host is touched. Raises UsageError with a place."""
    playbook = load_playbook(find.playbook(options.playbook))
    if options.resume is not None:
        runname.check(options.resume)
    if options.recorded and options.recorded.playbook != playbook.name:
        was = f"run {options.resume} is one of the playbook {options.recorded.playbook}, not of {playbook.name}"
        raise UsageError(was, hint="opsctl history lists them")
    for play in playbook.plays:
        for error in usage.wrong_fields(play):
            raise error
    limit = None if options.limit is None else {h.name for h in inventory.select(options.limit)}
    if options.recorded:  # a run goes on where it was to go, and nowhere else
        limit = {*options.recorded.hosts} if limit is None else limit & {*options.recorded.hosts}
    preflight.check_tags(playbook.plays, [*options.tags, *options.skip_tags])
    start = preflight.start_number(playbook.plays, options.start_at) if options.start_at else (0, 0)
    run = options.resume or runname.new()
    chosen_hosts = [_hosts(play, inventory, limit) for play in playbook.plays]
    demand_reachable({host.name: host for hosts in chosen_hosts for host in hosts}.values())
    names = {name for hosts in chosen_hosts for host in hosts for name in host.variables}
    params.check_names(options.given, playbook.plays, names)
    declared = params.declared(playbook.plays)
    stages = tuple(
        _stage(index, play, hosts, options, start, inventory, run, declared)
        for index, (play, hosts) in enumerate(zip(playbook.plays, chosen_hosts, strict=True))
    )
    if not any(stage.hosts for stage in stages):
        raise UsageError("no play has a host left", hint=f"--limit {options.limit}" if options.limit else None)
    for stage in stages:
        for host in stage.hosts:
            around = TaskContext(host.name, playbook.path, options.check, stage.given)
            preflight.check(stage.play, stage.chosen, stage.layers[host.name], around)
    return Plan(playbook, known_as(inventory.file), run, stages)


def _hosts(play: Play, inventory: Inventory, limit: Collection[str] | None) -> tuple[InventoryHost, ...]:
    try:
        hosts = inventory.select(play.pattern)
    except UsageError as error:
        raise UsageError(f"hosts: {error.message}", where=(play.at / "hosts").place, hint=error.hint) from None
    return tuple(h for h in hosts if limit is None or h.name in limit)


def _stage(
    index: int, play: Play, hosts: tuple[InventoryHost, ...], options: Options, start: tuple[int, int],
    inventory: Inventory, run: str, declared: Mapping[str, tuple[Param, At]],
) -> Stage:  # fmt: skip
    given, defaults = params.param_layers(play, options.given, declared)
    constants = Layer({"check_mode": options.check, "run_id": run})
    file = At(Source(inventory.file or "inventory", None, {}, {}))
    variables = Layer(play.keys.vars, play.at / "vars")
    layers = {h.name: (given, constants, variables, defaults, Layer(h.variables, file)) for h in hosts}
    chosen = frozenset(
        task.number
        for task in play.all_tasks()
        if (task in play.handlers or (index, task.number) >= start)
        and (task in play.handlers or preflight.by_tags(task, options.tags, options.skip_tags))
    )
    return Stage(index, play, hosts, given, layers, chosen, _uses_facts(play))


def _uses_facts(play: Play) -> bool:
    """Whether a template of the play speaks of `facts`, and no task of it registers them."""
    tasks = play.all_tasks()
    if any(t.keys.register_ == "facts" for t in tasks):
        return False
    values: list[Any] = [play.keys.vars]
    for task in tasks:
        values += [task.args, task.keys.vars, task.keys.loop]
        if any("facts" in templating.names_in_condition(condition) for condition, _ in task.conditions):
            return True
    return "facts" in templating.names_used(values)


def execute(
    plan: Plan,
    options: Options,
    emit: Callable[[Event], None],
    stop: threading.Event,
    ask: Ask,
    connections: Connections,
) -> Exit:
    """Run what was planned. Raises UsageError if a question cannot be asked; what happens on hosts is in the events."""
    began = time.monotonic()
    clock = _clock(began)
    known = _know(plan)
    _confirm(plan, options, ask)
    meta = _meta(plan, options)
    info = RunInfo(
        run=plan.run, meta=meta, become=plan.become, check=options.check, cancelled=stop.is_set,
        lock_wait=options.lock_wait, secrets=known,
    )  # fmt: skip
    begun_for = _begun_for(plan, options, connections)
    fleet = Fleet(info, emit, clock, connections, options.at_once)
    names = tuple(h.name for h in plan.hosts)
    emit(RunStarted(at=0.0, run=plan.run, playbook=plan.playbook.name, hosts=names, check=options.check,
                    started=datetime.now(UTC).isoformat(timespec="microseconds"), version=__version__,
                    variables=meta["vars"], inventory=plan.inventory))  # fmt: skip
    watcher = threading.Thread(target=_cancel_when, args=(stop, fleet), daemon=True)
    watcher.start()
    try:
        for stage in plan.stages:
            fleet.play(stage.play, stage.hosts, _placer(stage, plan, options, begun_for, emit, clock))
        code = fleet.finish()
    except Exception as bug:
        fleet.give_up(bug)
        raise
    finally:
        fleet.close()
    if code is Exit.DONE and options.check and options.exit_code:
        statuses = {status for session in fleet.sessions.values() for status in session.counts}
        code = Exit.CHANGES if "changed" in statuses else Exit.UNKNOWN if "unknown" in statuses else code
    emit(RunEnded(at=clock(), run=plan.run, exit_code=int(code), outcome=_OUTCOMES.get(code, "failed"),
                  seconds=time.monotonic() - began))  # fmt: skip
    return code


def _know(plan: Plan) -> dict[str, list[str]]:
    """Look up every secret that the run may meet, before it says anything. By host, what its agents are to mask."""
    known: dict[str, list[str]] = {}
    for stage in plan.stages:
        tasks = [(task.args, task.keys, [values for values, _ in task.variables]) for task in stage.play.all_tasks()]
        for host in stage.hosts:
            known.setdefault(host.name, []).extend(know(tasks, [layer.values for layer in stage.layers[host.name]]))
            know(host.settings)
    return known


def _cancel_when(stop: threading.Event, fleet: Fleet) -> None:
    stop.wait()
    fleet.cancel()


def _clock(began: float) -> Callable[[], float]:
    return lambda: time.monotonic() - began


def _placer(
    stage: Stage,
    plan: Plan,
    options: Options,
    begun_for: Collection[str],
    emit: Callable[[Event], None],
    clock: Callable[[], float],
) -> Callable[[Session], PlayOnHost]:
    order = [t for t in straight(stage.play.tasks) if t.number in stage.chosen]

    def on_host(session: Session) -> PlayOnHost:
        done = -1
        if options.resume:
            done = _restore(session, stage, plan, begun_for)
        return PlayOnHost(
            play=stage.play, index=stage.index, chosen=stage.chosen,
            order=[t for t in order if t.number > done or t.number in session.left],
            around=TaskContext(
                session.name, plan.playbook.path, options.check, stage.given, session.info.cancelled
            ),
            layers=stage.layers[session.name], digest=plan.playbook.digest, uses_facts=stage.uses_facts, done=done,
            emit=emit, clock=clock,
        )  # fmt: skip

    return on_host


_ALL_DONE = 1 << 30  # a task number behind every task


def _begun_for(plan: Plan, options: Options, connections: Connections) -> Collection[str]:
    """The hosts that the run which is to go on was made for. Nothing is recorded yet: that run may be none.

    Raises UsageError if nobody knows it, Unreachable if some host could not be asked.
    """
    if options.resume is None:
        return ()
    if options.recorded:
        return options.recorded.hosts
    known: set[str] = set()
    hosts: set[str] = set()
    silent: list[OpsctlError] = []
    asked = [(host.name, connections.of(host.connection())) for host in plan.hosts]
    for name, connecting in asked:
        try:
            runs = past_runs.past_runs(connecting.result().remote.call(core.history_list(100), timeout=60))
        except OpsctlError as error:
            error.where = error.where or name
            silent.append(error)
            continue
        known |= {past.run for past in runs}
        hosts |= {host for past in runs if past.run == plan.run for host in (name, *past.meta.get("hosts", ()))}
    if not hosts and silent:
        raise silent[0]
    if not hosts:
        runname.meant(plan.run, sorted(known, reverse=True), "on this machine, nor on the hosts")
    return hosts


def _restore(session: Session, stage: Stage, plan: Plan, begun_for: Collection[str]) -> int:
    """Take up what the resumed run had learnt on a host. Number of the last task of this stage that it had done.

    Raises UsageError if the run was not for this host, or the playbook is not the one it was made with.
    """
    run = plan.run
    try:
        told = session.remote().call(core.history_show(run, checkpoint=True), timeout=60).result
        users = [one.user for one in reversed(looked_up(session.remote(), run))]
    except RemoteError as error:
        if error.kind != "not-found":
            raise
        if session.name in begun_for:
            return -1  # the run had not come to this host yet
        raise UsageError(f"run {run} was not made for this host", where=session.name,
                         hint=f"leave it out: --limit {','.join(sorted(begun_for))}") from None  # fmt: skip
    past = past_runs.past_run(told)
    if past.state in ("damaged", "unreadable"):
        raise Damaged(f"run {run} cannot be resumed: {past.ended_as}", where=session.name,
                      hint=f"opsctl rollback {run} undoes what the journal still has")  # fmt: skip
    if past.outcome == "done":
        return _ALL_DONE
    if past.outcome == "rolled-back":
        raise UsageError(f"run {run} was rolled back: there is nothing to go on with", where=session.name)
    if past.undone or past.outcome == "rolled-back-partly":  # its checkpoint counts tasks that do not hold any more
        raise UsageError(f"run {run} was rolled back in part: it cannot be resumed", where=session.name,
                         hint=f"take back the rest with opsctl rollback {run}, and run it anew")  # fmt: skip
    kept = past.checkpoint
    if (kept.get("digest") or past.meta.get("digest")) != plan.playbook.digest:
        raise UsageError(f"run {run} was made with another version of this playbook", where=session.name,
                         hint=f"run it anew, or opsctl rollback {run}")  # fmt: skip
    if not session.resumed:
        session.go_on(stage.play.lock, users)
    if session.supervised:
        reply = session.wait(session.watched().send([core.supervise_follow(run)])[0], None)
        if reply.result["state"] == "reverted":
            raise Reverted.of(reply.result, session.name)
    play = kept.get("play", 0)
    session.registered.update(kept.get("registered", {}))
    session.measures.update(kept.get("measures", {}))
    session.notified[:] = kept.get("notified", [])
    session.left = set(kept.get("left", ())) if stage.index == play else set()
    session.seq = max([session.seq, *(step["seq"] for step in told["log"])])
    if not kept or stage.index > play:
        return -1
    return kept.get("done", -1) if stage.index == play else _ALL_DONE


def _confirm(plan: Plan, options: Options, ask: Ask) -> None:
    if options.check or options.yes:
        return
    for stage in plan.stages:
        question = stage.play.keys.confirm
        if question and stage.hosts:
            first = stage.hosts[0].name
            asked = templating.render(question, Scope(stage.layers[first]), stage.play.at / "confirm")
            if not ask(f"{asked} ({few([h.name for h in stage.hosts])})"):
                raise Declined("not confirmed: nothing was changed")


class Declined(OpsctlError):
    """The user has answered no."""

    exit_code = Exit.INTERRUPTED


def _meta(plan: Plan, options: Options) -> RunMeta:
    variables: dict[str, Any] = {}
    for stage in plan.stages:
        variables |= stage.given.values
    return {
        **holder(plan.run, plan.playbook.name),
        "found_by": find.word_for(plan.playbook.path),
        "digest": plan.playbook.digest,
        "vars": masking.data(masked(variables)),
        "version": __version__,
        "hosts": [host.name for host in plan.hosts],
        "inventory": plan.inventory,
    }
