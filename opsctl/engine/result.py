"""How a task ended on a host, and what `register` gets of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opsctl.engine.events import Status
from opsctl.engine.unknown import Undecided, Unknown
from opsctl.errors import OpsctlError
from opsctl.modules.contract import FileDiff
from opsctl.secret import mask

_WORST: tuple[Status, ...] = ("unreachable", "failed", "unknown", "changed", "ran", "ok", "skipped")


@dataclass(slots=True)
class Result:
    """How one task, or one element of its loop, ended. `values` are the module's own."""

    status: Status
    summary: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    diffs: tuple[FileDiff, ...] = ()
    lines: tuple[str, ...] = ()
    details: tuple[str, ...] = ()
    measures: dict[str, float] = field(default_factory=dict)
    error: OpsctlError | None = None
    unseen: bool = False  # check mode did not run it, though it changes nothing: what it would tell is not known
    predicted: bool = False  # check mode: what the values would be, as far as it can be told

    @property
    def failed(self) -> bool:
        return self.status in ("failed", "unreachable")

    @property
    def changed(self) -> bool:
        return self.status in ("changed", "ran", "unknown")

    @property
    def output(self) -> tuple[str, ...]:
        """What the command of the task printed, in lines; under a heading where it wrote to both of its streams.

        Masked as a whole: a secret may go on over the end of a line.
        """
        streams = {
            name: mask(text).splitlines()
            for name in ("stdout", "stderr")
            if isinstance(text := self.values.get(name), str) and text.strip()
        }
        if len(streams) == 1:
            return tuple(next(iter(streams.values())))
        return tuple(line for name, told in streams.items() for line in (f"{name}:", *told))

    def registered(self) -> Any:
        """What `register` gets."""
        if self.status == "unknown" or self.unseen:
            return Unknown(f"it depends on a task that check mode does not run ({self.summary})")
        values = {
            **self.values,
            "changed": self.status in ("changed", "ran"),
            "failed": self.failed,
            "skipped": self.status == "skipped",
        }
        if self.error is not None:
            values["message"] = self.error.message
        return _Predicted(values) if self.predicted else values


def not_seen(why: str) -> Result:
    """How a task ends that check mode leaves out, and that changes nothing."""
    return Result("skipped", why, unseen=True)


class _Predicted(dict[str, Any]):
    """A predicted result: what is not in it is not known yet, rather than undefined."""

    def __missing__(self, key: str) -> Any:
        raise Undecided(f"{key!r} is known only after the task has run")


def together(results: Mapping[int, Result] | list[Result]) -> Result:
    """The result of a loop from those of its elements."""
    parts = list(results.values()) if isinstance(results, Mapping) else results
    if not parts:
        return Result("skipped", "the loop is empty", {"results": []})
    worst = min(parts, key=lambda r: _WORST.index(r.status))
    done = [r for r in parts if r.status == worst.status]
    summary = worst.summary if len(done) == 1 else f"{worst.summary} ({len(done)} items)"
    return Result(
        worst.status,
        summary,
        {"results": [r.registered() for r in parts]},
        tuple(d for r in parts for d in r.diffs),
        tuple(line for r in parts for line in r.lines),
        tuple(line for r in parts for line in r.details),
        {k: v for r in parts for k, v in r.measures.items()},
        worst.error,
        any(r.predicted for r in parts),
    )
