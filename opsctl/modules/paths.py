"""What the modules that put something at a path have in common."""

from __future__ import annotations

from collections.abc import Mapping
from posixpath import dirname
from typing import Any

from pydantic import Field

from opsctl.errors import Conflict, RemoteError
from opsctl.modules.contract import ModuleArgs, Site
from opsctl.modules.fields import Mode, octal
from opsctl.text import size
from opsctl.wire.protocol import Call

KEEP = "0"  # what the one call of a change keeps, so that its undo finds it
DIFF_LIMIT = 256 << 10  # bytes of a file that are fetched to show a difference
_OBSERVED = ("kind", "mode", "uid", "gid", "sha256", "target")
_HINTS = {
    "not-found": "make the folder first: `file: {path: ..., state: directory}`",
    "permission": "say `become: true` where root may do it",
}

Seen = Mapping[str, Any]


class Dress(ModuleArgs):
    """Mode and ownership; what is not given stays as it is."""

    mode: Mode | None = Field(None, description='Permissions as octal digits in quotes: "0644".')
    owner: str | None = Field(None, description="User name or number.")
    group: str | None = Field(None, description="Group name or number.")

    def given(self) -> dict[str, Any]:
        """Those that were asked for, as arguments of an agent call."""
        wanted = {"mode": self.mode, "owner": self.owner, "group": self.group}
        return {key: value for key, value in wanted.items() if value is not None}

    def whom(self) -> dict[str, str]:
        """Owner and group if they were asked for, as arguments of an agent call."""
        return {key: value for key, value in self.given().items() if key != "mode"}

    def wrong(self, seen: Seen) -> dict[str, Any]:
        """Those that were asked for and are otherwise."""
        have: dict[str, tuple[Any, ...]] = {
            "mode": (seen.get("mode"),),
            "owner": (seen.get("owner"), str(seen.get("uid"))),
            "group": (seen.get("group"), str(seen.get("gid"))),
        }
        return {key: value for key, value in self.given().items() if value not in have[key]}


def expected(seen: Seen) -> dict[str, Any]:
    """What a call that changes something must still find."""
    return {key: seen[key] for key in _OBSERVED if key in seen}


def permit(path: str, seen: Seen, change: str, site: Site, needed: int = 0) -> None:
    """Raise RemoteError, as the host would, if it is known that a change cannot be made.

    Args:
        change: name of the call of the agent's `files`, as in its `prospects`.
        needed: bytes that are to be written.
    """
    for one in (change, "owner"):
        if one in seen.get("barred", {}):
            kind, message = seen["barred"][one]
            if kind == "not-found" and any(f"{folder}/".startswith(f"{dirname(path)}/") for folder in site.made):
                continue
            raise RemoteError(f"{path}: {message}", kind=kind, hint=_HINTS.get(kind))
    if needed > seen.get("free", needed):
        message = f"{path} needs {size(needed)}, and there is room for {size(seen['free'])} in {seen['ground']}"
        raise RemoteError(message, kind="no-space", hint="make room there first")


def restore(path: str, keep: str = KEEP) -> tuple[Call[Any], ...]:
    return (Call("files.restore", {"path": path, "keep": keep}),)


def worded(wanted: Mapping[str, Any]) -> str:
    """Mode and ownership for a summary: `mode 0644, owner root`."""
    shown = [f"{key} {octal(value) if key == 'mode' else value}" for key, value in wanted.items()]
    return ", ".join(shown)


def refuse(path: str, seen: Seen, wanted: str) -> Conflict:
    """The error for a path that is something else than what was asked for."""
    if seen["kind"] == "link":
        return Conflict(
            f"{path} is a symbolic link to {seen['target']}, not a {wanted}",
            kind="conflict",
            hint="name the path it points to, or say `follow: true` where the module has it",
        )
    names = {"dir": "folder", "other": "special file"}
    return Conflict(
        f"{path} is a {names.get(seen['kind'], seen['kind'])}, not a {wanted}",
        kind="conflict",
        hint="move it away first; nothing is replaced by something of another kind",
    )
