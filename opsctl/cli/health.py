"""opsctl health: is this GPU host fit to serve, and if not, what exactly is wrong."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from opsctl.cli.options import HostOption, InventoryOption, JunitOption, OutputOption, SummaryOption
from opsctl.cli.reporting import Reporting, lost_hosts
from opsctl.cli.terminal import TERMINAL, tell_errors
from opsctl.errors import Exit, UsageError
from opsctl.secret import mask
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.cli.terminal import TERMINAL, tell_errors
    from opsctl.errors import Place
    from opsctl.gpu.checks.registry import Check
    from opsctl.gpu.explain import Explanation
    from opsctl.gpu.judge import HostReport, Result
    from opsctl.gpu.model import Evidence
    from opsctl.inventory import InventoryHost
    from opsctl.verbs.frontend import Done


class _Health(TyperGroup):
    """Lets `--capture` take several files: `--capture a b` is `--capture a --capture b`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, spread(args, "--capture"))


def spread(args: Sequence[str], option: str) -> list[str]:
    """`option` before each of the words that follow it, up to the next option."""
    found: list[str] = []
    taking = False
    for word in args:
        if word.startswith("-") and word != "-":
            taking = word == option
            if not taking:
                found.append(word)
        elif taking:
            found += [option, word]
        else:
            found.append(word)
    return found


_REMEMBERED = 5  # changes that --watch keeps on a terminal
_OF_THE_GPUS = ("driver.", "smi.", "gpu.count", "gpu.lost", "gpu.recovery", "pcie.", "ecc.")

app = typer.Typer(
    cls=_Health,
    add_completion=False,
    subcommand_metavar="[explain CHECK|XID]",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def health(
    context: typer.Context,
    capture: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE...", help="Judge these files instead of a host: nvidia-smi, kernel log, lspci, bundle."
        ),
    ] = None,
    inventory: InventoryOption = None,
    host: HostOption = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again, and say what changed.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", min=1, help="How often --watch looks.")] = 10.0,
    only: Annotated[str, typer.Option(metavar="CHECK,...", help="Run only these checks or families (klog).")] = "",
    skip: Annotated[str, typer.Option(metavar="CHECK,...", help="Leave these out.")] = "",
    json_output: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    output: OutputOption = "human",
    junit: JunitOption = None,
    summary: SummaryOption = None,
    active: Annotated[
        bool,
        typer.Option("--active", help="Load idle GPUs with the tests that are installed: nvbandwidth, NCCL, torch."),
    ] = False,
    record: Annotated[bool, typer.Option("--record", help="Print the profile of these GPUs.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show passed and skipped checks too.")] = False,
) -> None:
    """Is this GPU host fit to serve? Exit code 0 fit, 10 warnings, 11 a check failed, 14 not known."""
    if context.invoked_subcommand:
        return
    reporting = Reporting("health", output, junit, summary, json_output)
    with reporting.errors():
        evidence, done, reports = _judged(capture, inventory, host, only, skip, every if watch else None, active)
        if record:
            _print_profile(evidence, reports, json_output)
            raise typer.Exit(tell_errors(done))
    finish(reporting, reports, done, verbose=verbose)


@app.command()
def explain(topic: Annotated[str, typer.Argument(metavar="CHECK|XID")]) -> None:
    """What a check or an Xid means, its causes and remedies."""
    from opsctl.gpu.explain import explain as explanation_of

    _show_explanation(explanation_of(topic))


def _judged(
    capture: list[Path] | None,
    inventory: str | None,
    host: str | None,
    only: str,
    skip: str,
    every: float | None,
    active: bool,
) -> tuple[list[tuple[str, Evidence]], list[Done[Evidence]], list[HostReport]]:
    """What was seen, what came of each host of the inventory, and the reports. every: watch, in seconds."""
    from opsctl.gpu.judge import judge, selected

    checks = selected(_names(only), _names(skip))
    if capture and (host or inventory or every):
        raise UsageError("--capture judges files, not hosts", hint="leave out --host, --inventory and --watch")
    if active and (capture or every):
        raise UsageError("--active tests hosts, once", hint="leave out --capture and --watch")
    if capture:
        from opsctl.gpu.read.bundle import members
        from opsctl.gpu.read.capture import hosts
        from opsctl.gpu.settings import Settings

        evidence = hosts(members(capture))
        return evidence, [], [judge(name, one, Settings(), checks) for name, one in evidence]
    from opsctl.verbs import health as verb
    from opsctl.verbs.hosts import choose

    listed = choose(inventory, host)
    if every:
        _watch(listed, checks, every)
    done = verb.look(listed, TERMINAL, load=active)
    seen = [(one.host.name, one.value) for one in done if one.value is not None]
    return seen, done, verb.reports(done, checks)


