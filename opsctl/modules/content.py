"""Files with known content: what `copy`, `template` and `line` plan once they know it."""

from __future__ import annotations

import hashlib

from pydantic import Field

from opsctl.modules.contract import Change, FileDiff, Site
from opsctl.modules.paths import DIFF_LIMIT, KEEP, FileAttributes, Whom, expected, permit, refuse, restore, worded
from opsctl.secret import mask
from opsctl.text import size
from opsctl.wire.calls.files import State, filelook_stat, files_attributes, files_write
from opsctl.wire.protocol import Call, Reply


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
