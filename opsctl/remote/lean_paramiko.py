"""paramiko without what it loads for others.

paramiko loads invoke, and with it unittest, asyncio and a YAML reader, for `Match exec` in its own parser of OpenSSH
configurations. That is a quarter of the time it takes to load, and we use that parser only where OpenSSH is missing.
Import this module instead of paramiko.
"""

from __future__ import annotations

import logging
import sys

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


def config() -> type[paramiko.SSHConfig]:
    """paramiko's parser of OpenSSH configurations, complete."""
    import invoke
    import paramiko.config

    paramiko.config.invoke = invoke  # type: ignore[attr-defined]
    return paramiko.SSHConfig


__all__ = ["config", "paramiko"]
