"""paramiko without what it loads for others.

paramiko loads invoke, and with it unittest, asyncio and a YAML reader, for `Match exec` in its own parser of OpenSSH
configurations. That is a quarter of the time it takes to load, and we use that parser only where OpenSSH is missing.
Import this module instead of paramiko.
"""

from __future__ import annotations

import logging
import sys

from opsctl.text import one_line

if "paramiko" not in sys.modules and "invoke" not in sys.modules:
    sys.modules["invoke"] = None  # type: ignore[assignment]  # None: cannot be imported, for the moment
    try:
        import paramiko
    finally:
        del sys.modules["invoke"]
else:
    import paramiko

# What it has to say reaches the user as an error of ours, in words; on the terminal it would only be in the way.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


def complete() -> None:
    """Give paramiko's parser of OpenSSH configurations what was kept from it."""
    import invoke
    import paramiko.config

    paramiko.config.invoke = invoke  # type: ignore[attr-defined]


def words(error: BaseException) -> str:
    """What an exception of paramiko's or a socket's has to say."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return one_line(str(error)) or "connection closed"


__all__ = ["complete", "paramiko", "words"]
