"""What a served draft model is, in few words: its classes, and what it calls its layers. Headers alone are read."""

from __future__ import annotations

import json
import os
import re
import struct
from typing import TYPE_CHECKING, Any, Dict, List, Optional

from opsctl.agent.files.regular import opened, whole
from opsctl.wire.protocol import AgentError

if TYPE_CHECKING:
    from opsctl.wire.calls.source import DraftNames

_CONFIG_LIMIT = 4 << 20
_HEADER_LIMIT = 16 << 20
_MOST = 100
_UNREADABLE = (OSError, ValueError, RecursionError, AgentError)
_OF_A_LAYER = re.compile(r"(^|\.)(midlayer|layers\.\d+)\.")


def told(path: str) -> DraftNames:
    """Tell what the draft model in a folder is."""
    return {"path": path, "architectures": architectures(path), "layers": _layers(path)}


def architectures(model: Optional[str]) -> List[str]:
    """The model classes that a folder's config.json names; none where it cannot be told."""
    try:
        with opened(os.path.join(_folder(model or ""), "config.json")) as stream:
            config = json.loads(whole(stream, _CONFIG_LIMIT))
        return [str(name) for name in config["architectures"]]
    except (*_UNREADABLE, TypeError, KeyError):
        return []


def _folder(path: str) -> str:
    folder = os.path.expanduser(path)
    if not os.path.isabs(folder):
        raise ValueError("a name on a hub, or relative to a folder that is not known")
    return folder


def _layers(path: str) -> Optional[List[str]]:
    try:
        folder = _folder(path)
        files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
        names = [name for file in files for name in _header(os.path.join(folder, file))]
    except (*_UNREADABLE, struct.error):
        return None
    return sorted(name for name in names if _OF_A_LAYER.search(name))[:_MOST] if names else None


def _header(path: str) -> Dict[str, Any]:
    with opened(path) as stream:
        (length,) = struct.unpack("<Q", whole(stream, 8))
        if length > _HEADER_LIMIT:
            raise ValueError("a header of %d bytes" % length)
        header = json.loads(whole(stream, length))
    if not isinstance(header, dict):
        raise ValueError("a header that is no object")
    return header
