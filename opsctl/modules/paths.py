"""Files and folders put at a path of the host: what the modules that do so have in common."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from posixpath import dirname
from typing import Any, TypedDict, cast

from pydantic import Field

from opsctl.errors import Conflict, RemoteError
from opsctl.modules.contract import Change, FileDiff, ModuleArgs, Site
from opsctl.modules.fields import Mode, octal
from opsctl.secret import mask
from opsctl.text import size
from opsctl.wire.calls.files import State, filelook_stat, files_attributes, files_restore, files_write
from opsctl.wire.protocol import Call, Reply

KEEP = "0"  # what the one call of a change keeps, so that its undo finds it
DIFF_LIMIT = 256 << 10  # bytes of a file that are fetched to show a difference
_OBSERVED = frozenset({"kind", "mode", "uid", "gid", "sha256", "target"})
_HINTS = {
    "not-found": "make the folder first: `file: {path: ..., state: directory}`",
    "permission": "say `become: true` where root may do it",
}


class Whom(TypedDict, total=False):
    """Owner and group, as arguments of an agent call."""

    owner: str
    group: str


class Given(Whom, total=False):
    """Mode and ownership, as arguments of an agent call."""

    mode: int


class FileAttributes(ModuleArgs):
    """Mode and ownership; what is not given stays as it is."""

    mode: Mode | None = Field(None, description='Permissions as octal digits in quotes: "0644".')
    owner: str | None = Field(None, description="User name or number.")
    group: str | None = Field(None, description="Group name or number.")

    def whom(self) -> Whom:
        """Owner and group, if they were asked for."""
        return cast("Whom", self.model_dump(include={"owner", "group"}, exclude_none=True))

    def given(self) -> Given:
        """What was asked for."""
        return cast("Given", self.model_dump(include={"mode", "owner", "group"}, exclude_none=True))

    def wrong(self, seen: State) -> Given:
        """What was asked for and is otherwise."""
        found = self.given()
        if self.mode == seen.get("mode"):
            found.pop("mode", None)
        if self.owner in (seen.get("owner"), str(seen.get("uid"))):
            found.pop("owner", None)
        if self.group in (seen.get("group"), str(seen.get("gid"))):
            found.pop("group", None)
        return found


def expected(seen: State) -> State:
    """What a call that changes something must still find."""
    return cast("State", {key: value for key, value in seen.items() if key in _OBSERVED})


def permit(path: str, seen: State, change: str, site: Site, needed: int = 0) -> None:
    """Raise RemoteError, as the host would, if it is known that a change cannot be made.

    Args:
        change: name of the call of the agent's `files`, as in `barred` of a state.
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
    return (files_restore(path, keep),)


def worded(wanted: Mapping[str, Any]) -> str:
    """Mode and ownership for a summary: `mode 0644, owner root`."""
    shown = [f"{key} {octal(value) if key == 'mode' else value}" for key, value in wanted.items()]
    return ", ".join(shown)


def refuse(path: str, seen: State, wanted: str) -> Conflict:
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


class Placed(FileAttributes):
    """A file at a path, written as a whole."""

    follow: bool = Field(False, description="Write the file a symbolic link points to, instead of refusing.")


def look(path: str, follow: bool, limit: int = DIFF_LIMIT, whom: Whom | None = None) -> Call[State]:
    """Ask for the state of a file, its content if that is short, and whether it may be given to an owner and group."""
    return filelook_stat(path, content=limit, follow=follow, **(whom or {}))


def place(
    path: str, content: bytes, seen: Reply[State], wanted: FileAttributes, site: Site | None, secret: bool = False
) -> Change | None:
    """The change that makes `path` hold `content`, None if it does.

    With a `site`, raises RemoteError for a change that is known to fail. Raises Conflict if it is no file.
    """
    now = seen.result
    if now["kind"] not in ("absent", "file"):
        raise refuse(path, now, "file")
    real = now.get("real", path)
    wrong = wanted.wrong(now) if now["kind"] == "file" else wanted.given()
    if now["kind"] == "file" and now["sha256"] == hashlib.sha256(content).hexdigest():
        if not wrong:
            return None
        if site is not None:
            permit(real, now, "attributes", site)
        call = files_attributes(real, **wrong, expect=expected(now), keep=KEEP)
        return Change(f"set {worded(wrong)} on {path}", (call,), restore(real))
    if site is not None:
        permit(real, now, "write", site, len(content))
    call = files_write(real, **wanted.given(), expect=expected(now), keep=KEEP, body=content)
    verb = "create" if now["kind"] == "absent" else "change"
    summary = f"{verb} {path} ({size(len(content))})" + (f", {worded(wrong)}" if wrong else "")
    return Change(summary, (call,), restore(real), diffs=_diff(path, content, seen, secret))


def holds_secret(text: str) -> bool:
    """Whether a secret that was revealed is part of a text."""
    return mask(text) != text


def _diff(path: str, content: bytes, seen: Reply[State], secret: bool) -> tuple[FileDiff, ...]:
    if seen.result["kind"] == "file" and not seen.result.get("content"):
        return ()  # too long to have been fetched
    before = seen.body if seen.result["kind"] == "file" else None
    return (FileDiff(path, before, content, secret),)
