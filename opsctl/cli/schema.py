"""`opsctl schema`."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

app = typer.Typer()


@app.command()
def schema(
    what: Annotated[Literal["playbook", "inventory"], typer.Argument(help="Of which kind of file.")] = "playbook",
) -> None:
    """JSON Schema of playbooks and inventories, for editors with a YAML language server.

    Example: opsctl schema playbook > .vscode/opsctl-playbook.json
    """
    from opsctl.engine import schema as schemas

    made = schemas.playbook() if what == "playbook" else schemas.inventory()
    typer.echo(json.dumps(made, indent=2))
