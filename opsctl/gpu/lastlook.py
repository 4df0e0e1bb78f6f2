"""Where the counters of the last look at each host are kept between runs: a small file per host, on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from opsctl.gpu import state
from opsctl.gpu.model import Evidence, State


def folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "opsctl" / "health"


def compared(host: str, evidence: Evidence) -> Evidence:
    """The evidence with the last look at the same machine, which this one replaces."""
    file = _file(host, evidence.host.machine or "")
    before = _read(file)
    _write(file, state.now(evidence))
    return replace(evidence, before=before)


def _read(file: Path) -> State | None:
    """None when there is none, or none that can be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return state.load(json.loads(file.read_text(encoding="utf-8")))
    return None


def _write(file: Path, seen: State) -> None:
    """Keep it for the next look. A folder that cannot be written is no reason to fail: the next look is a first one."""
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=".look-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(state.dump(seen), stream)
            Path(partial).replace(file)
        except OSError:
            Path(partial).unlink(missing_ok=True)
            raise


def _file(host: str, machine: str) -> Path:
    """Two inventories may call different machines by one name: what tells them apart is part of the file's name."""
    readable = re.sub(r"[^A-Za-z0-9.-]+", "_", host)[:60]
    digest = sha256("\0".join((host, machine)).encode()).hexdigest()[:12]
    return folder() / f"{readable}-{digest}.json"
