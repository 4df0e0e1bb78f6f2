"""`opsctl lint`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from opsctl.cli.options import InventoryOption
from opsctl.errors import Exit, OpsctlError, Place
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.findings import Finding
    from opsctl.inventory import Inventory

app = typer.Typer()


@app.command()
def lint(
    playbooks: Annotated[list[str], typer.Argument(metavar="PLAYBOOK...", help="Files, or names of playbooks.")],
    inventory: InventoryOption = None,
    output: Annotated[
        Literal["human", "json", "sarif", "github", "gitlab"],
        typer.Option("--output", "-o", envvar="OPSCTL_OUTPUT", help="How to show findings."),
    ] = "human",
) -> int:
    """Check playbooks without touching a host. Ends with 2 when there are errors, with 3 when there is less to say.

    Example: opsctl lint playbooks/*.yaml
    """
    from opsctl.engine import find
    from opsctl.engine.lint import lint as findings_of

    loaded = _inventory(inventory)
    # What is wrong with the inventory is found once for each playbook.
    found = list(dict.fromkeys(f for name in playbooks for f in findings_of(find.playbook(name), loaded)))
    _show(found, output, len(playbooks))
    if any(f.level == "error" for f in found):
        return Exit.USAGE
    return Exit.CHANGES if found else Exit.DONE


def _inventory(path: str | None) -> Inventory | None:
    """The inventory, if there is one. One that is named has to be right; one that is found may be another project's."""
    from opsctl.inventory import find, load

    if path is None and find() is None:
        return None
    try:
        return load(path)
    except OpsctlError as error:
        if path is not None:
            raise
        why = "left out, since the inventory cannot be read: undefined variables, host patterns, flags"
        typer.echo(printable(f"warning: {why}: {error}"), err=True)
        return None


def _show(found: list[Finding], output: str, files: int) -> None:
    if output == "json":
        typer.echo(json.dumps({"findings": [_as_json(f) for f in found]}, indent=2))
    elif output == "sarif":
        from opsctl.engine.lint import RULES
        from opsctl.report.findings import sarif

        typer.echo(sarif(found, {rule.name: rule.about for rule in RULES}))
    elif output in ("github", "gitlab"):
        from opsctl.report.ci import github, gitlab

        typer.echo("\n".join(map(github, found)) if output == "github" else gitlab(found), nl=output == "github")
    else:
        for one in found:
            typer.echo(printable(f"{one.place}: {one.level}: {one.message} [{one.id}]"))
            if one.remedy:
                typer.echo(printable(f"    → {one.remedy}"))
        what = f"{len(found)} finding{'' if len(found) == 1 else 's'}" if found else "no problems"
        typer.echo(f"{files} playbook{'' if files == 1 else 's'} checked: {what}")


def _as_json(finding: Finding) -> dict[str, object]:
    place = finding.place or Place("")
    return {
        "rule": finding.id, "level": finding.level, "message": finding.message,
        "place": {"file": place.file, "line": place.line, "column": place.column}, "hint": finding.remedy or None,
    }  # fmt: skip
