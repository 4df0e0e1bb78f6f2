"""`opsctl logs`: collect, follow, summarise and redact logs."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opsctl.cli.options import HostOption, InventoryOption, duration
from opsctl.cli.terminal import TERMINAL, clear_progress, stoppable, tell_errors, write_file
from opsctl.errors import Exit, UsageError
from opsctl.secret import mask
from opsctl.text import printable

if TYPE_CHECKING:
    from opsctl.sglang.logs.timeline import Summary

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
        str | None, typer.Option(metavar="RUN", help="From the start of this run, with its journal.")
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
    from opsctl.sglang.logs.log_collect import Wish, told
    from opsctl.sglang.logs.log_parts import check_names
    from opsctl.verbs import logs as verb
    from opsctl.verbs.hosts import choose

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
    hosts = choose(inventory, host or "all")
    place = _Place(output, several=len(hosts) > 1)
    with stoppable() as stop:
        done = verb.collect(hosts, wish, place.file, replace(TERMINAL, cancelled=stop.is_set))
    clear_progress()
    if as_json:
        bundles = {one.host.name: one.value.to_json() for one in done if one.value}
        errors = {one.host.name: mask(str(one.error)) for one in done if one.error}
        typer.echo(json.dumps({"bundles": bundles, "errors": errors}, indent=2, default=str))
    for one in () if as_json else done:
        for line in told(one.host.name, one.value) if one.value else ():
            typer.echo(printable(mask(line)))
    return tell_errors(done)


class _Place:
    """Where bundles go: FILE for one host, a folder for several, here when nothing is said. Raises UsageError."""

    def __init__(self, output: Path | None, *, several: bool) -> None:
        self._folder, self._file = Path(), None
        if output is not None and (several or output.is_dir() or str(output).endswith("/")):
            if output.exists() and not output.is_dir():
                raise UsageError(f"{output} is a file, and there is a bundle for each host", hint="name a folder")
            output.mkdir(parents=True, exist_ok=True)
            self._folder = output
        elif output is not None:
            if not output.parent.is_dir():
                raise UsageError(f"there is no folder {output.parent}")
            self._file = output

    def file(self, name: str) -> Path:
        return self._file or self._folder / f"{name}.tar.zst"


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
    from opsctl.verbs import logs as verb

    if files:
        if host or inventory:
            raise UsageError("a summary is of files or of hosts", hint="leave out the files, or --host and --inventory")
        name = str(files[-1])
        found, code = {name: verb.summary_here(files)}, Exit.DONE
    else:
        from opsctl.verbs.hosts import choose

        done = verb.summary(choose(inventory, host), TERMINAL)
        found, code = {one.host.name: one.value for one in done if one.value is not None}, tell_errors(done)
    if not all(one.of_sglang for one in found.values()):
        code = code or Exit.FOREIGN
    if report:
        from opsctl.report.pages import log_page

        write_file(report, log_page(found))
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
    from opsctl.verbs.hosts import choose
    from opsctl.verbs.logs import Filter, follow

    wanted = Filter.of(grep, level, lines, keep_prompts)
    hosts = choose(inventory, host or "all")
    return follow(hosts, wanted, _Screen([one.name for one in hosts]).lines, TERMINAL)


_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")


@dataclass(slots=True)
class _Screen:
    """Where all hosts write: whole lines, each with its host before it where there are several."""

    hosts: Sequence[str]
    colour: bool = field(default_factory=lambda: sys.stdout.isatty())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lines(self, host: str, lines: Sequence[str]) -> None:
        label = self._label(host)
        with self._lock:
            for line in lines:
                sys.stdout.write(f"{label}{printable(mask(line))}\n")
            sys.stdout.flush()

    def _label(self, host: str) -> str:
        if len(self.hosts) < 2:
            return ""
        label = f"{host:<{max(map(len, self.hosts))}} │ "
        return typer.style(label, fg=_COLOURS[self.hosts.index(host) % len(_COLOURS)]) if self.colour else label


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


def _show(found: dict[str, Summary]) -> None:
    from opsctl.sglang.logs import log_lines

    for name, one in found.items():
        if len(found) > 1:
            typer.secho(name, bold=True)
        for line in log_lines.lines(one):
            typer.echo(printable(line))
