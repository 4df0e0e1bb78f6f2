"""Leftovers of our own servers: found with the proof that they are ours, and removed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opsctl.errors import UsageError
from opsctl.verbs.frontend import SILENT, Done, Frontend
from opsctl.verbs.health import expected
from opsctl.verbs.hosts import on_each

if TYPE_CHECKING:
    from opsctl.gpu.cleaning import Findings
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.wire.calls.gpu import Done as Removed
    from opsctl.wire.protocol import Call


def find(hosts: Sequence[InventoryHost], front: Frontend = SILENT) -> list[Done[Findings]]:
    """What is left over on each host, and what holds GPU memory there."""
    return on_each(hosts, _find, front)


def remove(hosts: Sequence[InventoryHost], front: Frontend = SILENT) -> list[Done[list[Removed]]]:
    """Remove what is ours on each host. That is decided anew: since it was listed, things may have changed."""
    return on_each(hosts, _remove, front)


def _find(remote: RemoteHost, host: InventoryHost) -> Findings:
    from opsctl.gpu import cleaning
    from opsctl.gpu.read import gathered
    from opsctl.wire.calls.gpu import gpuclean_files

    wanted = expected(host)
    calls: list[Call[Any]] = [gathered.ask(wanted), gpuclean_files(wanted.root)]
    found, files = remote.batch(calls, timeout=wanted.seconds)
    return cleaning.findings(gathered.evidence(found.result, wanted), files.result, found.result.get("server_uid"))


def _remove(remote: RemoteHost, host: InventoryHost) -> list[Removed]:
    from opsctl.gpu import cleaning

    if expected(host).root != "/":
        raise UsageError(
            "leftovers seen through another root are listed, not removed", hint="run it on the host itself"
        )
    found = _find(remote, host)
    call = cleaning.removal(found, found.removable_processes, found.removable_files)
    told: list[Removed] = remote.call(call, timeout=90.0).result["done"]
    return told
