"""How the SGLang source of hosts stands to the patches, and taking patches back. Applying them is a playbook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.verbs.frontend import SILENT, Done, Frontend
from opsctl.verbs.hosts import on_each
from opsctl.verbs.runs import past_runs, undo_on

if TYPE_CHECKING:
    from opsctl.engine.past_runs import PastRun, Report
    from opsctl.inventory import InventoryHost
    from opsctl.patchfiles import Diff
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.patches import Patch, patchset
    from opsctl.sglang.patches.own import EndState
    from opsctl.sglang.patches.patching import Looked

PLAYBOOK = "patch-sglang"


@dataclass(frozen=True, slots=True)
class Status:
    """How a host's tree stands."""

    host: str
    looked: Looked
    report: patchset.Report
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


def status(
    hosts: Sequence[InventoryHost],
    names: Sequence[str] = (),
    *,
    tree: str | None = None,
    target: str | None = None,
    own: Path | None = None,
    front: Frontend = SILENT,
) -> list[Done[Status]]:
    """How the tree of each host stands. One round trip; two where the project's own diffs are to be tried.

    Args:
        names: of patches; () for all that apply.
        tree: the tree on the hosts, where it is not their checkout.
        target: only what a target model of this class needs.
        own: folder with the project's own patches.

    Raises UsageError before any host is touched.
    """
    from concurrent.futures import ThreadPoolExecutor

    # What judges the source is loaded while the first packets travel.
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(own_patches, own, names)
        if names or own:
            loading.result()  # a mistake is told before any host is touched
        return on_each(hosts, lambda remote, host: _status(remote, host, names, tree, target, *loading.result()), front)


def _status(
    remote: RemoteHost,
    host: InventoryHost,
    wanted: Sequence[str],
    tree: str | None,
    target: str | None,
    states: tuple[EndState, ...],
    diffs: tuple[Diff, ...],
) -> Status:
    from opsctl.sglang.patches import patching, patchset

    place = patching.place(host.sglang, tree)
    asked = patching.request(place, tuple(wanted), target, patchset.files(states))
    looked = patching.received(remote.call(asked, timeout=120))
    names = [name for name in wanted if name not in {diff.name for diff in diffs}]
    chosen: tuple[Patch, ...] = ()
    if names or not wanted:
        chosen = patching.chosen(looked.tree, names, looked.architectures, states, target, looked.drafter)
    entries: tuple[patchset.Entry, ...] = ()
    changes: tuple[patchset.FileEdit, ...] = ()
    if diffs:
        tried = remote.call(patching.trying(looked.tree.root, [diff.text for diff in diffs]), timeout=120)
        entries, changes = patching.tried([diff.name for diff in diffs], tried)
    plan = patching.plan(looked.tree, chosen, entries, changes)
    return Status(host.name, looked, plan.report, plan.diff())


def _served(looked: Looked) -> bool | None:
    return None if looked.imported is None else not looked.elsewhere


def undo(
    hosts: Sequence[InventoryHost], tree: str | None, front: Frontend = SILENT, *, check: bool
) -> list[Done[list[tuple[PastRun, Report | None]]]]:
    """Take back what `patch sglang` did on this tree of hosts, pins and saved changes too, the newest run first.

    check: only say which runs; there is no report of what was undone then.
    """
    from opsctl.engine.undo import looked_up

    def work(remote: RemoteHost, host: InventoryHost) -> list[tuple[PastRun, Report | None]]:
        ours = (run for run in past_runs(remote) if run.playbook == PLAYBOOK and _of_tree(run, tree))
        left = [run for run in ours if run.outcome != "rolled-back" and run.steps > run.undone]
        return [(run, None if check else undo_on(host, looked_up(remote, run.run), front)) for run in left]

    return on_each(hosts, work, front)


def _of_tree(run: PastRun, tree: str | None) -> bool:
    return bool((run.meta.get("vars") or {}).get("checkout") == tree)


def own_patches(folder: Path | None, names: Sequence[str]) -> tuple[tuple[EndState, ...], tuple[Diff, ...]]:
    """The project's own patches, of those that are named, or all. Raises UsageError for a name that no patch has."""
    from opsctl.sglang.patches import patching, patchset  # noqa: F401  both are needed when the answer comes

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
