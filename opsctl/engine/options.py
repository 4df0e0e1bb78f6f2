"""What a user asks of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Given:
    """A value given on the command line: as text whose type is still open, or as a value."""

    value: Any
    open: bool = False


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asks for.

    Attributes:
        playbook: a path, or the name of a playbook of the project or a shipped one.
        given: values for params and variables, by name.
        resume: the run to go on with.
        resume_known: that run is in our own records, so a host that does not know it had not been begun.
        exit_code: in check mode, end with CHANGES when something would change.
        lock_wait: seconds to wait for another operator.
        at_once: hosts worked on at a time.
    """

    playbook: str
    inventory: str | None = None
    limit: str | None = None
    given: Mapping[str, Given] = field(default_factory=dict)
    tags: Sequence[str] = ()
    skip_tags: Sequence[str] = ()
    start_at: str | None = None
    check: bool = False
    exit_code: bool = False
    yes: bool = False
    lock_wait: float = 0.0
    at_once: int = 32
    resume: str | None = None
    resume_known: bool = False
