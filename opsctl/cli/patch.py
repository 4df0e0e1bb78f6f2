"""opsctl patch: the state EAGLE-3 needs of an SGLang source tree."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.options import As, Asked, JunitOption, OutputOption, SummaryOption, runs
from opsctl.cli.playing import play
from opsctl.cli.reporting import Reporting, lost_hosts
from opsctl.cli.terminal import TERMINAL, tell_errors
from opsctl.errors import Exit, UsageError
from opsctl.text import printable
from opsctl.verbs import patch as verb
from opsctl.verbs.hosts import choose

if TYPE_CHECKING:
    from opsctl.findings import Finding
    from opsctl.inventory import InventoryHost
    from opsctl.sglang.patches.patchset import Report
    from opsctl.verbs.frontend import Done
    from opsctl.verbs.patch import Status

app = typer.Typer(no_args_is_help=True)

_OWN = typer.Option("--own", metavar="FOLDER", help="Also the project's patches in this folder.")
_JSON = typer.Option("--json", help="One JSON object on standard output.")
_MARKS = {"upstream": "·", "applied": "✓", "needed": "→", "conflict": "✗", "not-applicable": "-"}


@app.command()
def check(
    tree: Annotated[Path, typer.Option(help="Root of an SGLang checkout, or the folder that contains sglang/.")],
    for_target: Annotated[
        str | None, typer.Option("--for-target", metavar="CLASS", help="Only what this target model class needs.")
    ] = None,
    patches: Annotated[list[str] | None, typer.Option("--patch", help="Only this patch; may be repeated.")] = None,
    own: Annotated[Path | None, _OWN] = None,
    as_json: Annotated[bool, _JSON] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what would change, as a unified diff.")] = False,
    output: OutputOption = "human",
    junit: JunitOption = None,
    summary: SummaryOption = None,
) -> int:
    """What a local source tree needs. Changes nothing.

    Exit code 0: nothing is needed, 3: a patch is needed, 8: a patch is in conflict with the tree.
    """
    from opsctl import patchfiles, this_machine
    from opsctl.sglang.patches import patching, patchset
    from opsctl.sglang.source.tree import load

    reporting = Reporting("patch check", output, junit, summary, as_json)
    with reporting.errors():
        _demand_class(for_target)
        extra = patchfiles.read(own) if own else patchfiles.Own()
        chosen = (*patchset.select(patches or (), target=for_target), *extra.states)
        found = load(this_machine.call, str(tree), patchset.classes(chosen), patchset.files(chosen))
        tried = this_machine.call(patching.trying(found.root, [d.text for d in extra.diffs]))
        wanted = patchset.for_target(found, chosen, None if patches else for_target)
        plan = patching.plan(found, wanted, *patching.tried([d.name for d in extra.diffs], tried))
    report = plan.report

    def tell() -> None:
        if as_json:
            typer.echo(json.dumps(report.to_json(), indent=2))
            return
        _tell(report)
        if diff and plan.edits:
            typer.echo()
            typer.echo(printable(plan.diff()), nl=False)

    reporting.tell(lambda: report.findings(str(tree), here=str(tree)), report.exit_code, tell)
    return report.exit_code


@app.command()
@runs(
    "patch-sglang",
    {"checkout": As("--tree", "FOLDER"), "target": As("--for-target", "CLASS"), "patches": As(metavar="[PATCH]...")},
    argument="patches",
    hidden=("state",),
)
def sglang(
    asked: Asked,
    status: Annotated[bool, typer.Option("--status", help="Tell how the tree stands, and change nothing.")] = False,
    revert: Annotated[bool, typer.Option("--revert", help="Take patches back, byte for byte.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --status: one JSON object on standard output.")] = False,
) -> int:
    """Bring the SGLang source of hosts to the state EAGLE-3 needs, prove it, or take that back.

    Examples:

      opsctl patch sglang --status

      opsctl patch sglang --check --diff

      opsctl patch sglang --revert eagle3-fc-guard
    """
    given, showing = asked.given, asked.showing
    names, tree, target = given.get("patches") or [], given.get("checkout"), given.get("target")
    own = Path(given["own"]) if "own" in given else None
    _demand_class(target)
    _demand_one_thing(status=status, revert=revert, as_json=as_json, commit=given.get("commit"))
    if status:
        reporting = Reporting("patch sglang --status", showing.output, showing.junit, showing.summary, as_json)
        with reporting.errors():
            hosts = choose(asked.inventory, asked.host)
            done = verb.status(hosts, names, tree=tree, target=target, own=own, front=TERMINAL)
        return _tell_status(done, reporting, diff=bool(showing.diff))
    if not revert:  # what was applied under a name, the host knows
        verb.own_patches(own, names)
    options = asked.options({"state": "reverted"} if revert else {})
    if revert and not names:
        undone = _undo(choose(asked.inventory, asked.host), tree, check=asked.check, err=showing.output != "human")
        if undone is not Exit.DONE:
            return undone
    return play(options, showing)


def _demand_class(name: str | None) -> None:
    if name is not None and not name.isidentifier():
        raise UsageError(
            f"--for-target: {name!r} is not the name of a class",
            hint="give what the target's config.json names under architectures",
        )


def _demand_one_thing(*, status: bool, revert: bool, as_json: bool, commit: str | None) -> None:
    if status and revert:
        raise UsageError("--status and --revert are two things", hint="--revert --check says what would be taken back")
    if commit and (status or revert):
        raise UsageError("--commit goes with applying patches")
    if as_json and not status:
        raise UsageError("--json goes with --status", hint="-o jsonl tells a run as JSON lines")


def _undo(hosts: Sequence[InventoryHost], tree: str | None, *, check: bool, err: bool) -> Exit:
    """Roll back what `patch sglang` did on hosts; in check mode only say so."""
    from opsctl.cli.past import tell_report

    done = verb.undo(hosts, tree, TERMINAL, check=check)
    codes = [tell_errors(done)]
    for one in done:
        for run, report in one.value or ():
            if report is None:
                typer.echo(printable(f"{one.host.name}: would undo run {run.run}"), err=err)
            else:
                codes.append(tell_report(one.host.name, report, err=err))
    return next((code for code in codes if code is not Exit.DONE), Exit.DONE)


def _tell_status(done: Sequence[Done[Status]], reporting: Reporting, *, diff: bool) -> Exit:
    found = [d.value for d in done if d.value is not None]
    failed = tell_errors(done)
    code = failed or max((one.report.exit_code for one in found), default=Exit.DONE)

    def tell() -> None:
        if reporting.as_json and found:
            told = [one.to_json() for one in found]
            typer.echo(json.dumps(told[0] if len(done) == 1 else {"hosts": told}, indent=2))
        for one in () if reporting.as_json else found:
            typer.secho(printable(one.host), bold=True)
            _tell(one.report)
            for line in _served(one):
                typer.echo(printable(line))
            if diff and one.diff:
                typer.echo(printable(one.diff), nl=False)

    def findings() -> list[Finding]:
        judged = [f for one in found for f in one.report.findings(one.host)]
        return lost_hosts(done) + judged

    reporting.tell(findings, code, tell)
    return code


def _served(status: Status) -> Iterator[str]:
    """What runs, and whether it is this tree."""
    looked = status.looked
    if looked.elsewhere:
        yield f"served is another tree: the server imports {looked.imported}"
        yield f"  → opsctl patch sglang --tree {looked.imported}"
    for running in looked.running:
        if running.package == looked.package:
            code = f"OLD CODE: {running.newest_file} was changed after its start" if running.old_code else "this code"
            yield f"server pid {running.pid} on port {running.port} runs {code}"


@app.command("list")
def list_patches(as_json: Annotated[bool, _JSON] = False) -> None:
    """Every patch, and the versions that need it."""
    from opsctl.sglang.patches import ALL, eagle3_capture

    known = [*ALL, eagle3_capture("CLASS")]
    if as_json:
        typer.echo(json.dumps({"patches": [{"name": p.name, **_about(p.about)} for p in known]}, indent=2))
        return
    for patch in known:
        typer.echo(f"{patch.name:24}  upstream: {patch.about.upstream}")
        typer.echo(f"{'':24}  {patch.about.reason}")


@app.command()
def show(
    patch: Annotated[str, typer.Argument(help="Its name, see opsctl patch list.")],
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """What a patch is for, what it changes and how it is proved."""
    from opsctl.sglang.patches import patchset

    name = f"{patch} CLASS" if patch == patchset.CAPTURE else patch
    (found,) = patchset.select([name])
    about = _about(found.about)
    if as_json:
        typer.echo(json.dumps({"name": found.name, **about}, indent=2))
        return
    typer.echo(found.name)
    for key, text in about.items():
        typer.echo(f"  {key.replace('_', ' '):13} {text}")


def _tell(report: Report) -> None:
    version = str(report.tree.version) or "unknown"
    typer.echo(printable(f"{report.tree.root}: SGLang {version}, {report.tree.at}"))
    if report.tree.dirty:
        typer.echo(printable(f"changed since the commit: {', '.join(report.tree.dirty)}"))
    for entry in report.entries:
        typer.echo(printable(f"{_MARKS[entry.status]} {entry.name:24} {entry.status:14} {entry.reason}"))
        if entry.file:
            typer.echo(printable(f"  {'':24} {'':14} {entry.file}{f':{entry.line}' if entry.line else ''}"))


def _about(about: object) -> dict[str, str]:
    from dataclasses import asdict

    return asdict(about)  # type: ignore[call-overload,no-any-return]  # patches are imported only when a command runs
