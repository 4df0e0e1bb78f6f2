"""Health of the hosts of an inventory: one round trip each, side by side; and watching them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import typer

from opsctl.gpu import gathered, state, wanted
from opsctl.gpu.judge import HostReport, judge
from opsctl.gpu.model import Evidence, State
from opsctl.gpu.wanted import Wanted

if TYPE_CHECKING:
    from opsctl.agent.protocol import Call, Reply
    from opsctl.cli.hosts import Done
    from opsctl.gpu.checks.registry import Check
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost

MARGIN = 30.0  # seconds beyond the agent's own limits before the connection is given up
Reader = Callable[["Call"], "Reply"]


def wanted_of(host: InventoryHost) -> Wanted:
    """What the inventory expects: the variable `health`, on top of what `sglang` says about the server."""
    served = host.sglang
    known: dict[str, Any] = {}
    if host.settings.sglang is not None:
        known = {"port": served.port, "unit": served.unit, "user_unit": served.unit_scope == "user"}
        known["container"] = served.container
        if served.model_path and served.model_path.startswith("/"):
            known["weights"] = served.model_path
        logs = [str(PurePosixPath(served.log).parent)] if served.log else []
        weights = [served.weights_root] if served.weights_root else []
        known["folders"] = ["/", "/tmp", *logs, *weights]
    return wanted.load({**known, **(host.variables.get("health") or {})}, host.name)


def look(ask: Reader, expected: Wanted) -> Evidence:
    """One round trip; the host's clock is compared with the middle of it."""
    before = time.time()
    found = ask(gathered.ask(expected)).result
    took = found.get("seconds", 0.0)
    now = (found.get("host") or {}).get("now")
    # `now` is read at the start of the gathering: half of what is left of the round trip came before it.
    travel = max(0.0, time.time() - before - took) / 2
    offset = None if now is None else now - before - travel
    # Less than the trip itself cannot be told from delay.
    if offset is not None and abs(offset) <= travel:
        offset = 0.0
    return gathered.evidence(found, expected, offset=offset)


def on_host(remote: RemoteHost, host: InventoryHost) -> Evidence:
    expected = wanted_of(host)
    timeout = max(expected.smi_seconds, 35.0) + MARGIN
    return look(lambda call: remote.call(call, timeout=timeout), expected)


def evidence_of(hosts: Sequence[InventoryHost]) -> list[Done[Evidence]]:
    from opsctl.cli.hosts import on_each

    for host in hosts:
        wanted_of(host)  # a mistake in the inventory is told before any host is touched
    return on_each(hosts, on_host)


def reports(done: Iterable[Done[Evidence]], checks: Sequence[Check], before: dict[str, State]) -> list[HostReport]:
    """A report for each host that was reached."""
    return [
        judge(one.host.name, replace(one.value, before=before.get(one.host.name)), wanted_of(one.host).settings, checks)
        for one in done
        if one.value is not None
    ]


def watch(hosts: Sequence[InventoryHost], checks: Sequence[Check], every: float) -> None:
    """Look again and again until interrupted; on a terminal in place, and always saying what has changed."""
    import sys

    from opsctl.cli.hosts import tell_errors
    from opsctl.report.health import changes, show

    earlier: dict[str, State] = {}
    last: list[HostReport] = []
    while True:
        done = evidence_of(hosts)
        found = reports(done, checks, earlier)
        earlier |= {one.host.name: state.now(one.value) for one in done if one.value is not None}
        if sys.stdout.isatty():
            typer.echo("\x1b[2J\x1b[H", nl=False)
        typer.echo(time.strftime("%H:%M:%S"))
        show(found)
        for line in changes(last, found):
            typer.echo(line)
        tell_errors(done)
        last = found
        time.sleep(every)
