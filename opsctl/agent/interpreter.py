"""Asking an interpreter of this host what it would import."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any, Dict, Optional, Tuple

from opsctl.agent import rights


def answer(
    python: str,
    script: str,
    cwd: Optional[str],
    environment: Dict[str, str],
    seconds: float,
    ids: Optional[Tuple[int, int]] = None,
) -> Any:
    """The last line that the script prints, read as JSON; None where there is none in time.

    ids: user and group to become. What a process of somebody else calls its interpreter may be any program.
    """
    become = rights.words(rights.User(*ids)) if ids else []
    try:
        done = subprocess.run(
            [*become, os.path.expanduser(python), "-c", script],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
        return json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
