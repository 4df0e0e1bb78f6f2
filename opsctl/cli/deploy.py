"""`opsctl deploy drafter`: the shipped playbook `deploy-drafter`."""

from __future__ import annotations

import typer

from opsctl.cli.options import As, Asked, runs
from opsctl.cli.playing import play

app = typer.Typer(help="Put a draft model into service, measured and undoable.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
@runs(
    "deploy-drafter",
    {"accept_findings": As("--accept", "FINDING"), "min_accept_length": As(min=1.0)},
)
def drafter(asked: Asked) -> int:
    """Check a draft model, stage it, restart with it, measure it, and take it back if it does not serve well.

    Examples:

      opsctl deploy drafter ./my-drafter --host k25 --check

      opsctl deploy drafter ./my-drafter --host k25 --min-accept-length 2.5
    """
    return play(asked.options(), asked.showing)
