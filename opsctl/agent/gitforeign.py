"""Git in a checkout that belongs to another user: it is read and changed, but nothing that it names is run."""

from __future__ import annotations

import os
import subprocess
from typing import List

_PROGRAMS = r"^(filter\..*\.(clean|smudge|process|required)|credential\.(.*\.)?helper|merge\..*\.driver)$"


def disarmed(path: str) -> List[str]:
    """Settings without the programs that another user's checkout names for git to run. For our own, none is needed."""
    inside = os.path.join(path, ".git")
    try:
        owners = {os.stat(path).st_uid, *([os.lstat(inside).st_uid] if os.path.lexists(inside) else [])}
        if owners == {os.geteuid()}:
            return []
        words = ["git", "-c", "safe.directory=*", "-C", path, "config", "--local", "--includes", "--name-only", "-z"]
        done = subprocess.run([*words, "--get-regexp", _PROGRAMS], capture_output=True, timeout=30)
    except OSError:  # no such folder, or no git: nothing will be run there
        return []
    return [name + "=" for name in sorted(set(done.stdout.decode("utf-8", "surrogateescape").split("\0")) - {""})]
