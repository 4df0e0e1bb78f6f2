"""`opsctl deploy drafter`: the shipped playbook `deploy-drafter`, with its params as options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsctl.cli import asked
from opsctl.cli.hosts import HostOption, InventoryOption
from opsctl.cli.playing import (
    AdoptOption,
    CheckOption,
    DiffOption,
    ExitCodeOption,
    HtmlOption,
    JunitOption,
    LockWaitOption,
    OutputOption,
    Showing,
    SummaryOption,
    VerboseOption,
    YesOption,
    play,
)

app = typer.Typer(help="Put a draft model into service, measured and undoable.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    pass


@app.command()
def drafter(
    path: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the draft model on this machine.")],
    inventory: InventoryOption = None,
    host: HostOption = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Name of the draft model on the host (default: the folder's).")
    ] = None,
    min_accept_length: Annotated[
        float | None,
        typer.Option("--min-accept-length", min=1.0, help="Take the deploy back below this acceptance length."),
    ] = None,
    ready_timeout: Annotated[
        str | None, typer.Option("--ready-timeout", metavar="DURATION", help="Longest time from start to first token.")
    ] = None,
    adopt: AdoptOption = False,
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="FINDING", help="Deploy in spite of this finding of the drafter check."),
    ] = None,
    check: CheckOption = False,
    exit_code: ExitCodeOption = False,
    diff: DiffOption = None,
    yes: YesOption = False,
    lock_wait: LockWaitOption = "0s",
    output: OutputOption = "human",
    junit: JunitOption = None,
    summary: SummaryOption = None,
    html: HtmlOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Check a draft model, stage it, restart with it, measure it, and take it back if it does not serve well.

    Examples:

      opsctl deploy drafter ./my-drafter --host k25 --check

      opsctl deploy drafter ./my-drafter --host k25 --min-accept-length 2.5
    """
    params = {
        "drafter": str(path),
        "name": name,
        "min_accept_length": min_accept_length,
        "ready_timeout": ready_timeout,
        "adopt": adopt or None,
        "accept_findings": accept or None,
    }
    options = asked.playbook(
        "deploy-drafter", params, inventory=inventory, host=host, lock_wait=lock_wait, check=check,
        exit_code=exit_code, yes=yes,
    )  # fmt: skip
    return play(options, Showing(output, diff, verbose, junit, summary, html))
