"""Measuring how well a server speculates: at an address or on a host, and once more without speculation.

The restart without speculation is a supervised change that is never confirmed. Whatever happens to us, the host puts
back what was there: at once when we ask for it, else when the time to confirm is over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import OpsctlError, RemoteError, UsageError
from opsctl.sglang.probe import gates, ledger
from opsctl.sglang.probe.chat_template import ChatTemplate, read_template
from opsctl.sglang.probe.measure import Plan, Progress, measure
from opsctl.sglang.probe.on_host import Probed, Process, concluded, process_on, reader, template_of
from opsctl.sglang.probe.probe_result import Baseline
from opsctl.verbs.frontend import SILENT, Frontend
from opsctl.verbs.hosts import choose_one, on_one

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.modules.contract import Change, Site
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.server.api import Server
    from opsctl.sglang.server.served import ServerInfo
    from opsctl.wire.protocol import Call

_TASK = "Serve without speculation, to measure it"
_MEASURING = 1800.0  # seconds after which the host stops waiting for us, and puts everything back
_READY = 1200.0


@dataclass(frozen=True, slots=True)
class Where:
    """Which server: at an address, or on a host of the inventory. key: API key, where the inventory has none."""

    url: str | None = None
    inventory: str | None = None
    host: str | None = None
    port: int | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a probe. run: what it is kept as, None where it could not be kept."""

    name: str
    host: InventoryHost | None
    probed: Probed
    gates: tuple[gates.Outcome, ...]
    run: str | None

    @property
    def holds(self) -> bool:
        """Whether every gate holds."""
        return all(gate.holds for gate in self.gates)


def probe(
    where: Where,
    plan: Plan,
    *,
    wanted: Sequence[gates.Gate] = (),
    baseline: Baseline | None = None,
    template: Path | None = None,
    compare: bool = False,
    yes: bool = False,
    front: Frontend = SILENT,
) -> Outcome | None:
    """Measure a server, and keep the result.

    Args:
        wanted: gates to judge the result by.
        baseline: its speed without speculation, where that is known.
        template: folder of the model here, for a server that does not render messages.
        compare: restart it without speculation, measure that too, and put it back; asks first, unless `yes`.

    Returns None where a person did not consent. Raises UsageError, Unreachable, RemoteError.
    """
    if compare and where.url is not None:
        raise UsageError("--ab restarts the server, which an address alone does not allow", hint="give --host NAME")
    if compare and baseline is not None:
        raise UsageError("--baseline and --ab both give the baseline", hint="leave one out")
    with _reached(where, max(plan.concurrency), front) as reached:

        def told(p: Progress) -> None:
            text = f"{p.done}/{p.of} answers, {p.concurrency} at a time, {p.verify_steps} verify steps"
            front.progress(reached.name, text, p.done / p.of if p.of else None)

        info = reached.server.info()
        rendered = _given(template) if template else template_of(info, reached.read)
        if compare and not _consents(info, reached.name, front, yes=yes):
            return None
        measured = measure(reached.server, info, plan, rendered, told)
        if compare:
            with _without_speculation(reached, front) as plain:
                baseline = _baseline(plain, plan, rendered, reached.name, told, front)
    probed = concluded(measured, reached.name, reached.process, baseline, with_key=reached.with_key)
    judged = gates.judge(wanted, probed.result)
    probed.result["gates"] = [{"gate": str(o.gate), "value": o.value, "holds": o.holds} for o in judged]
    return Outcome(reached.name, reached.host, probed, tuple(judged), _kept(probed.result, reached.name, front))


def known_baseline(text: str) -> Baseline:
    """A baseline by the run of a probe without speculation, its file, or a number of tokens/s. Raises UsageError."""
    if re.fullmatch(r"\d+(\.\d+)?", text) and not Path(text).exists() and float(text) < 1e6:
        if float(text) == 0:
            raise UsageError("a baseline of 0 tokens/s", where="--baseline")
        return Baseline(float(text))
    result = ledger.load(text)
    if result["accept_length"] is not None:
        raise UsageError(
            f"{text} was measured with speculation", where="--baseline", hint="name a probe of a server without it"
        )
    first: dict[str, Any] = next(iter(result["throughput"].values()), {})
    if not first.get("per_request"):
        raise UsageError(f"{text} holds no tokens/s", where="--baseline")
    return Baseline(first["per_request"], tuple(result.get("outputs", {}).items()))


@dataclass(frozen=True, slots=True)
class _Reached:
    """A server, and how to read a file beside it.

    Attributes:
        name: what its results are kept under.
        process: what its host tells of it.
        host, remote: the host it was reached on; None at an address.
    """

    name: str
    server: Server
    read: Callable[[str], str | None]
    with_key: bool
    process: Process = field(default_factory=Process)
    host: InventoryHost | None = None
    remote: RemoteHost | None = None


