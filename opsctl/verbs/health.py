"""Health of the hosts of an inventory: one round trip each, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from opsctl.gpu import health, wanted
from opsctl.gpu.checks.registry import checks
from opsctl.gpu.judge import HostReport, Result
from opsctl.gpu.model import Evidence
from opsctl.gpu.wanted import Wanted
from opsctl.verbs.frontend import SILENT, Done, Frontend
from opsctl.verbs.hosts import on_each

if TYPE_CHECKING:
    from opsctl.errors import Place
    from opsctl.gpu.checks.registry import Check
    from opsctl.inventory import InventoryHost

_OF_THE_SERVER = {"weights": "model_path"}  # where the section `sglang` has another name for it
_AT_ONCE = 128  # a host is asked once and then waited for: many waits fit side by side


def expected(host: InventoryHost) -> Wanted:
    """What the inventory expects: the variable `health`, on top of what `sglang` says about the server.

    Raises UsageError.
    """
    where = host.said("vars", "health") or host.name
    return wanted.of(host.variables.get("health"), host.settings.sglang, where)


def look(hosts: Sequence[InventoryHost], front: Frontend = SILENT, *, load: bool = False) -> list[Done[Evidence]]:
    """What is seen of each host. load: also load idle GPUs with the tests that are installed.

    Raises UsageError for a mistake in the inventory before any host is touched.
    """
    for host in hosts:
        expected(host)
    return on_each(hosts, lambda remote, one: health.look(remote, expected(one), load=load), front, at_once=_AT_ONCE)


def reports(done: Iterable[Done[Evidence]], chosen: Sequence[Check] | None = None) -> list[HostReport]:
    """A report for each host that was reached, compared with the last look at it, which this one replaces."""
    return [
        health.report(one.host.name, one.value, expected(one.host), chosen) for one in done if one.value is not None
    ]


def blamed(host: InventoryHost, result: Result) -> Place | None:
    """The line of the inventory that the host was judged by: of the threshold, the profile or the server it says.

    The host's own line where the inventory says nothing of that.
    """
    other = {"fail": "warn", "warn": "fail"}.get(result.verdict.value)
    keys = [key for key in checks()[result.check].settings if key.rpartition(".")[2] != other]
    profile = expected(host).settings.profile.dump()
    lines = [
        host.said("vars", "health", *key.split(".", 1)) or host.said("sglang", _OF_THE_SERVER.get(key, key))
        for key in keys
        if not key.startswith("profile.") or profile.get(key.partition(".")[2]) == result.found.expected
    ]
    return next(filter(None, lines), None) or host.place
