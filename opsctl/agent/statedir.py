"""Where opsctl keeps what must outlive a run on the host: journals, locks, records of processes it started."""

from __future__ import annotations

import os


def state_dir(*parts: str) -> str:
    """The state folder, or a folder below it, made if need be and readable by its owner alone.

    OPSCTL_STATE_DIR if set, else /var/lib/opsctl for root, else $XDG_STATE_HOME/opsctl (~/.local/state/opsctl).
    """
    path = base()
    for part in ("", *parts):  # one by one: the mode is for the last folder alone
        path = os.path.join(path, part) if part else path
        os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def base() -> str:
    """The state folder, which need not be there yet."""
    named = os.environ.get("OPSCTL_STATE_DIR")
    if named:
        return named
    if os.geteuid() == 0:
        return "/var/lib/opsctl"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "opsctl")
