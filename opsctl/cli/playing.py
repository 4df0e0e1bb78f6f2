"""Running a playbook from any command: options, views, signals, exit code. `opsctl run` and the verbs use it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import typer

from opsctl.cli.options import Output, Showing
from opsctl.cli.terminal import TERMINAL, stoppable, write_file
from opsctl.errors import Exit, OpsctlError, UsageError
from opsctl.secret import Secret
from opsctl.verbs import runs

if TYPE_CHECKING:
    from opsctl.engine.events import Event
    from opsctl.engine.options import Options


def become_password() -> Secret:
    """Ask for the sudo password, before any host is touched. Raises UsageError if there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError(
            "not a terminal, so nobody can be asked for the sudo password",
            hint="say become_password: !env NAME in the inventory",
        )
    return Secret(typer.prompt("sudo password", hide_input=True, err=True))


def play(options: Options, showing: Showing, sudo_password: Secret | None = None) -> Exit:
    """Run a playbook as `options` say. Raises UsageError before any host is touched."""
    with stoppable() as stop:
        try:
            shown = views(showing, check=options.check)
            return runs.run(options, shown, TERMINAL, stop=stop, sudo_password=sudo_password)
        except KeyboardInterrupt:
            if stop.is_set():
                _tell_left()
            raise


def _tell_left() -> None:
    """Say what it means to have stopped at once: nobody has looked at how the hosts stand."""
    typer.echo(
        "stopped at once, without waiting for the hosts. A change under way there is cut off or, where it is", err=True
    )
    typer.echo("supervised, taken back by the host itself; `opsctl history --host HOST` says how it stands", err=True)


@contextmanager
def views(showing: Showing, *, check: bool) -> Iterator[Callable[[Event], None]]:
    """Everything that shows the events of a run, as one function."""
    diff = check if showing.diff is None else showing.diff
    lost: list[OSError] = []  # what could not be shown
    with ExitStack() as stack:
        seen: list[Callable[[Event], None]] = [_main_view(showing, diff, stack), *_reports(showing, stack)]

        def emit(event: Event) -> None:
            for view in seen:
                try:
                    view(event)
                except BrokenPipeError:  # `| head`: no reason to stop a change
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                except OSError as error:  # nor is a full disk
                    lost.append(error)

        yield emit
        if lost:
            raise lost[0]


def _main_view(showing: Showing, diff: bool, stack: ExitStack) -> Callable[[Event], None]:
    match showing.output:
        case "jsonl":
            from opsctl.report.plain import jsonl_view

            return jsonl_view(typer.echo)
        case "github":
            from opsctl.report.ci import GithubView

            return GithubView(typer.echo, diff=diff, verbose=showing.verbose)
        case "gitlab":
            from opsctl.report.ci import GitlabView

            view = GitlabView(typer.echo, diff=diff, verbose=showing.verbose)
            stack.callback(view.write_report)
            return view
    if sys.stdout.isatty():
        from rich.console import Console

        from opsctl.report.live import LiveView

        return stack.enter_context(LiveView(Console(), diff=diff, verbose=showing.verbose))
    from opsctl.report.plain import PlainView

    return PlainView(typer.echo, diff=diff, verbose=showing.verbose)


def _reports(showing: Showing, stack: ExitStack) -> Sequence[Callable[[Event], None]]:
    if not (showing.junit or showing.summary or showing.html):
        return ()
    from opsctl.engine.events import to_json

    events: list[dict[str, Any]] = []

    def write() -> None:
        from opsctl.engine.record import Record

        record = Record(str(events[0].get("run", "")) if events else "", tuple(events))
        if showing.junit:
            from opsctl.report.findings import junit
            from opsctl.report.run import findings

            write_file(showing.junit, junit(f"opsctl {record.started.get('playbook', '')}".strip(), findings(record)))
        if showing.summary:
            from opsctl.report.run import markdown

            write_file(showing.summary, markdown(record), append=True)
        if showing.html:
            from opsctl.report.run import html

            write_file(showing.html, html(record))

    stack.callback(write)
    return (lambda event: events.append(to_json(event)),)


def tell_usage(error: OpsctlError, output: Output) -> None:
    """A mistake that ended the command before a run began, as an annotation where the CI wants one."""
    if output == "github":
        from dataclasses import replace

        from opsctl.findings import Finding
        from opsctl.report.ci import github

        typer.echo(github(replace(Finding.of(error), title="opsctl")))
