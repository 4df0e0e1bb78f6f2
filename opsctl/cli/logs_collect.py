"""`opsctl logs collect`: bundles of several hosts, side by side."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from opsctl.cli.hosts import on_each, tell_errors
from opsctl.cli.playing import stoppable
from opsctl.errors import Exit, OpsctlError, UsageError
from opsctl.gpu import wanted
from opsctl.secret import mask, secrets_in
from opsctl.sglang.logs.log_collect import Collected, Source, Wish, collect, of_run, told
from opsctl.text import one_line, printable

if TYPE_CHECKING:
    from opsctl.cli.hosts import Done
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost


class _Stopped(OpsctlError):
    exit_code = Exit.INTERRUPTED


def run_collect(hosts: Sequence[InventoryHost], wish: Wish, output: Path | None, *, as_json: bool) -> int:
    """Collect from every host and say what came of it."""
    place = Place(output, several=len(hosts) > 1)
    sources = {host.name: source(host) for host in hosts}  # a mistake in the inventory is told before any host is asked
    with stoppable() as stop, _Progress() as progress:

        def work(remote: RemoteHost, host: InventoryHost) -> Collected:
            def tell(text: str, fraction: float | None) -> None:
                if stop.is_set():
                    raise _Stopped("stopped; nothing was written", where=host.name)
                progress.tell(host.name, text)

            return collect(remote, sources[host.name], of_run(wish, remote), place.file, tell)

        done = on_each(hosts, work)
    _show(done, as_json=as_json)
    return tell_errors(done)


def source(host: InventoryHost) -> Source:
    """A host of the inventory, with every secret that is known of it. Raises UsageError."""
    return Source(host.name, host.sglang, expected(host), tuple(secrets_in(vars(host.settings))))


def expected(host: InventoryHost) -> wanted.Wanted:
    """What the inventory says that a host's health depends on. Raises UsageError."""
    return wanted.of(host.variables.get("health"), host.sglang, host.name)


class Place:
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


class _Progress:
    """One line on a terminal that says what is under way; nothing elsewhere."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._lock = threading.Lock()

    def tell(self, host: str, text: str) -> None:
        if self._shown:
            with self._lock:
                sys.stderr.write(f"\r\x1b[K{printable(one_line(f'{host}: {text}', 100))}")
                sys.stderr.flush()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")


def _show(done: Sequence[Done[Collected]], *, as_json: bool) -> None:
    if as_json:
        bundles = {one.host.name: one.value.to_json() for one in done if one.value}
        errors = {one.host.name: mask(str(one.error)) for one in done if one.error}
        typer.echo(json.dumps({"bundles": bundles, "errors": errors}, indent=2, default=str))
        return
    for one in done:
        if one.value:
            for line in told(one.host.name, one.value):
                typer.echo(printable(mask(line)))
