"""What commands have in common where they talk to a person: errors, remarks, progress, questions, signals, files."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from opsctl.errors import Exit, OpsctlError, UsageError
from opsctl.secret import mask
from opsctl.text import one_line, printable
from opsctl.verbs.frontend import Done, Frontend, failed
from opsctl.wire import masking

_MOST_MISTAKES = 20  # of one document that are told at once


def tell(error: OpsctlError) -> None:
    """Print an error and its next step on stderr, safe for a terminal, without what looks like a secret.

    Errors quote what they are about: a URL with a password in it, the environment of a command.
    """
    every = error.all if isinstance(error, UsageError) else (error,)
    for one in every[:_MOST_MISTAKES]:
        say(f"error: {printable(masking.text(str(one)))}")
        if one.hint:
            say(f"  → {printable(masking.text(one.hint))}")
    if more := every[_MOST_MISTAKES:]:
        say(f"and {len(more)} more")


def say(text: str) -> None:
    """Print a remark on stderr; a line of progress gives way to it."""
    _Progress.clear()
    typer.echo(text, err=True)


def tell_errors(done: Sequence[Done[Any]]) -> Exit:
    """Print the errors, one per host, on stderr. The exit code is that of the first one, else DONE."""
    return failed(done, TERMINAL)


def ask(question: str) -> bool:
    """Ask a person on the terminal. Raises UsageError if there is none."""
    if not sys.stdin.isatty():
        raise UsageError(f"not a terminal, so nobody can be asked: {question}", hint="add --yes to answer yes")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # nothing is in progress yet
    try:
        return typer.confirm(question, err=True)
    finally:
        signal.signal(signal.SIGINT, before)


class _Progress:
    """One line on stderr that is rewritten; nothing where nobody watches."""

    _guard = threading.Lock()
    _shown = False

    @classmethod
    def tell(cls, host: str, text: str, fraction: float | None) -> None:
        if sys.stderr.isatty():
            with cls._guard:
                cls._shown = True
                typer.echo(f"\r\x1b[K{printable(one_line(f'{host}: {text}', 100))}", err=True, nl=False)

    @classmethod
    def clear(cls) -> None:
        with cls._guard:
            if cls._shown:
                cls._shown = False
                typer.echo("\r\x1b[K", err=True, nl=False)


def clear_progress() -> None:
    """Take the line of progress away before results are printed."""
    _Progress.clear()


TERMINAL = Frontend(say=lambda text: say(printable(mask(text))), failed=tell, progress=_Progress.tell, ask=ask)


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


def write_file(path: Path, text: str, *, append: bool = False) -> None:
    """Write a report. Raises UsageError when the file cannot be written."""
    try:
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
