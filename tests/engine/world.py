"""A project on disk, run in this process against this machine: what comes back is the exit code and the events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from opsctl.engine.connections import Connections
from opsctl.engine.events import Event, HostEnded, TaskEnded
from opsctl.engine.options import Options, parse_given
from opsctl.engine.run import execute, plan
from opsctl.errors import Exit
from opsctl.inventory import load

E = TypeVar("E", bound=Event)


@dataclass
class Ran:
    code: Exit
    events: list[Event]

    def of(self, kind: type[E]) -> list[E]:
        return [e for e in self.events if isinstance(e, kind)]

    def statuses(self, host: str = "here") -> dict[str, str]:
        """Status by task."""
        return {e.task: e.status for e in self.of(TaskEnded) if e.host == host}

    def ended(self) -> dict[str, str]:
        """Status by host."""
        return {e.host: e.status for e in self.of(HostEnded)}

    def lines(self, task: str) -> tuple[str, ...]:
        return next(e.lines for e in self.of(TaskEnded) if e.task == task)


@dataclass
class Project:
    """A folder with an inventory and playbooks, and a folder `out` that stands for the host."""

    folder: Path

    def __post_init__(self) -> None:
        (self.folder / "out").mkdir()
        self.hosts("here")

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def hosts(self, *names: str, extra: str = "") -> None:
        lines = [f"  {n}: {{connection: local, state_dir: {self.folder}/state-{n}}}" for n in names]
        (self.folder / "inventory.yaml").write_text("hosts:\n" + "\n".join(lines) + f"\n{extra}")

    def write(self, text: str, name: str = "play.yaml") -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("OUT", str(self.out)))
        return path

    def run(
        self,
        text: str | None = None,
        *,
        e: tuple[str, ...] = (),
        stop: Any = None,
        seen: Callable[[Event], None] = lambda event: None,
        **options: Any,
    ) -> Ran:
        if text is not None:
            self.write(text)
        chosen = Options(
            playbook=str(self.folder / "play.yaml"), inventory=str(self.folder / "inventory.yaml"),
            given=parse_given(e), **options,
        )  # fmt: skip
        events: list[Event] = []

        def emit(event: Event) -> None:
            events.append(event)
            seen(event)

        stop = stop or threading.Event()
        planned = plan(chosen, load(chosen.inventory))
        code = execute(planned, chosen, emit, stop, lambda question: False, Connections(stop.is_set))
        return Ran(code, events)
