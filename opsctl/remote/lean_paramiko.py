"""paramiko, without loading what it loads for others.

paramiko loads invoke, and with it unittest, asyncio and a YAML reader, for `Match exec` in its own parser of OpenSSH
configurations. That is a third of the time it takes to load (about 75 ms of 200), and few runs need it. Imported by way
of this module, invoke is there for everybody as ever, and is loaded when somebody first uses it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import logging
import sys
from collections.abc import Sequence
from types import ModuleType

from opsctl.text import one_line


class _Later(importlib.abc.MetaPathFinder):
    """Finds one module, and has it loaded only when it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        found = importlib.machinery.PathFinder.find_spec(fullname, path) if fullname == self._name else None
        if found and found.loader:
            found.loader = importlib.util.LazyLoader(found.loader)
        return found


_later = _Later("invoke")
sys.meta_path.insert(0, _later)
try:
    import paramiko
finally:
    sys.meta_path.remove(_later)

# What it has to say reaches the user as an error of ours, in words; on the terminal it would only be in the way.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def words(error: BaseException) -> str:
    """What an exception of paramiko's or a socket's has to say."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error)) or "connection closed"


__all__ = ["paramiko", "words"]
