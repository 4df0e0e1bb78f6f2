"""Asking an interpreter of this host what it would import."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, Optional, Tuple

from opsctl.agent.core import rights, users
from opsctl.wire.protocol import AgentError


def answer(
    python: str,
    script: str,
    cwd: Optional[str],
    environment: Dict[str, str],
    seconds: float,
    ids: Optional[Tuple[int, int]] = None,
) -> Any:
    """The last line that the script prints, read as JSON; None where there is none in time, or root must not run it.

    ids: user and group to become. What a process of somebody else calls its interpreter may be any program. Without it,
    root becomes whoever could change the interpreter, or a folder that it imports from, with that user's environment.
    """
    path = environment.get("PYTHONPATH", "")
    try:
        who = users.User(*ids) if ids else rights.of_program(python, cwd or "/", *filter(None, path.split(os.pathsep)))
        if ids is None and users.others(who):
            environment = dict(rights.environment(who), PYTHONPATH=path)
        done = subprocess.run(
            [*rights.words(who), os.path.expanduser(python), "-c", script],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (AgentError, OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
