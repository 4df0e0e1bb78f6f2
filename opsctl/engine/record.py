"""The controller's own record of its runs: the event stream of each, as JSON lines, for `history`, `show`, `report`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from opsctl.engine.events import Event, RunStarted, TaskProgress, to_json
from opsctl.errors import UsageError
from opsctl.runname import LAST, meant

_MOST_RUNS = 500
_SECOND = len("20261130-112003")  # how a run's name begins


def folder() -> Path:
    """Where records are kept: $OPSCTL_RECORDS, else under the user's state folder."""
    named = os.environ.get("OPSCTL_RECORDS")
    if named:
        return Path(named)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "opsctl" / "records"


class Recorder:
    """Writes a run's events to its record. A record that cannot be written is no reason for a run to fail.

    warn: is told once that there is none.
    """

    def __init__(self, warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._file: IO[str] | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._open(event)
        if self._file is None or isinstance(event, TaskProgress):
            return
        try:
            self._file.write(json.dumps(to_json(event), default=str) + "\n")
            self._file.flush()
        except OSError as error:
            self._lose(error)

    def _open(self, event: RunStarted) -> None:
        if event.check:
            return
        try:
            folder().mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = open(folder() / f"{event.run}.jsonl", "a", encoding="utf-8")  # noqa: SIM115  open for the run
            for old in sorted(folder().glob("*.jsonl"))[:-_MOST_RUNS]:
                old.unlink(missing_ok=True)
                old.with_suffix(".undone").unlink(missing_ok=True)
        except OSError as error:
            self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._file = None
        self._warn(f"this run is not recorded here for `opsctl show` and `report`: {folder()}: {error.strerror}")

    def close(self) -> None:
        if self._file:
            self._file.close()


@dataclass(frozen=True, slots=True)
class Record:
    """A run as it was recorded: its events as JSON data."""

    run: str
    events: tuple[dict[str, Any], ...]

    def of(self, kind: str) -> Iterator[dict[str, Any]]:
        """The events of one kind, such as `task_ended`."""
        return (event for event in self.events if event.get("event") == kind)

    @property
    def started(self) -> dict[str, Any]:
        return next(self.of("run_started"), {})

    @property
    def ended(self) -> dict[str, Any] | None:
        """How it ended, None if the controller died before it did."""
        return next(reversed(list(self.of("run_ended"))), None)


def note_undone(run: str, host: str) -> None:
    """Note that a run of ours was taken back on a host. Runs that are not recorded here are others' affair."""
    try:
        if (folder() / f"{run}.jsonl").is_file():
            with open(folder() / f"{run}.undone", "a", encoding="utf-8") as file:
                file.write(f"{host}\n")
    except OSError:
        return  # as of a record


def note_refused(inventory: str | None) -> None:
    """Note that a run of the project was refused before it began: then the newest run is not the last one asked for."""
    try:
        folder().mkdir(mode=0o700, parents=True, exist_ok=True)
        told = _refusals() | {inventory or "": datetime.now(UTC).isoformat(timespec="microseconds")}
        (folder() / "refused.json").write_text(json.dumps(told), encoding="utf-8")
    except OSError:
        return  # as of a record


def refused_since(run: str | None, inventory: str | None) -> bool:
    """Whether a run of the project was refused after `run` (None: at all) began."""
    began = str(_head(run).get("started", "")) if run else ""
    return _refusals().get(inventory or "", "") > began


def _refusals() -> dict[str, str]:
    try:
        told = json.loads((folder() / "refused.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in told.items()} if isinstance(told, dict) else {}


def undone(run: str) -> set[str]:
    """The hosts on which a run was taken back after it had ended, as far as that was done from here."""
    try:
        return set((folder() / f"{run}.undone").read_text(encoding="utf-8").split())
    except OSError:
        return set()


def names() -> list[str]:
    """All recorded runs, the newest first."""
    return sorted((path.stem for path in folder().glob("*.jsonl")), key=_began, reverse=True)


def matching(word: str) -> list[str]:
    """The recorded runs whose name is `word`, or else begins so, the newest first."""
    known = names()
    return [word] if word in known else [name for name in known if word and name.startswith(word)]


def known_of(inventory: str) -> tuple[list[str], int]:
    """The recorded runs of the project that has this inventory, the newest first; and how many there are of others."""
    known = names()
    own = [name for name in known if _head(name).get("inventory") == inventory]
    return own, len(known) - len(own)


def _began(run: str) -> tuple[str, str]:
    """When a run began: to the second by its name, within that by its record."""
    return run[:_SECOND], str(_head(run).get("started"))


def _head(run: str) -> dict[str, Any]:
    """The first line of a record, which is short where the whole may be long."""
    try:
        with (folder() / f"{run}.jsonl").open(encoding="utf-8") as file:
            found = json.loads(file.readline())
    except (OSError, ValueError):  # it was pruned meanwhile, or the controller died while writing it
        return {}
    return found if isinstance(found, dict) else {}


def last_of(inventory: str | None) -> str:
    """The newest run of the project that has this inventory; of all where that is None. Raises UsageError."""
    known, others = known_of(inventory) if inventory else (names(), 0)
    if known:
        return known[0]
    if not others:
        raise UsageError("no run is recorded on this machine", hint="`opsctl history --host HOST` asks a host")
    raise UsageError(
        f"no run of {inventory} is recorded on this machine, {others} of other inventories "
        f"{'is' if others == 1 else 'are'}",
        hint="`opsctl history --all` lists them; name the one that you mean, or its inventory with -i",
    )


def read(run: str, inventory: str | None = None) -> Record:
    """A record, by the run's name or its unambiguous beginning; `last` as of `last_of`. Raises UsageError."""
    name = last_of(inventory) if run == LAST else meant(run, names(), "on this machine")
    events = []
    for line in (folder() / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            events.append(json.loads(line))
        except ValueError:
            break  # the controller died while writing this line
    return Record(name, tuple(events))
