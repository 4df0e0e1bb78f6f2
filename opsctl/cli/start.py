"""The first thing that runs. Imports almost nothing, so that connecting can begin before the rest is loaded."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Carry out the command line of this process."""
    # What is loaded stays: looking through it for garbage at every 700th object takes a tenth of a short run's time.
    gc.set_threshold(20_000, 50, 100)
    words = sys.argv[1:]
    _fit_for_output()
    if words and not words[0].startswith("-"):
        from opsctl.verbs import hosts

        hosts.begin(words)
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


def _fit_for_output() -> None:
    """Have somewhere to write to, and nothing that cannot be written there."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  for as long as we run
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