@contextmanager
def _reached(where: Where, at_once: int, front: Frontend) -> Iterator[_Reached]:
    from opsctl import http_client
    from opsctl.secret import Secret
    from opsctl.sglang.diagnosis import gather
    from opsctl.sglang.server.api import Server
    from opsctl.wire.calls.server import servers_find

    secret = Secret(where.key) if where.key else None
    if where.url is not None:
        if not _is_address(where.url):
            raise UsageError(
                f"not an address of a server: {where.url!r}", where="--url", hint="such as http://127.0.0.1:30000"
            )
        with http_client.client(where.url, connections=at_once + 1) as http:
            yield _Reached(where.url.split("://")[-1], Server(http, secret), _read_here, secret is not None)
        return
    chosen = choose_one(where.inventory, where.host)
    with on_one(chosen, front) as remote:
        running = gather.choose(remote.call(servers_find()).result, where.port, chosen.sglang.port)
        if running is None and where.port is None:
            raise UsageError("no SGLang server runs there", where=chosen.name, hint="`opsctl server start` starts one")
        port = where.port or gather.port_of(running) if running else where.port or chosen.sglang.port
        key = secret or chosen.sglang.api_key
        with remote.http(port) as http:
            server = Server(http, key)
            yield _Reached(
                chosen.name, server, reader(remote), key is not None, process_on(remote, port), chosen, remote
            )


def _is_address(url: str) -> bool:
    import httpx

    try:
        return bool(re.match(r"https?://[^/\s]+", url)) and bool(httpx.URL(url).host)
    except httpx.InvalidURL:
        return False


def _read_here(path: str) -> str | None:
    place = Path(path)
    return place.read_text(encoding="utf-8", errors="replace") if place.is_file() else None


def _given(folder: Path) -> ChatTemplate:
    found = read_template(lambda name: _read_here(str(folder / name)))
    if not found:
        raise UsageError(f"no chat template in {folder}", where="--chat-template")
    return found


def _kept(result: dict[str, Any], name: str, front: Frontend) -> str | None:
    try:
        return ledger.keep(result, name)
    except OSError as error:  # the figures are worth more than keeping them
        front.say(f"warning: the result could not be kept: {error}")
        return None


def _consents(info: ServerInfo, name: str, front: Frontend, *, yes: bool) -> bool:
    """Ask before the server is taken away from others. Raises UsageError where there is nothing to compare."""
    if not info.speculative_algorithm:
        raise UsageError("the server runs without speculation: there is nothing to compare", where=name)
    question = f"Restart the server of {name} twice, first without speculation, then as it is now?"
    return yes or front.ask(question)


@contextmanager
def _without_speculation(reached: _Reached, front: Frontend) -> Iterator[Server]:
    """The server without speculation; at the end the host puts the one from before back. Raises OpsctlError."""
    from opsctl import runname
    from opsctl.engine import hostlock
    from opsctl.remote import steps
    from opsctl.sglang.server.api import Server
    from opsctl.wire.calls import core
    from opsctl.wire.calls.core import RunMeta

    host, remote = reached.host, reached.remote
    assert host is not None
    assert remote is not None

    def told(data: Any, body: bytes) -> None:
        inner = data.get("data") if isinstance(data, dict) else None
        if isinstance(inner, dict) and "text" in inner:
            front.progress(host.name, str(inner["text"]), None)

    run = runname.new()
    doing = "probe --ab"
    with hostlock.held(host, [remote], run, doing):
        change = _change(host, remote)
        meta: RunMeta = {**hostlock.holder(run, doing), "vars": {}}
        remote.call(core.journal_begin(run, meta), timeout=60)
        supervised = steps.supervise(run, 1, _TASK, change.calls, change.undo, change.settle, _MEASURING)
        started = remote.call(supervised, on_progress=told).result
        if started["state"] == "reverted":
            why = started["error"]["message"] if started["error"] else started["why"]
            raise RemoteError(f"it does not serve without speculation, and was put back: {why}", where=host.name)
        try:
            with remote.http(host.sglang.port) as http:
                yield Server(http, host.sglang.api_key)
        finally:
            _put_back(remote, host.name, core.supervise_revert(run), told, front)


def _baseline(
    server: Server,
    plan: Plan,
    template: ChatTemplate | None,
    name: str,
    told: Callable[[Progress], None],
    front: Frontend,
) -> Baseline:
    """Measure a server without speculation at the plan's first concurrency; the result is kept like any other."""
    measured = measure(server, server.info(), replace(plan, concurrency=plan.concurrency[:1]), template, told)
    result = concluded(measured, name, Process(), with_key=False).result | {"findings": []}
    levels: dict[str, Any] = result["throughput"]
    speed = next((level["per_request"] for level in levels.values()), None)
    if result["accept_length"] is not None or not speed:
        raise RemoteError("the server that was started without speculation gave no tokens/s", where=name)
    if run := _kept(result, name, front):
        front.say(f"baseline kept as run {run}")
    return Baseline(speed, tuple(result.get("outputs", {}).items()))


def _change(host: InventoryHost, remote: RemoteHost) -> Change:
    from opsctl.modules.server_kinds.base import ServerArgs
    from opsctl.modules.sglang_server import SglangServer

    # One that opsctl did not start is taken over for the time: what is put back is that one, to the letter.
    args = ServerArgs(speculation=False, adopt=True, ready_timeout=_READY)
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


def _put_back(
    remote: RemoteHost, name: str, revert: Call[Any], told: Callable[[Any, bytes], None], front: Frontend
) -> None:
    from opsctl.engine import past_runs

    front.say(f"{name}: putting the server back")
    try:
        report = past_runs.report(remote.call(revert, timeout=_READY + 300, on_progress=told).result)
    except OpsctlError as error:
        error.hint = error.hint or "the host puts the server back by itself when its time is over; see opsctl history"
        raise
    if not report.whole:
        for step in report.steps:
            front.say(f"{name}: {step.status}: {step.task}: {step.message}")
        raise RemoteError("the server was not put back as it was", where=name, hint="opsctl rollback --host " + name)
