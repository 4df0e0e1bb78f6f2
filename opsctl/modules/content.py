"""Files with known content: what `copy`, `template` and `line` plan once they know it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from opsctl.modules.contract import Change, FileDiff, Site
from opsctl.modules.paths import DIFF_LIMIT, KEEP, Dress, Seen, expected, permit, refuse, restore, worded
from opsctl.secret import mask
from opsctl.text import size
from opsctl.wire.protocol import Call, Reply


class Placed(Dress):
    """A file at a path, written as a whole."""

    follow: bool = Field(False, description="Write the file a symbolic link points to, instead of refusing.")


def look(path: str, follow: bool, limit: int = DIFF_LIMIT, whom: Mapping[str, str] | None = None) -> Call[Any]:
    """Ask for the state of a file, its content if that is short, and whether it may be given to an owner and group."""
    return Call("filelook.stat", {"path": path, "content": limit, "follow": follow, **(whom or {})})


def place(
    path: str, content: bytes, seen: Reply[Any], dress: Dress, site: Site | None, secret: bool = False
) -> Change | None:
    """The change that makes `path` hold `content`, None if it does.

    With a `site`, raises RemoteError for a change that is known to fail. Raises Conflict if it is no file.
    """
    now: Seen = seen.result
    if now["kind"] not in ("absent", "file"):
        raise refuse(path, now, "file")
    real = now.get("real", path)
    wrong = dress.wrong(now) if now["kind"] == "file" else dress.given()
    if now["kind"] == "file" and now["sha256"] == hashlib.sha256(content).hexdigest():
        if not wrong:
            return None
        if site is not None:
            permit(real, now, "attributes", site)
        call: Call[Any] = Call("files.attributes", {"path": real, **wrong, "expect": expected(now), "keep": KEEP})
        return Change(f"set {worded(wrong)} on {path}", (call,), restore(real))
    if site is not None:
        permit(real, now, "write", site, len(content))
    call = Call("files.write", {"path": real, **dress.given(), "expect": expected(now), "keep": KEEP}, content)
    verb = "create" if now["kind"] == "absent" else "change"
    summary = f"{verb} {path} ({size(len(content))})" + (f", {worded(wrong)}" if wrong else "")
    return Change(summary, (call,), restore(real), diffs=_diff(path, content, seen, secret))


def holds_secret(text: str) -> bool:
    """Whether a secret that was revealed is part of a text."""
    return mask(text) != text


def _diff(path: str, content: bytes, seen: Reply[Any], secret: bool) -> tuple[FileDiff, ...]:
    if seen.result["kind"] == "file" and not seen.result.get("content"):
        return ()  # too long to have been fetched
    before = seen.body if seen.result["kind"] == "file" else None
    return (FileDiff(path, before, content, secret),)
