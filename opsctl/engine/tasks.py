"""A playbook as the engine runs it: read, checked and resolved, with the place of everything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.engine.model import BlockKeys, IncludeKeys, PlayKeys, TaskKeys
from opsctl.engine.templating import At
from opsctl.yaml_source import Source


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One task.

    Attributes:
        number: its position among all tasks of its play, handlers and rescue last, from 0.
        args: arguments of its module, not rendered.
        at: where it stands; `at_args` where its arguments do.
        conditions: its own `when` and those of the blocks around it, outermost first, with their places.
        variables: its own `vars` and those of the blocks around it, nearest first, with their places.
    """

    number: int
    name: str
    module: str
    args: dict[str, Any]
    keys: TaskKeys
    at: At
    at_args: At
    conditions: tuple[tuple[bool | str | list[bool | str], At], ...]
    variables: tuple[tuple[dict[str, Any], At], ...]
    tags: frozenset[str]
    become: bool | str | None


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Tasks with what to do when one fails, and what to do in any case."""

    keys: BlockKeys | IncludeKeys
    at: At
    body: tuple[Node, ...]
    rescue: tuple[Node, ...] = ()
    always: tuple[Node, ...] = ()


Node = Task | Block


@dataclass(frozen=True, slots=True, eq=False)
class Play:
    name: str
    keys: PlayKeys
    at: At
    tasks: tuple[Node, ...]
    handlers: tuple[Task, ...]
    rescue: tuple[Task, ...] = ()

    @property
    def pattern(self) -> str:
        hosts = self.keys.hosts
        return hosts if isinstance(hosts, str) else ":".join(hosts)

    @property
    def lock(self) -> str | None:
        """The lock that is held on each host meanwhile."""
        said = self.keys.lock
        return said if isinstance(said, str) else "host" if said else None

    def all_tasks(self) -> list[Task]:
        """Every task, rescue and always of blocks included, then handlers, then the rescue of the play."""
        return [*walk(self.tasks), *self.handlers, *self.rescue]


@dataclass(frozen=True, slots=True, eq=False)
class Playbook:
    """A file with plays.

    Attributes:
        sources: every YAML file it was read from, itself first.
        digest: SHA-256 over the bytes of all of them.
    """

    path: Path
    plays: tuple[Play, ...]
    sources: tuple[Source, ...]
    digest: str

    @property
    def name(self) -> str:
        return self.path.stem


def walk(nodes: tuple[Node, ...]) -> Iterator[Task]:
    """All tasks, in the order of the file."""
    for node in nodes:
        if isinstance(node, Task):
            yield node
        else:
            yield from walk(node.body)
            yield from walk(node.rescue)
            yield from walk(node.always)


def straight(nodes: tuple[Node, ...]) -> Iterator[Task]:
    """The tasks that run when none fails."""
    for node in nodes:
        if isinstance(node, Task):
            yield node
        else:
            yield from straight(node.body)
            yield from straight(node.always)
