"""The first thing that runs. Imports almost nothing, so that connecting can begin before the rest is loaded."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Carry out the command line of this process."""
    words = sys.argv[1:]
    if words[:1] in (["run"], ["deploy"]):  # those that play a playbook most of the time
        from opsctl.cli import early

        early.begin(words)
    from opsctl.cli.main import run

    code = run(words)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # nobody is left to read it
            stream.flush()
    # Not sys.exit: taking the interpreter down object by object costs a twentieth of a second, and waits for threads
    # that may still be connecting to a host that does not answer.
    os._exit(code)