def _watch(hosts: Sequence[InventoryHost], checks: Sequence[Check], every: float) -> None:
    """Look again and again until interrupted; on a terminal in place, and always saying what has changed."""
    from opsctl.report.health import changes, show
    from opsctl.verbs import health as verb

    last: list[HostReport] = []
    told: list[str] = []
    while True:
        done = verb.look(hosts, TERMINAL)
        found = verb.reports(done, checks)
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


def finish(reporting: Reporting, reports: list[HostReport], done: Sequence[Done[Evidence]], *, verbose: bool) -> None:
    """Tell the reports, and end with the exit code of the worst: a failed check, then a lost host."""
    from opsctl.gpu.health import findings
    from opsctl.gpu.model import Verdict, of_all
    from opsctl.report.health import show

    overall = of_all([r.verdict for r in reports])
    hosts = {one.host.name: one.host for one in done}
    unreached = [(one.host.name, one.error) for one in done if one.error]
    lost = next((error.exit_code for _, error in unreached), None)
    told = {Verdict.WARN: Exit.DEGRADED, Verdict.SKIP: Exit.UNKNOWN, Verdict.PASS: Exit.DONE}
    code = Exit.UNFIT if overall is Verdict.FAIL else lost or told[overall]

    def tell() -> None:
        if not reporting.as_json:
            show(reports, verbose=verbose, unreached=[(name, mask(error.message)) for name, error in unreached])
            return
        import json

        document: dict[str, Any] = {"verdict": overall.value, "hosts": [r.as_json() for r in reports]}
        if unreached:
            document["unreached"] = [{"host": name, "error": mask(str(error))} for name, error in unreached]
        typer.echo(json.dumps(document, indent=2))

    def blame(name: str, result: Result) -> Place | None:
        from opsctl.verbs.health import blamed

        return blamed(hosts[name], result) if name in hosts else None

    reporting.tell(lambda: [*lost_hosts(done), *findings(reports, blame)], code, tell)
    tell_errors(done)
    raise typer.Exit(code)


def _names(option: str) -> list[str]:
    return [name.strip() for name in option.split(",") if name.strip()]


def _print_profile(evidence: list[tuple[str, Evidence]], reports: list[HostReport], json_output: bool) -> None:
    """The profile as the inventory takes it, below `vars:` of the host. What is broken is not made the rule."""
    from opsctl.gpu.settings import record

    for report in reports:
        broken = [r for r in report.results if r.verdict.rank > 2 and r.check.startswith(_OF_THE_GPUS)]
        if broken:
            raise UsageError(
                f"not recorded: {broken[0].check} fails: {broken[0].found.evidence}",
                where=report.host,
                hint="a profile is what a healthy host looks like; settings alone can be written by hand",
            )
    readings = [(name, r) for name, e in evidence for r in e.readings if r.gpus]
    if len(readings) != 1 or readings[0][1].truncated or readings[0][1].partial:
        hint = "choose one with --host NAME, or one file of nvidia-smi -q -x with --capture"
        raise UsageError(f"a profile is recorded from one complete reading, and there are {len(readings)}", hint=hint)
    document = {"health": {"profile": record(readings[0][1].gpus, readings[0][1].driver).dump()}}
    if json_output:
        import json

        typer.echo(json.dumps(document, indent=2))
    else:
        import yaml

        typer.echo(f"# vars of {printable(readings[0][0])} in the inventory")
        typer.echo(yaml.safe_dump(document, sort_keys=False).rstrip())


def _show_explanation(found: Explanation) -> None:
    width = max((len(label) for label, _ in found.lines), default=0)
    typer.echo(found.topic)
    for label, text in found.lines:
        typer.echo(f"  {label:<{width}}  {text}")
