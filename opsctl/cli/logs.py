"""`opsctl logs`: collect, follow, summarise and redact logs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.options import HostOption, InventoryOption, duration
from opsctl.errors import Exit, Unreadable, UsageError

if TYPE_CHECKING:
    from opsctl.sglang.logs.timeline import Summary
    from opsctl.wire.calls.logs import Scan

app = typer.Typer(no_args_is_help=True, help="Collect, follow, summarise and redact logs.")

_MORE = "Also mask addresses, host names, serial numbers and UUIDs."
_PROMPTS = "Leave what --log-requests printed."
SinceOption = Annotated[str | None, typer.Option(metavar="DURATION", help="How far back: 30m, 2h, 1d.")]


@app.command()
def collect(
    host: HostOption = None,
    inventory: InventoryOption = None,
    since: SinceOption = None,
    run: Annotated[
        str | None, typer.Option(metavar="RUN", help="From the begin of this run, with its journal.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="The bundle, or a folder for several.")
    ] = None,
    include: Annotated[
        list[str] | None, typer.Option(metavar="PART", help="Only these parts: unit.txt, proc/*.")
    ] = None,
    exclude: Annotated[list[str] | None, typer.Option(metavar="PART", help="Leave these parts out.")] = None,
    redact: Annotated[str | None, typer.Option(metavar="more", help=_MORE)] = None,
    keep_prompts: Annotated[bool, typer.Option("--keep-prompts", help=_PROMPTS)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> int:
    """Everything a colleague needs to help, in one file per host; secrets and prompts are masked on the host."""
    from opsctl.cli.logs_collect import run_collect
    from opsctl.inventory import load
    from opsctl.sglang.logs.log_collect import Wish
    from opsctl.sglang.logs.log_parts import check_names

    if since and run:
        raise UsageError("--since and --run both say how far back", hint="give one of them")
    if redact not in (None, "more"):
        raise UsageError(f"--redact {redact} is not known", hint="the usual is always masked; --redact more masks more")
    wish = Wish(
        duration("--since", since) if since else None,
        run,
        tuple(include or ()),
        tuple(exclude or ()),
        redact == "more",
        keep_prompts,
    )
    check_names([*wish.include, *wish.exclude])
    return run_collect(load(inventory).select(host or "all"), wish, output, as_json=as_json)


@app.command()
def summary(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE...", help="A server log; rotated parts oldest first, .gz and .zst too."),
    ] = None,
    host: HostOption = None,
    inventory: InventoryOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as an HTML page with charts.")] = None,
) -> int:
    """What happened, when: starts, phases, throughput, acceptance, and the first error with its cause."""
    from opsctl.sglang.logs import timeline

    if files:
        if host or inventory:
            raise UsageError("a summary is of files or of hosts", hint="leave out the files, or --host and --inventory")
        name = str(files[-1])
        found, code = {name: timeline.build(scan_here(files))}, Exit.DONE
    else:
        from opsctl.cli.hosts import chosen, tell_errors
        from opsctl.cli.logs_summary import of_hosts

        done = of_hosts(chosen(inventory, host))
        found, code = {one.host.name: one.value for one in done if one.value is not None}, tell_errors(done)
    if report:
        from opsctl.report.log_page import log_page

        _write(report, log_page(found))
    if as_json:
        documents = {name: timeline.document(one) for name, one in found.items()}
        typer.echo(json.dumps(documents if not files else documents[name], ensure_ascii=False, default=str))
    else:
        _show(found)
    return code


@app.command()
def tail(
    host: HostOption = None,
    inventory: InventoryOption = None,
    grep: Annotated[str | None, typer.Option(metavar="PATTERN", help="Only lines that this pattern finds.")] = None,
    level: Annotated[str | None, typer.Option(metavar="LEVEL", help="This level and above: warning, error.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines of the past to begin with.")] = 10,
    keep_prompts: Annotated[bool, typer.Option("--keep-prompts", help=_PROMPTS)] = False,
) -> int:
    """Follow the server logs of several hosts as one stream, over rotation, restarts and lost connections."""
    from opsctl.cli.logs_tail import Filter, follow
    from opsctl.inventory import load

    wanted = Filter.of(grep, level, lines, keep_prompts)
    return follow(load(inventory).select(host or "all"), wanted)


@app.command()
def redact(
    more: Annotated[bool, typer.Option("--more", help=_MORE)] = False,
    keep_prompts: Annotated[bool, typer.Option("--keep-prompts", help=_PROMPTS)] = False,
) -> None:
    """Copy stdin to stdout without secrets and prompts, as collect does it on the host."""
    from opsctl.wire.redact import Redactor, redact_stream

    if sys.stdin is None:
        raise UsageError("there is nothing to read: stdin is closed", hint="opsctl logs redact < in > out")
    redact_stream(sys.stdin.buffer, sys.stdout.buffer, Redactor(more=more, keep_prompts=keep_prompts))


def scan_here(files: list[Path]) -> Scan:
    """Scan files of this machine. Raises UsageError, Unreadable."""
    from opsctl.sglang.logs.timeline import scan_files
    from opsctl.wire.protocol import AgentError

    for file in files:
        if file.is_dir():
            raise UsageError(f"{file} is a folder", hint="name the log file in it")
    try:
        found = scan_files(files)
    except FileNotFoundError as error:
        raise UsageError(f"no such log: {error.filename}") from None
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
    except AgentError as error:
        raise Unreadable(error.message, hint="unpack it first, or install zstandard") from None
    if not (found["marks"] or found["first_at"] or found["samples"] or found["ranks"]):
        raise _no_log(files[-1], found["lines"])
    return found


def _no_log(file: Path, lines: int) -> Unreadable:
    with file.open("rb") as stream:
        utf16 = stream.read(2) in (b"\xff\xfe", b"\xfe\xff")
    if utf16:
        return Unreadable(f"{file} is UTF-16 text", hint=f"make it UTF-8 first: iconv -f UTF-16 -t UTF-8 {file}")
    what = f"nothing in its {lines} lines is a server's" if lines else "it is empty"
    return Unreadable(f"{file} is no log of an SGLang server: {what}", hint="`opsctl logs collect` finds the right one")


def _show(found: dict[str, Summary]) -> None:
    from opsctl.sglang.logs import log_lines
    from opsctl.text import printable

    for name, one in found.items():
        if len(found) > 1:
            typer.secho(name, bold=True)
        for line in log_lines.lines(one):
            typer.echo(printable(line))


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
