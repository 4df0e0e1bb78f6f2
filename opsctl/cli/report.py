"""`opsctl report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from opsctl.cli.options import InventoryOption
from opsctl.errors import Exit, UsageError

app = typer.Typer()


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's name or its beginning; `last`: the newest of this inventory.")
    ] = "last",
    inventory: InventoryOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write the page.")] = Path(
        "run.html"
    ),
) -> int:
    """A past run as one HTML page: timeline, changes as diffs, measurements, findings. Needs no network to be read.

    Example: opsctl report last -o run.html
    """
    from opsctl.inventory.load import find, known_as
    from opsctl.report.record import read
    from opsctl.report.run import html

    page = html(read(run, known_as(find(inventory))))
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {out}: {error.strerror}") from None
    typer.echo(f"wrote {out}")
    return Exit.DONE
