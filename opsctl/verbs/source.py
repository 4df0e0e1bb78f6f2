"""The SGLang source of a host or of this machine, read where it lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from opsctl import this_machine
from opsctl.errors import UsageError
from opsctl.verbs.frontend import SILENT, Frontend
from opsctl.verbs.hosts import choose_one, on_one
from opsctl.wire.calls.source import Grepped, source_grep
from opsctl.wire.protocol import AgentError, Call, Reply

_LIMIT = 120.0  # seconds for one look

Reader = Callable[[Call[Any]], Reply[Any]]


@contextmanager
def reading(
    tree: str | None, inventory: str | None, host: str | None, front: Frontend = SILENT
) -> Iterator[tuple[Reader, str]]:
    """What makes calls where a tree is, and its root. Raises UsageError where neither tree nor host is told."""
    if tree is not None and host is None:
        yield this_machine.call, tree
        return
    chosen = choose_one(inventory, host)
    root = tree or chosen.sglang.checkout
    if root is None:
        raise UsageError(
            f"{chosen.name}: the inventory does not say where its source tree is",
            hint="set `checkout` in its sglang section, or name it with --tree",
        )
    with on_one(chosen, front) as remote:
        yield lambda call: remote.call(call, timeout=_LIMIT), root


def grep(read: Reader, root: str, pattern: str, globs: list[str], limit: int) -> Grepped:
    """At most `limit` lines of a tree that match a regular expression. Raises UsageError for one that is none."""
    try:
        found: Grepped = read(source_grep(root, pattern, globs, limit)).result
    except AgentError as error:
        raise UsageError(error.message) from error
    return found
