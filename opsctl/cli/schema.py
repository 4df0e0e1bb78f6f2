"""`opsctl schema`."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer

app = typer.Typer()


@app.command()
def schema(
    what: Annotated[
        Literal["playbook", "inventory", "patch"], typer.Argument(help="Of which kind of file.")
    ] = "playbook",
) -> None:
    """JSON Schema of playbooks, inventories and end-state patches, for editors with a YAML language server.

    Example: opsctl schema playbook > .vscode/opsctl-playbook.json
    """
    from opsctl.engine import schema as schemas

    kinds = {"playbook": schemas.playbook, "inventory": schemas.inventory, "patch": schemas.patch}
    typer.echo(json.dumps(kinds[what](), indent=2))
