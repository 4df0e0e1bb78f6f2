"""opsctl patch: the state EAGLE-3 needs of an SGLang source tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from opsctl.text import printable

app = typer.Typer(no_args_is_help=True)

_JSON = typer.Option("--json", help="One JSON object on standard output.")
_MARKS = {"upstream": "·", "applied": "✓", "needed": "→", "conflict": "✗", "not-applicable": "-"}


@app.command()
def check(
    tree: Annotated[Path, typer.Option(help="Root of an SGLang checkout, or the folder that contains sglang/.")],
    for_target: Annotated[
        str | None, typer.Option("--for-target", metavar="CLASS", help="Only what this target model class needs.")
    ] = None,
    patches: Annotated[list[str] | None, typer.Option("--patch", help="Only this patch; may be repeated.")] = None,
    own: Annotated[
        Path | None, typer.Option("--own", metavar="FOLDER", help="Also the project's patches in this folder.")
    ] = None,
    as_json: Annotated[bool, _JSON] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what would change, as a unified diff.")] = False,
) -> int:
    """What a local source tree needs. Changes nothing.

    Exit code 0: nothing is needed, 3: a patch is needed, 8: a patch is in conflict with the tree.
    """
    from opsctl import patchfiles
    from opsctl.agent.protocol import Call
    from opsctl.sglang import patchset
    from opsctl.sglang.tree import here, load

    extra = patchfiles.read(own) if own else patchfiles.Own()
    chosen = (*patchset.select(patches or (), target=for_target), *extra.states)
    found = load(here, str(tree), patchset.classes(chosen), patchset.files(chosen))
    plan = patchset.plan(found, chosen)
    answers = [here(Call("source.apply_diff", {"root": found.root, "check": True}, d.text)).result for d in extra.diffs]
    judged = (patchset.judged_diff(d.name, answer) for d, answer in zip(extra.diffs, answers, strict=True))
    report = patchset.Report(found, (*plan.report.entries, *judged))
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2))
        return report.exit_code
    _tell(report)
    if diff and plan.edits:
        typer.echo()
        typer.echo(printable(plan.diff()), nl=False)
    return report.exit_code


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
    from opsctl.sglang import patchset

    name = f"{patch} CLASS" if patch == patchset.CAPTURE else patch
    (found,) = patchset.select([name])
    about = _about(found.about)
    if as_json:
        typer.echo(json.dumps({"name": found.name, **about}, indent=2))
        return
    typer.echo(found.name)
    for key, text in about.items():
        typer.echo(f"  {key.replace('_', ' '):13} {text}")


def _tell(report: object) -> None:
    from opsctl.sglang.patchset import Report

    assert isinstance(report, Report)
    commit = f", commit {report.tree.commit}" if report.tree.commit else ", no git checkout"
    version = str(report.tree.version) or "unknown"
    typer.echo(printable(f"{report.tree.root}: SGLang {version}{commit}"))
    if report.tree.dirty:
        typer.echo(printable(f"changed since the commit: {', '.join(report.tree.dirty)}"))
    for entry in report.entries:
        typer.echo(printable(f"{_MARKS[entry.status]} {entry.name:24} {entry.status:14} {entry.reason}"))
        if entry.file:
            typer.echo(printable(f"  {'':24} {'':14} {entry.file}{f':{entry.line}' if entry.line else ''}"))


def _about(about: object) -> dict[str, str]:
    from dataclasses import asdict

    return asdict(about)  # type: ignore[call-overload,no-any-return]  # patches are imported only when a command runs
