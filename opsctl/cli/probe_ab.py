"""`opsctl probe --ab`: the same server without speculation, for as long as it takes to measure it.

The restart is a supervised change that is never confirmed. Whatever happens to us, the host puts back what was there:
at once when we ask for it, else when the time to confirm is over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from opsctl.errors import Exit, OpsctlError, RemoteError, UsageError
from opsctl.text import one_line

if TYPE_CHECKING:
    from opsctl.cli.probe_target import Reached
    from opsctl.inventory import InventoryHost
    from opsctl.modules.contract import Change, Site
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.probe.chat_template import ChatTemplate
    from opsctl.sglang.probe.measure import Plan, Progress
    from opsctl.sglang.probe.probe_result import Baseline
    from opsctl.sglang.server.api import Server
    from opsctl.sglang.server.served import ServerInfo
    from opsctl.wire.protocol import Call

TASK = "Serve without speculation, to measure it"
MEASURING = 1800.0  # seconds after which the host stops waiting for us, and puts everything back
READY = 1200.0


def check(url: str | None, baseline: str | None) -> None:
    """Raises UsageError where a server cannot be restarted, or need not be."""
    if url is not None:
        raise UsageError("--ab restarts the server, which an address alone does not allow", hint="give --host NAME")
    if baseline is not None:
        raise UsageError("--baseline and --ab both give the baseline", hint="leave one out")


def consent(info: ServerInfo, name: str, *, yes: bool) -> None:
    """Ask before the server is taken away from others. Raises UsageError where there is nothing to compare."""
    from opsctl.cli.playing import ask

    if not info.speculative_algorithm:
        raise UsageError("the server runs without speculation: there is nothing to compare", where=name)
    question = f"Restart the server of {name} twice, first without speculation, then as it is now?"
    if not yes and not ask(question):
        raise typer.Exit(Exit.INTERRUPTED)


@contextmanager
def without_speculation(reached: Reached) -> Iterator[Server]:
    """The server without speculation; at the end the host puts the one from before back. Raises OpsctlError."""
    from opsctl import runname
    from opsctl.engine import hostlock
    from opsctl.remote import steps
    from opsctl.sglang.server.api import Server
    from opsctl.wire.calls import core
    from opsctl.wire.calls.core import RunMeta, Supervised

    host, remote = reached.host, reached.remote
    assert host is not None
    assert remote is not None
    run = runname.new()
    doing = "probe --ab"
    with hostlock.held(host, [remote], run, doing):
        change = _change(host, remote)
        meta: RunMeta = {**hostlock.holder(run, doing), "vars": {}}
        remote.call(core.journal_begin(run, meta), timeout=60)
        started: Supervised = remote.call(
            steps.supervise(run, 1, TASK, change.calls, change.undo, change.settle, MEASURING), on_progress=_telling()
        ).result
        if started["state"] == "reverted":
            why = started["error"]["message"] if started["error"] else started["why"]
            raise RemoteError(f"it does not serve without speculation, and was put back: {why}", where=host.name)
        try:
            with remote.http(host.sglang.port) as http:
                yield Server(http, host.sglang.api_key)
        finally:
            _put_back(remote, host.name, core.supervise_revert(run))


def baseline(
    server: Server,
    plan: Plan,
    template: ChatTemplate | None,
    name: str,
    told: Callable[[Progress], None] | None,
) -> Baseline:
    """Measure a server without speculation at the plan's first concurrency; the result is kept like any other."""
    from dataclasses import replace

    from opsctl.sglang.probe import probe_store
    from opsctl.sglang.probe.measure import measure
    from opsctl.sglang.probe.probe_result import Baseline, summarise, to_json

    measured = measure(server, server.info(), replace(plan, concurrency=plan.concurrency[:1]), template, told)
    result = to_json(measured, summarise(measured)) | {"target": name, "findings": []}
    levels: dict[str, Any] = result["throughput"]
    speed = next((level["per_request"] for level in levels.values()), None)
    if result["accept_length"] is not None or not speed:
        raise RemoteError("the server that was started without speculation gave no tokens/s", where=name)
    try:
        typer.echo(f"baseline kept as run {probe_store.keep(result, name)}", err=True)
    except OSError as error:
        typer.echo(f"warning: the baseline could not be kept: {error}", err=True)
    return Baseline(speed, tuple(result.get("outputs", {}).items()))


def _change(host: InventoryHost, remote: RemoteHost) -> Change:
    from opsctl.modules.server_kinds.base import ServerArgs
    from opsctl.modules.sglang_server import SglangServer

    # One that opsctl did not start is taken over for the time: what is put back is that one, to the letter.
    args = ServerArgs(speculation=False, adopt=True, ready_timeout=READY)
    module, site = SglangServer(), _site(host)
    change = module.plan(args, remote.batch(module.observe(args, site), timeout=60), site)
    if change is None:
        raise UsageError("the server runs without speculation already", where=host.name)
    return change


def _site(host: InventoryHost) -> Site:
    from opsctl.engine import find
    from opsctl.modules.contract import Site

    def unused(*text: str) -> Any:
        raise AssertionError("the module of the server renders its own templates")

    here = Path("playbooks") / "probe-ab.yaml"  # the project's templates win here, too
    return Site(host.name, host.variables, lambda kind, path: find.file(kind, path, here), unused, unused)


def _put_back(remote: RemoteHost, name: str, revert: Call[Any]) -> None:
    from opsctl.cli.rollback import tell_report
    from opsctl.engine import past_runs

    typer.echo(f"{name}: putting the server back", err=True)
    try:
        report = past_runs.report(remote.call(revert, timeout=READY + 300, on_progress=_telling()).result)
    except OpsctlError as error:
        error.hint = error.hint or "the host puts the server back by itself when its time is over; see opsctl history"
        raise
    if not report.whole:
        tell_report(name, report, err=True)
        raise RemoteError("the server was not put back as it was", where=name, hint="opsctl rollback --host " + name)


def _telling() -> Callable[[Any, bytes], None]:
    """What the host is at, on stderr where somebody watches."""
    live = sys.stderr.isatty()

    def tell(data: Any, body: bytes) -> None:
        inner = data.get("data") if isinstance(data, dict) else None
        if live and isinstance(inner, dict) and "text" in inner:
            typer.echo(f"\r\x1b[K{one_line(str(inner['text']), 150)}", err=True, nl=False)

    return tell
