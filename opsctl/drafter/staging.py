"""What is staged, what of it the host has, and so what must travel. Pure but for reading the local folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opsctl.agent.protocol import AgentError, Context
from opsctl.drafter.chunks import Chunk, Plan, Range, plan
from opsctl.errors import UsageError

RESERVE = 64 << 20  # bytes left free on the host's disk

OnProgress = Callable[[str, float], None]


@dataclass(frozen=True, slots=True)
class Source:
    """A folder cut into chunks. `digest` names the release. `stats`: size, mtime and inode of each file when read."""

    path: str
    digest: str
    files: Mapping[str, Sequence[tuple[int, int, str]]]
    stats: Mapping[str, tuple[int, int, int]]

    @property
    def sizes(self) -> dict[str, int]:
        return {name: stat[0] for name, stat in self.stats.items()}

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> Source:
        """From an answer of stagesource.read."""
        files = {name: tuple((c[0], c[1], c[2]) for c in chunks) for name, chunks in told["files"].items()}
        return cls(told["path"], told["digest"], files, {name: tuple(stat) for name, stat in told["stats"].items()})

    def plan(self, have: Sequence[Mapping[str, Any]], done: Sequence[Sequence[Any]] = ()) -> Plan:
        """How the release comes together.

        have: folders of the host with the chunks of their files, as stage.look tells. done: [name, start, end] that
        are in place.
        """
        held = {one["path"]: _chunks(one["files"]) for one in have}
        return plan(_chunks(self.files), held, [Range(name, start, end) for name, start, end in done])


def _chunks(files: Mapping[str, Sequence[Sequence[Any]]]) -> list[Chunk]:
    return [Chunk(Range(name, c[0], c[1]), c[2]) for name, chunks in files.items() for c in chunks]


def read_source(path: Path, *, follow_links: bool = False, on_progress: OnProgress = lambda text, part: None) -> Source:
    """Read a local folder. Raises UsageError: no folder, nothing in it, links that leave it, changed while read."""
    from opsctl.agent import stagesource

    try:
        return Source.of(stagesource.read(_Reading(on_progress), str(path), follow_links))
    except AgentError as error:
        hint = "stage it again when it is complete" if "changed" in error.fields else None
        if "link" in error.fields:
            hint = "follow_links (--follow-links) takes what it points at, as in a Hugging Face cache"
        raise UsageError(error.message, where=str(path), hint=hint) from None


def demand_unchanged(source: Source) -> None:
    """Raise UsageError if a local file is no longer as it was when its digests were made."""
    for name, stat in source.stats.items():
        try:
            info = os.stat(os.path.join(source.path, name))
            now = (info.st_size, info.st_mtime_ns, info.st_ino)
        except OSError:
            now = None
        if now != stat:
            raise UsageError(
                f"{name} was changed while it was being staged",
                where=source.path,
                hint="run it again when the folder is complete; what has arrived is not sent twice",
            )


class _Reading(Context):
    def __init__(self, on_progress: OnProgress) -> None:
        self._told = on_progress

    def progress(self, data: Any, body: bytes = b"") -> None:
        self._told(data["text"], data["fraction"])
