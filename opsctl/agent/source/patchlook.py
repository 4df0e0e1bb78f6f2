"""What bears on patching a source tree, in one look. Apart from `patching`, which is five times as long to send.

Of a served draft model the headers alone are read: its classes, and what it calls its layers.
"""

from __future__ import annotations

import json
import os
import re
import struct
import threading
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from opsctl.agent.files.safepath import opened, whole
from opsctl.agent.server import servers
from opsctl.agent.source import source
from opsctl.wire import command_line
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.server import ServerProcess
    from opsctl.wire.calls.source import DraftNames, PatchLook

_CONFIG_LIMIT = 4 << 20
_HEADER_LIMIT = 16 << 20
_MOST = 100
_UNREADABLE = (OSError, ValueError, RecursionError, AgentError)
_OF_A_LAYER = re.compile(r"(^|\.)(midlayer|layers\.\d+)\.")


def look(
    call: Context,
    root: Optional[str],
    files: List[str],
    classes: Tuple[str, ...] = (),
    exists: Tuple[str, ...] = (),
    port: Optional[int] = None,
    model: Optional[str] = None,
    python: Optional[str] = None,
    path: Optional[str] = None,
    drafter: Optional[str] = None,
    cwd: Optional[str] = None,
) -> Reply[PatchLook]:
    """`source.gather` of the tree, with the servers of the host and what they import. Without `root`: the tree served.

    The classes of the target's config.json are gathered too: `model`, or what the server on `port` serves.
    `python`: interpreter that serves, asked with PYTHONPATH `path` which package it imports where no server runs.
    `drafter`: folder of the draft model, where no server runs that names one. `cwd`: where a server would be started.
    """
    found = servers.find(call)
    serving = next((one for one in found if command_line.port(one["argv"]) == port), None)
    asking = _Imports(found, serving, python, path)  # interpreters take their time to start
    asking.start()
    if root is None:
        asking.finish()
        root = _root_of(asking.imported) if asking.imported else None
    if root is None:
        raise AgentError(
            "not-found", "it is not said where the source tree is (`checkout`), and no server runs that would tell"
        )
    running = serving or {"model": None, "drafter": None}
    architectures = classes_of(servers.placed(model, cwd) or running["model"])
    drafter = running["drafter"] or servers.placed(drafter, cwd)
    reply = source.gather(call, root, files, tuple(dict.fromkeys((*classes, *architectures))), exists)
    asking.finish()
    top = os.path.join(reply.result["root"], reply.result["prefix"])
    paths = (entry["path"] for entry in reply.result["files"] if not entry["head"])
    result: PatchLook = {
        **reply.result,
        "servers": found,
        "architectures": architectures,
        "imported": os.path.realpath(asking.imported) if asking.imported else None,
        "drafter": draft_names(drafter) if drafter else None,
        "readonly": [path for path in paths if not _writable(os.path.join(top, path))],
    }
    return Reply(result, reply.body)


class _Imports(threading.Thread):
    """Finds out which package every server imports, and `imported`: the one that `serving` does, or `python` would."""

    def __init__(
        self, found: List[ServerProcess], serving: Optional[ServerProcess], python: Optional[str], path: Optional[str]
    ) -> None:
        super().__init__(daemon=True)
        self.found, self.serving, self.python, self.path = found, serving, python, path
        self.imported: Optional[str] = None
        self._failed: Optional[BaseException] = None

    def finish(self) -> None:
        """Wait until everything is found out. Raises what went wrong meanwhile."""
        self.join()
        if self._failed:
            raise self._failed

    def run(self) -> None:
        try:
            self._locate()
        except BaseException as error:  # noqa: BLE001  whatever ends a thread, `finish` raises it
            self._failed = error

    def _locate(self) -> None:
        for server in self.found:
            server["package"] = None
            servers.locate_one(server)
        if self.serving:
            self.imported = self.serving["package"]
        elif self.python:
            self.imported = servers.located(self.python, "/", _environment(self.path))


def _writable(path: str) -> bool:
    real = os.path.realpath(path)
    return os.access(os.path.dirname(real), os.W_OK) or os.access(real, os.W_OK)


def _root_of(package: str) -> str:
    """The tree of a package folder: the checkout, where it is python/sglang, else the folder that contains it."""
    above = os.path.dirname(os.path.realpath(package))
    return os.path.dirname(above) if os.path.basename(above) == "python" else above


def _environment(path: Optional[str]) -> Dict[str, str]:
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return dict(known, PYTHONPATH=path) if path else known


def draft_names(path: str) -> DraftNames:
    """Tell what the draft model in a folder is."""
    return {"path": path, "architectures": classes_of(path), "layers": _layers(path)}


def classes_of(model: Optional[str]) -> List[str]:
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


CALLS = {"look": look}
