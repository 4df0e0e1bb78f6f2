"""Who asks: what a verb says to it meanwhile, and what it gets for each host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from opsctl.errors import Exit, OpsctlError, UsageError

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost

T = TypeVar("T")


def _nobody(question: str) -> bool:
    raise UsageError(f"nobody can be asked: {question}", hint="say yes beforehand")


@dataclass(frozen=True, slots=True)
class Frontend:
    """Whoever asks, and how to talk back meanwhile. All of it may be called from several threads at once.

    Args:
        say: gets a remark for people that is no part of the result, such as what somebody has to see to on a host.
        failed: gets an error that does not end the verb, such as of one host of several.
        progress: gets the name of a host, how far something has come there, and a fraction from 0 to 1 where known.
        ask: answers a question with yes or no; raises UsageError where nobody is there.
        cancelled: whether to stop.
    """

    say: Callable[[str], None] = lambda text: None
    failed: Callable[[OpsctlError], None] = lambda error: None
    progress: Callable[[str, str, float | None], None] = lambda host, text, fraction: None
    ask: Callable[[str], bool] = _nobody
    cancelled: Callable[[], bool] = lambda: False


SILENT = Frontend()


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """What came of the work on one host: a value, or an error."""

    host: InventoryHost
    value: T | None = None
    error: OpsctlError | None = None


def failed(done: Iterable[Done[Any]], front: Frontend) -> Exit:
    """Tell the errors, one per host. The exit code is that of the first one, else DONE."""
    errors = [one.error for one in done if one.error]
    for error in errors:
        front.failed(error)
    return errors[0].exit_code if errors else Exit.DONE
