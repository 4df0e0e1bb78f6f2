"""Every way opsctl can end, and every error it raises.

    OpsctlError
    ├── UsageError          what the user wrote cannot be used: arguments, inventory, playbook, a local file
    ├── Unreachable         a host could not be reached, or was lost
    │   ├── Lost            the connection ended while something was asked through it
    │   ├── HostKeyError    its key is unknown or has changed
    │   └── AuthFailed
    ├── RemoteError         the host was reached and refused or failed an operation
    │   ├── Damaged         the journal of a run lacks something
    │   └── Conflict        it is no longer as it was observed; nothing was overwritten
    ├── Locked              another operator holds the host
    ├── TaskFailed          a task of a play failed
    ├── GateFailed          a measured value does not satisfy a gate
    └── Unreadable          an input file is damaged or hostile

An error says what was being done, where, what was seen, and what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Exit(IntEnum):
    """Exit codes, the same for every command. Part of the interface: see docs/reference/exit-codes.md."""

    DONE = 0  # done, nothing to do, or fit
    BUG = 1  # an error in opsctl itself
    USAGE = 2  # what the user wrote cannot be used; no host was touched
    CHANGES = 3  # changes are needed (check mode with --exit-code, patch --status, lint without errors)
    FAILED = 4  # a task failed, and what it had done was left (on_failure: stop | continue)
    UNREACHABLE = 5  # a host could not be reached, or was lost
    LOCKED = 6  # another operator holds the host
    ROLLED_BACK = 7  # something failed, and every change that can be undone was; what cannot be is named
    CONFLICT = 8  # the host or tree is not as expected; nothing was overwritten
    GATE = 9  # a measured value is below its gate
    DEGRADED = 10  # drafter: would serve, but badly; health: warnings; diagnose: a cause was found
    UNFIT = 11  # drafter: would not serve; health: a check failed
    UNREADABLE = 12  # an input is damaged or hostile
    ROLLBACK_FAILED = 13  # something failed, and so did an undo
    UNKNOWN = 14  # something decisive could not be told; diagnose: what is wrong, or whether anything is, is not known
    DAMAGED = 15  # the journal of a run is damaged: what it still has was undone, and more may be left
    MISTAKE = 16  # what the user wrote cannot be used, which showed only after something had been done on a host
    FOREIGN = 17  # a log that was to be read is not SGLang's
    INTERRUPTED = 130  # stopped by the user


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a file the user wrote. Lines and columns count from 1."""

    file: str
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        parts = [self.file, *(str(n) for n in (self.line, self.column) if n is not None)]
        return ":".join(parts)


class OpsctlError(Exception):
    """An error with a place and a next step.

    Args:
        message: what was being done and what was seen, one sentence.
        where: the host, or the place in a file.
        hint: what to do next, ideally a command.
    """

    exit_code: Exit = Exit.FAILED

    def __init__(self, message: str, *, where: str | Place | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class UsageError(OpsctlError, ValueError):
    """A mistake of whoever asks, in a file or a command line.

    Attributes:
        others: further mistakes of the same document, in the order of the file.
    """

    exit_code = Exit.USAGE
    others: tuple[UsageError, ...] = ()

    @property
    def all(self) -> tuple[UsageError, ...]:
        """This mistake and the others."""
        return (self, *self.others)

    @classmethod
    def of(cls, mistakes: Sequence[UsageError]) -> UsageError:
        """One error for several mistakes, at least one: the first, which holds the others. File by file, in order."""
        every = [one for mistake in mistakes for one in mistake.all]
        places = {id(one): one.where if isinstance(one.where, Place) else Place("") for one in every}
        files = list(dict.fromkeys(place.file for place in places.values()))
        every.sort(key=lambda one: _in_order(places[id(one)], files))
        for one in every:
            one.others = ()
        every[0].others = tuple(every[1:])
        return every[0]


def _in_order(place: Place, files: Sequence[str]) -> tuple[int, int, int]:
    return files.index(place.file), place.line or 0, place.column or 0


class Unreachable(OpsctlError, ConnectionError):
    exit_code = Exit.UNREACHABLE


class Lost(Unreachable):
    """The connection to a host ended in the middle: nothing is known of what was asked through it."""


class HostKeyError(Unreachable):
    pass


class AuthFailed(Unreachable):
    pass


class RemoteError(OpsctlError):
    """The agent refused or failed a call. `kind` is its word for why: not-found, permission, no-space, timeout, ...

    `fields` holds what else the agent told: path, errno, replies of the calls before the failed one, ...
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "failed",
        where: str | Place | None = None,
        hint: str | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.kind = kind
        self.fields: Mapping[str, Any] = fields or {}


class Conflict(RemoteError):
    exit_code = Exit.CONFLICT


class Damaged(RemoteError):
    exit_code = Exit.DAMAGED


class Locked(OpsctlError):
    """Somebody else holds the host. `holder` says who: who, run, since, host, as far as they told."""

    exit_code = Exit.LOCKED

    def __init__(
        self,
        message: str,
        *,
        where: str | Place | None = None,
        hint: str | None = None,
        holder: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.holder: Mapping[str, Any] = holder or {}


class TaskFailed(OpsctlError):
    """A task failed. `values`: what `register` gets of it besides."""

    exit_code = Exit.FAILED

    def __init__(
        self,
        message: str,
        *,
        where: str | Place | None = None,
        hint: str | None = None,
        values: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.values: Mapping[str, Any] = values or {}


class GateFailed(OpsctlError):
    exit_code = Exit.GATE


class Unreadable(OpsctlError, ValueError):
    exit_code = Exit.UNREADABLE
