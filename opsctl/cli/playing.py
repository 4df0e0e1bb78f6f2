"""Running a playbook from any command: options, views, signals, exit code. `opsctl run` and the verbs use it."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from opsctl.cli.options import Output, Showing
from opsctl.errors import Exit, OpsctlError, UsageError
from opsctl.secret import Secret

if TYPE_CHECKING:
    from opsctl.engine.events import Event
    from opsctl.engine.options import Options


def become_password() -> Secret:
    """Ask for the sudo password, before any host is touched. Raises UsageError if there is nobody to ask."""
    if not sys.stdin.isatty():
        raise UsageError(
            "there is nobody to ask for the sudo password", hint="say become_password: !env NAME in the inventory"
        )
    return Secret(typer.prompt("sudo password", hide_input=True, err=True))


def play(options: Options, showing: Showing, sudo_password: Secret | None = None) -> Exit:
    """Run a playbook as `options` say. Raises UsageError before any host is touched."""
    from opsctl.cli import early

    with stoppable() as stop:
        begun = early.take()
        connections = begun.connections
        connections.cancelled, connections.at_once = stop.is_set, options.at_once
        try:
            begun.connect()
            from opsctl.engine.run import execute, plan
            from opsctl.inventory import load

            with _noted(options):
                inventory = load(options.inventory)
            if sudo_password is not None:
                inventory = inventory.with_become_password(sudo_password)
            with _noted(options):
                planned = plan(options, inventory)
            files = [*planned.files, *([inventory.file] if inventory.file else [])]
            begun.remember(files, [host.connection() for host in planned.first], options.at_once)
            code = Exit.DONE
            try:
                with views(showing, check=options.check) as emit, _noted(options):
                    code = execute(planned, options, emit, stop, ask, connections)
            except OSError:
                if code is Exit.DONE:  # else how the run ended matters more than that some of it was not shown
                    raise
            return code
        except KeyboardInterrupt:
            if stop.is_set():
                _tell_left()
            raise
        finally:
            connections.close()


@contextmanager
def _noted(options: Options) -> Iterator[None]:
    """Note a run that is refused before it begins, so that `opsctl rollback` does not take the one before for it."""
    from opsctl.inventory.load import find, known_as

    try:
        yield
    except UsageError:
        if not options.check:
            from opsctl.report.record import note_refused

            note_refused(known_as(find(options.inventory)))
        raise


def ask(question: str) -> bool:
    """Ask a person on the terminal. Raises UsageError if there is none."""
    if not sys.stdin.isatty():
        raise UsageError(f"there is nobody to ask: {question}", hint="add --yes to answer yes")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nothing is in progress yet
    try:
        return typer.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


def _tell_left() -> None:
    """Say what it means to have stopped at once: nobody has looked at how the hosts stand."""
    typer.echo(
        "stopped at once, without waiting for the hosts. A change under way there is cut off or, where it is", err=True
    )
    typer.echo("supervised, taken back by the host itself; `opsctl history --host HOST` says how it stands", err=True)


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second one interrupts at once."""
    stop = threading.Event()

    def first(number: int, frame: Any) -> None:
        stop.set()
        signal.signal(number, signal.default_int_handler)
        # Not through sys.stderr, which may be in the middle of writing.
        os.write(2, b"stopping what is in progress; once more to stop without waiting for the hosts\n")

    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        # The thread that waits for this event would otherwise outlive the run.
        stop.set()


@contextmanager
def views(showing: Showing, *, check: bool) -> Iterator[Callable[[Event], None]]:
    """Everything that looks at the events of a run, as one function that can be called from any thread."""
    from opsctl.report.record import Recorder

    diff = check if showing.diff is None else showing.diff
    guard = threading.Lock()
    lost: list[OSError] = []  # what could not be shown
    with ExitStack() as stack:
        recorder = Recorder(lambda text: typer.echo(f"warning: {text}", err=True))
        stack.callback(recorder.close)
        seen: list[Callable[[Event], None]] = [recorder, _main_view(showing, diff, stack), *_reports(showing, stack)]

        def emit(event: Event) -> None:
            with guard:
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
            from opsctl.report.jsonl import jsonl_view

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
        from opsctl.report.record import Record

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


def write_file(path: Path, text: str, *, append: bool = False) -> None:
    """Write a report. Raises UsageError when the file cannot be written."""
    try:
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def tell_usage(error: OpsctlError, output: Output) -> None:
    """A mistake that ended the command before a run began, as an annotation where the CI wants one."""
    if output == "github":
        from dataclasses import replace

        from opsctl.findings import Finding
        from opsctl.report.ci import github

        typer.echo(github(replace(Finding.of(error), title="opsctl")))
