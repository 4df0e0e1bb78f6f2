"""Playbooks that were checked before, so that the next run may connect while it loads them again.

No host is touched for a playbook that is wrong. Checking one costs as much time as a connection's first round trips,
so a run that passed its checks notes the digests of everything it was read from; a run with the same files and options
begins to connect at once. A note is only a hint: the playbook is checked again in any case.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl import __version__
from opsctl.inventory import Inventory, InventoryHost

if TYPE_CHECKING:
    from opsctl.engine.options import Options

_MOST_NOTES = 200


def hosts(options: Options, inventory: Inventory) -> list[InventoryHost]:
    """The hosts that this run will begin with, as far as that is known before its playbook is read."""
    try:
        noted = json.loads(_note(options).read_text(encoding="utf-8"))
        if all(_digest(Path(file)) == digest for file, digest in noted["files"].items()):
            return [inventory.hosts[name] for name in noted["hosts"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return []


def remember(options: Options, inventory: Inventory, files: Iterable[str], first: Iterable[str]) -> None:
    """Note that the run as `options` describe it is right, and begins with the hosts `first`."""
    names = [*files, *([inventory.file] if inventory.file else [])]
    note = {"files": {str(Path(f).absolute()): _digest(Path(f)) for f in names}, "hosts": list(first)}
    path = _note(options)
    with contextlib.suppress(OSError):  # a hint that cannot be kept is no loss
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(json.dumps(note), encoding="utf-8")
        temporary.replace(path)
        for old in sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_MOST_NOTES]:
            old.unlink(missing_ok=True)


def _note(options: Options) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Values are digested with the rest: they decide whether the playbook is right, and are nobody's business.
    words = repr((__version__, os.getcwd(), sorted(asdict(options).items(), key=lambda pair: pair[0])))
    return cache / "opsctl" / "checked" / f"{hashlib.sha256(words.encode()).hexdigest()}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
