"""The first thing that runs. Imports almost nothing, so that connecting can begin before the rest is loaded."""

from __future__ import annotations

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
    from opsctl.errors import Exit

    code = run(words)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            pass  # the reader has gone; nothing is left to tell it
        except (OSError, ValueError):
            code = code or int(Exit.FAILED)  # what was said did not arrive
    # Not sys.exit: taking the interpreter down object by object costs a twentieth of a second, and waits for threads
    # that may still be connecting to a host that does not answer.
    os._exit(code)
