"""What of SGLang lies on this host: checkouts, environments, models, units. Reads names and small files only."""

from __future__ import annotations

import glob
import json
import os
import re
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional

from opsctl.agent.files.if_readable import names_in
from opsctl.agent.files.safepath import opened, whole
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.source import Lying, Model, Unit

# Where people put things, nearest first; `~` is the home of whoever we are here.
USUAL = ["~", "~/src", "/root", "/home/*", "/opt", "/srv", "/workspace", "/sgl-workspace", "/data", "/models", "/mnt/*"]
MODELS = ["", "models", "weights", "hf", "ckpt"]  # folders below those, in which models lie
MOST_FOLDERS = 4000
_CONFIG_LIMIT = 1 << 20
_UNITS = ["/etc/systemd/system", "/usr/local/lib/systemd/system", "/lib/systemd/system"]
_SERVES = re.compile(r"^\s*ExecStart\s*=.*sglang(\.launch_server|\.srt\.server|\s+serve|/launch_server)", re.M)


def look(call: Context, roots: Optional[List[str]] = None, units: Optional[List[str]] = None) -> Lying:
    """Look below `roots`, and for unit files in the folders `units`, instead of the usual places.

    Environments are those that have SGLang, installed or by reference.
    """
    places = _places(roots or USUAL)
    below = list(_folders(places))
    checkouts = [folder for folder in below if os.path.isdir(os.path.join(folder, "python", "sglang", "srt"))]
    inside = [os.path.join(checkout, name) for checkout in checkouts for name in (".venv", "venv")]
    return {
        "home": os.path.expanduser("~"),
        "checkouts": checkouts,
        "environments": _unique(folder for folder in inside + below if _has_sglang(folder)),
        "models": _models(places),
        "units": _services(_UNITS if units is None else units),
    }


def _places(patterns: List[str]) -> List[str]:
    found = [path for pattern in patterns for path in sorted(glob.glob(os.path.expanduser(pattern)))]
    return [place for place in _unique(found) if os.path.isdir(place)]


def _folders(places: List[str]) -> Iterator[str]:
    """The folders right below the places, each once, whatever links lead there."""
    seen = set()
    for place in places:
        for name in names_in(place):
            folder = os.path.join(place, name)
            real = os.path.realpath(folder)
            if real in seen or not os.path.isdir(folder):
                continue
            seen.add(real)
            if len(seen) > MOST_FOLDERS:
                return
            yield folder


def _has_sglang(folder: str) -> bool:
    if not os.access(os.path.join(folder, "bin", "python"), os.X_OK):
        return False
    packages = os.path.join(glob.escape(folder), "lib", "python3*", "site-packages")
    return bool(glob.glob(packages + "/sglang*") or glob.glob(packages + "/__editable__*sglang*"))


def _models(places: List[str]) -> List[Model]:
    found: Dict[str, Model] = {}
    parents = [os.path.join(place, name) if name else place for place in places for name in MODELS]
    for folder in _folders([parent for parent in _unique(parents) if os.path.isdir(parent)]):
        architecture = _architecture(os.path.join(folder, "config.json"))
        if architecture and "eagle" not in architecture.lower():
            found.setdefault(os.path.realpath(folder), {"path": folder, "architecture": architecture})
    return list(found.values())


def _architecture(path: str) -> Optional[str]:
    try:
        with opened(path) as stream:
            config = json.loads(whole(stream, _CONFIG_LIMIT))
        first = config["architectures"][0]
    except (OSError, AgentError, ValueError, LookupError, TypeError):
        return None
    return first if isinstance(first, str) else None


def _services(folders: List[str]) -> List[Unit]:
    """Unit files whose command launches a server."""
    found: Dict[str, Unit] = {}
    for folder, user in [(folder, False) for folder in folders] + [("~/.config/systemd/user", True)]:
        for path in sorted(glob.glob(os.path.join(os.path.expanduser(folder), "*.service"))):
            name = os.path.basename(path)
            if name not in found and _SERVES.search(_read(path)):
                found[name] = {"name": name, "user": user}
    return list(found.values())


def _read(path: str) -> str:
    try:
        with opened(path) as stream:
            return whole(stream, _CONFIG_LIMIT).decode("utf-8", "replace").replace("\\\n", " ")
    except (OSError, AgentError):
        return ""


def _unique(values: Any) -> List[str]:
    return list(dict.fromkeys(values))


CALLS = {"look": look}
