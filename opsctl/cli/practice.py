"""`opsctl practice`: a host to try things on, and a guided tour of a deploy."""

from __future__ import annotations

import logging
import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="A practice host on this machine, to try everything on.", no_args_is_help=True)


@app.command()
def demo() -> int:
    """Deploy a good drafter on a practice host, then a bad one, and see it taken back. Needs no GPU and no root."""
    from opsctl.practice.demo import run
    from opsctl.practice.host import practice_host

    _quiet()
    _end_tidily()
    with tempfile.TemporaryDirectory(prefix="opsctl-demo-") as folder, practice_host(Path(folder)) as host:
        return run(host)


@app.command()
def host(
    folder: Annotated[
        Path | None,
        typer.Argument(help="An empty folder to build it in (default: a temporary one, removed at the end)."),
    ] = None,
) -> None:
    """Keep a practice host running until Ctrl-C, and say how to use it."""
    from opsctl.errors import UsageError
    from opsctl.practice.host import practice_host

    if folder is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder", hint="name one that does not exist yet")
    _quiet()
    _end_tidily()
    with tempfile.TemporaryDirectory(prefix="opsctl-practice-") as temporary:
        root = folder or Path(temporary)
        root.mkdir(parents=True, exist_ok=True)
        with practice_host(root) as built:
            typer.echo(f"The practice host is up. In another terminal:\n\n  cd {built.root}\n")
            typer.echo("  opsctl patch sglang                      # its SGLang lacks what EAGLE-3 needs")
            typer.echo("  opsctl deploy drafter drafters/first     # drafters/ has good and bad ones")
            typer.echo("  opsctl server status")
            typer.echo("  opsctl probe\n\nCtrl-C ends it.")
            threading.Event().wait()


def _quiet() -> None:
    """The embedded SSH server reports every client that hangs up; on a practice host that is no news."""
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)


def _end_tidily() -> None:
    """A closed terminal or a `kill` ends it as Ctrl-C does: the server that was deployed does not stay behind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)
