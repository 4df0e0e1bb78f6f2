"""Playbooks that were checked before, so that the next run may connect while it loads them again.

No host is touched for a playbook that is wrong. Loading and checking one costs as much time as a connection's round
trips, so a run that passed its checks notes the digests of everything it was read from, and how its first hosts are
reached; a run with the same files and options begins to connect at once. A note is only a hint: everything is read and
checked again in any case, and a host that is to be reached in another way is connected to anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opsctl import __version__
from opsctl.engine.options import Options
from opsctl.remote.spec import ConnectionSpec, Timeouts

_MOST_NOTES = 200


def first_hosts(options: Options) -> list[ConnectionSpec]:
    """How to reach the hosts that this run will begin with, as far as that is known before its playbook is read."""
    try:
        noted = json.loads(_note(options).read_text(encoding="utf-8"))
        if all(_digest(Path(file)) == digest for file, digest in noted["files"].items()):
            return [_spec(told) for told in noted["hosts"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return []


def remember(options: Options, files: Iterable[str], first: Iterable[ConnectionSpec]) -> None:
    """Note that the run as `options` describe it is right, and how the hosts it begins with are reached."""
    plain = [spec for spec in first if spec.password is None and spec.become_password is None]
    note = {
        "files": {str(Path(f).absolute()): _digest(Path(f)) for f in files},
        "hosts": [asdict(spec) for spec in plain],
    }
    path = _note(options)
    with contextlib.suppress(OSError):  # a hint that cannot be kept is no loss
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(note), encoding="utf-8")
        temporary.replace(path)
        for old in sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_MOST_NOTES]:
            old.unlink(missing_ok=True)


def _spec(told: dict[str, Any]) -> ConnectionSpec:
    lists = {key: tuple(value) for key, value in told.items() if isinstance(value, list)}
    return ConnectionSpec(**{**told, **lists, "timeouts": Timeouts(**told["timeouts"])})


def _note(options: Options) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Values are digested with the rest: they decide whether the playbook is right, and are nobody's business.
    words = repr((__version__, os.getcwd(), os.environ.get("OPSCTL_INVENTORY"), sorted(asdict(options).items())))
    return cache / "opsctl" / "checked" / f"{hashlib.sha256(words.encode()).hexdigest()}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
