"""What the operating system's errors mean to a caller."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator

from opsctl.agent.core.dispatch import KINDS
from opsctl.wire.protocol import AgentError


@contextmanager
def told(doing: str, path: str) -> Iterator[None]:
    """Turns an OSError inside into an AgentError that says what was being done to which path."""
    try:
        yield
    except OSError as error:
        kind = KINDS.get(error.errno or 0, "failed")
        text = "cannot %s %s: %s" % (doing, path, error.strerror or error)
        raise AgentError(kind, text, path=path, errno=error.errno) from error
