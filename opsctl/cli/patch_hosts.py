"""What `opsctl patch sglang` does on hosts besides applying: telling the status, and finding what to take back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from opsctl.cli.hosts import on_each, tell_errors
from opsctl.errors import Exit
from opsctl.sglang.patches import patching, patchset
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.engine.past_runs import PastRun
    from opsctl.engine.past_runs import Report as UndoReport
    from opsctl.inventory import InventoryHost
    from opsctl.patchfiles import Diff
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.patches import Patch
    from opsctl.sglang.patches.own import EndState
    from opsctl.sglang.patches.patching import Looked
    from opsctl.sglang.patches.patchset import Report

PLAYBOOK = "patch-sglang"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for: names of patches, the tree, the target's class, and the project's own patches."""

    names: tuple[str, ...]
    tree: str | None
    target: str | None
    states: tuple[EndState, ...] = ()
    diffs: tuple[Diff, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """How a host's tree stands."""

    host: str
    looked: Looked
    report: Report
    diff: str

    def to_json(self) -> dict[str, Any]:
        servers = [
            {
                "pid": r.pid, "port": r.port, "package": r.package, "old_code": r.old_code,
                "this_tree": r.package == self.looked.package,
            }
            for r in self.looked.running
        ]  # fmt: skip
        served = {"imported": self.looked.imported, "serves_this_tree": _served(self.looked), "servers": servers}
        return {**self.report.to_json(), "host": self.host, **served}


def status(remote: RemoteHost, host: InventoryHost, wanted: Wanted) -> Status:
    """Look at a host's tree. One round trip; two where the project's own diffs are to be tried."""
    place = patching.place(host.sglang, wanted.tree)
    looked = patching.received(
        remote.call(patching.request(place, wanted.names, wanted.target, patchset.files(wanted.states)), timeout=120)
    )
    diffs = wanted.diffs
    names = [name for name in wanted.names if name not in {diff.name for diff in diffs}]
    chosen: tuple[Patch, ...] = ()
    if names or not wanted.names:
        chosen = patching.chosen(looked.tree, names, looked.architectures, wanted.states, wanted.target, looked.drafter)
    entries: tuple[patchset.Entry, ...] = ()
    changes: tuple[patchset.FileEdit, ...] = ()
    if diffs:
        tried = remote.call(patching.trying(looked.tree.root, [diff.text for diff in diffs]), timeout=120)
        entries, changes = patching.tried([diff.name for diff in diffs], tried)
    plan = patching.plan(looked.tree, chosen, entries, changes)
    return Status(host.name, looked, plan.report, plan.diff())


def lines(status: Status) -> Iterator[str]:
    """What runs, and whether it is this tree."""
    looked = status.looked
    if looked.elsewhere:
        yield f"served is another tree: the server imports {looked.imported}"
        yield f"  → opsctl patch sglang --tree {looked.imported}"
    for running in looked.running:
        if running.package == looked.package:
            code = f"OLD CODE: {running.newest_file} was changed after its start" if running.old_code else "this code"
            yield f"server pid {running.pid} on port {running.port} runs {code}"


def _served(looked: Looked) -> bool | None:
    return None if looked.imported is None else not looked.elsewhere


def runs_to_undo(remote: RemoteHost, tree: str | None) -> list[PastRun]:
    """The runs of `opsctl patch sglang` on this tree of a host that stand, the newest first."""
    from opsctl.engine.past_runs import past_runs
    from opsctl.wire.calls import core

    runs = past_runs(remote.call(core.history_list(100), timeout=60))
    ours = (run for run in runs if run.playbook == PLAYBOOK and (run.meta.get("vars") or {}).get("checkout") == tree)
    return [run for run in ours if run.outcome != "rolled-back" and run.steps > run.undone]


def undo_runs(hosts: Sequence[InventoryHost], tree: str | None, *, check: bool, err: bool) -> Exit:
    """Roll back what `patch sglang` did on hosts, pins and saved changes too; in check mode only say so."""
    from opsctl.cli.rollback import tell_report
    from opsctl.engine.undo import looked_up, undo_all

    def undo(remote: RemoteHost, host: InventoryHost) -> list[tuple[PastRun, UndoReport | None]]:
        def told(text: str) -> None:
            typer.echo(printable(f"{host.name}: {text}"), err=True)

        runs = runs_to_undo(remote, tree)
        return [(run, None if check else undo_all(host, looked_up(remote, run.run), told)) for run in runs]

    done = on_each(hosts, undo)
    codes = [tell_errors(done)]
    for one in done:
        for run, report in one.value or ():
            if report is None:
                typer.echo(printable(f"{one.host.name}: would undo run {run.run}"), err=err)
            else:
                codes.append(tell_report(one.host.name, report, err=err))
    return next((code for code in codes if code is not Exit.DONE), Exit.DONE)


def own_patches(folder: Path | None, names: Sequence[str]) -> tuple[tuple[EndState, ...], tuple[Diff, ...]]:
    """The project's own patches, of those that are named, or all. Raises UsageError for a name that no patch has."""
    states: tuple[EndState, ...] = ()
    diffs: tuple[Diff, ...] = ()
    if folder is not None:
        from opsctl import patchfiles

        found = patchfiles.read(folder)
        states, diffs = found.states, found.diffs
    mine = {*(s.name for s in states), *(d.name for d in diffs), patchset.CAPTURE}
    for name in names:
        if name not in mine:
            patchset.select([name])
    if not names:
        return states, diffs
    return tuple(s for s in states if s.name in names), tuple(d for d in diffs if d.name in names)
