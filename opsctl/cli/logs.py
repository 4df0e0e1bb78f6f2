"""`opsctl logs`: collect, follow, summarise and redact logs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from opsctl.errors import RemoteError, Unreadable, UsageError

app = typer.Typer(no_args_is_help=True, help="Collect, follow, summarise and redact logs.")

Scan = Callable[[list[Path]], dict[str, Any]]


@app.command()
def summary(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="A server log; rotated parts oldest first, .gz and .zst too."),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What happened, when: starts, phases, throughput, acceptance, and the first error with its cause."""
    from opsctl.report import log_summary
    from opsctl.sglang import timeline

    found = timeline.build(scan_here(files))
    if as_json:
        typer.echo(json.dumps(timeline.document(found), ensure_ascii=False, default=str))
        return
    for line in log_summary.lines(found):
        typer.echo(line)


@app.command()
def redact(
    more: Annotated[bool, typer.Option("--more", help="Also addresses, host names, serial numbers and UUIDs.")] = False,
    keep_prompts: Annotated[bool, typer.Option("--keep-prompts", help="Leave what --log-requests printed.")] = False,
) -> None:
    """Copy stdin to stdout without secrets and prompts, as collect does it on the host."""
    from opsctl.agent.redact import Redactor, redact_stream

    redact_stream(sys.stdin.buffer, sys.stdout.buffer, Redactor(more=more, keep_prompts=keep_prompts))


def scan_here(files: list[Path]) -> dict[str, Any]:
    """Scan files of this machine. Raises UsageError, Unreadable."""
    from opsctl.agent.protocol import AgentError
    from opsctl.agent.serverlog import scan_files

    for file in files:
        if file.is_dir():
            raise UsageError(f"{file} is a folder", hint="name the log file in it")
    try:
        return scan_files([str(file) for file in files])
    except AgentError as error:
        if error.kind == "not-found":
            raise UsageError(error.message) from None
        if error.kind == "missing-tool":
            raise Unreadable(error.message, hint="unpack it first, or install zstandard") from None
        raise RemoteError(error.message, kind=error.kind) from None
