"""Health of the hosts of an inventory: one round trip each, side by side; and watching them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from opsctl.gpu import state, wanted
from opsctl.gpu.checks import active
from opsctl.gpu.checks.registry import checks
from opsctl.gpu.judge import HostReport, Result, judge
from opsctl.gpu.model import Evidence
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted

if TYPE_CHECKING:
    from opsctl.cli.hosts import Done
    from opsctl.errors import Place
    from opsctl.gpu.checks.registry import Check
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost


_OF_THE_SERVER = {"weights": "model_path"}  # where the section `sglang` has another name for it
_REMEMBERED = 5  # changes that --watch keeps on a terminal
_AT_ONCE = 128  # a host is asked once and then waited for: many waits fit side by side


def wanted_of(host: InventoryHost) -> Wanted:
    """What the inventory expects: the variable `health`, on top of what `sglang` says about the server."""
    where = host.said("vars", "health") or host.name
    return wanted.of(host.variables.get("health"), host.settings.sglang, where)


def on_host(remote: RemoteHost, host: InventoryHost) -> Evidence:
    expected = wanted_of(host)
    return gathered.look(lambda call: remote.call(call, timeout=expected.seconds), expected)


def under_load(remote: RemoteHost, host: InventoryHost) -> Evidence:
    """The same, and the tests that load the GPUs, when nothing uses them."""
    expected, found = wanted_of(host), on_host(remote, host)
    refused = active.refusal(found, expected.settings)
    if refused is None and expected.root != "/":
        refused = "the host is seen through another root: who uses its GPUs is not certain"
    if refused:
        return replace(found, active=active.not_run(refused))
    gpus = max(len(r.gpus) for r in found.readings)
    said = remote.call(active.ask(expected, gpus), timeout=active.longest(expected)).result
    return replace(found, active=active.runs(said))


def evidence_of(hosts: Sequence[InventoryHost], *, load: bool = False) -> list[Done[Evidence]]:
    from opsctl.cli.hosts import on_each

    for host in hosts:
        wanted_of(host)  # a mistake in the inventory is told before any host is touched
    return on_each(hosts, under_load if load else on_host, at_once=_AT_ONCE)


def reports(done: Iterable[Done[Evidence]], chosen: Sequence[Check]) -> list[HostReport]:
    """A report for each host that was reached, compared with the last look at it, which this one replaces."""
    found = []
    for one in done:
        if one.value is None:
            continue
        evidence = state.compared(one.host.name, one.value)
        found.append(judge(one.host.name, evidence, wanted_of(one.host).settings, chosen))
    return found


def blamed(host: InventoryHost, result: Result) -> Place | None:
    """The line of the inventory that the host was judged by: of the threshold, the profile or the server it says.

    The host's own line where the inventory says nothing of that.
    """
    other = {"fail": "warn", "warn": "fail"}.get(result.verdict.value)
    keys = [key for key in checks()[result.check].settings if key.rpartition(".")[2] != other]
    profile = wanted_of(host).settings.profile.dump()
    lines = [
        host.said("vars", "health", *key.split(".", 1)) or host.said("sglang", _OF_THE_SERVER.get(key, key))
        for key in keys
        if not key.startswith("profile.") or profile.get(key.partition(".")[2]) == result.found.expected
    ]
    return next(filter(None, lines), None) or host.place


def watch(hosts: Sequence[InventoryHost], chosen: Sequence[Check], every: float) -> None:
    """Look again and again until interrupted; on a terminal in place, and always saying what has changed."""
    import sys

    from opsctl.cli.hosts import tell_errors
    from opsctl.report.health import changes, show

    last: list[HostReport] = []
    told: list[str] = []
    while True:
        done = evidence_of(hosts)
        found = reports(done, chosen)
        if sys.stdout.isatty():
            typer.echo("\x1b[2J\x1b[H", nl=False)
        typer.echo(time.strftime("%H:%M:%S"))
        show(found)
        new = [f"{time.strftime('%H:%M:%S')} {line}" for line in changes(last, found)]
        told = (told + new)[-_REMEMBERED:]
        for line in told if sys.stdout.isatty() else new:
            typer.echo(line)
        tell_errors(done)
        last = found
        time.sleep(every)
