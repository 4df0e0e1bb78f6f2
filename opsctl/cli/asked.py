"""What options of a command ask for, as the engine wants it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opsctl.errors import UsageError

if TYPE_CHECKING:
    from opsctl.engine.options import Options


def duration(option: str, text: str) -> float:
    """The seconds that an option says. Raises UsageError."""
    from opsctl.quantities import seconds

    try:
        return seconds(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def playbook(
    name: str,
    params: Mapping[str, Any],
    *,
    inventory: str | None,
    host: str | None,
    lock_wait: str,
    check: bool,
    exit_code: bool = False,
    yes: bool = False,
) -> Options:
    """A shipped playbook with options as its params; of those that are None it knows better. Raises UsageError."""
    from opsctl.engine.options import Given, Options

    return Options(
        playbook=name,
        inventory=inventory,
        limit=host,
        given={param: Given(value) for param, value in params.items() if value is not None},
        check=check,
        exit_code=exit_code,
        yes=yes,
        lock_wait=duration("--lock-wait", lock_wait),
    )
