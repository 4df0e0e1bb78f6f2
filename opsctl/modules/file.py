"""Folders, links, permissions, and things that must not be there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from opsctl.modules.contract import Change, FileDiff, Module, Site
from opsctl.modules.fields import HostPath
from opsctl.modules.paths import DIFF_LIMIT, KEEP, FileAttributes, Given, expected, permit, refuse, restore, worded
from opsctl.wire.calls.files import (
    State,
    filelook_stat,
    files_attributes,
    files_link,
    files_mkdir,
    files_remove,
    files_write,
)
from opsctl.wire.protocol import Call, Reply


class FileArgs(FileAttributes):
    path: HostPath = Field(description="The path on the host.")
    state: Literal["file", "directory", "link", "absent"] = Field(
        "file", description="What it is to be; a missing file is made empty, a missing folder with those above it."
    )
    target: str | None = Field(None, description="Where the link points to, as it is to be written in the link.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.state == "link") != (self.target is not None):
            raise ValueError("`target` goes with `state: link`, and only with it")
        if self.state in ("link", "absent") and self.given():
            raise ValueError(f"mode, owner and group mean nothing with `state: {self.state}`")
        return self


class File(Module[FileArgs]):
    """Make a path a folder, a link, a file, or absent, with the right mode and owner.

    What is removed is moved into the journal, so that a rollback brings it back. A path that is something else than
    what was asked for is left alone and reported.
    """

    name = "file"
    programs = frozenset({"mkdir", "rm", "rmdir", "ln", "chmod", "chown", "touch"})
    args = FileArgs
    examples = """
- name: Releases folder
  file: {path: "{{ scratch }}/releases/draft", state: directory, mode: "0755"}
- name: Current release
  file: {path: "{{ scratch }}/current", state: link, target: releases/draft}
- name: No stale lock
  file: {path: "{{ scratch }}/stale.lock", state: absent}
"""

    def observe(self, args: FileArgs, site: Site) -> Sequence[Call[Any]]:
        content = DIFF_LIMIT if args.state == "absent" else 0
        return (filelook_stat(args.path, digest=args.state == "absent", content=content, **args.whom()),)

    def plan(self, args: FileArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        now: State = seen[0].result
        match args.state:
            case "absent":
                return _absent(args, seen[0], site)
            case "link":
                return _link(args, now, site)
            case "directory" if now["kind"] == "absent":
                permit(args.path, now, "mkdir", site)
                call = files_mkdir(args.path, **args.given(), keep=KEEP)
                summary = _summary(f"make folder {args.path}", args.given())
                return Change(summary, (call,), restore(args.path), makes=frozenset((args.path,)))
            case "file" if now["kind"] == "absent":
                permit(args.path, now, "write", site)
                call = files_write(args.path, **args.given(), expect=expected(now), keep=KEEP)
                diff = FileDiff(args.path, None, b"")
                summary = _summary(f"make empty file {args.path}", args.given())
                return Change(summary, (call,), restore(args.path), diffs=(diff,))
        if now["kind"] != {"directory": "dir", "file": "file"}[args.state]:
            raise refuse(args.path, now, "folder" if args.state == "directory" else "file")
        return _attributes(args, now, site)


def _attributes(args: FileArgs, now: State, site: Site) -> Change | None:
    wrong = args.wrong(now)
    if not wrong:
        return None
    permit(args.path, now, "attributes", site)
    call = files_attributes(args.path, **wrong, expect=expected(now), keep=KEEP)
    return Change(f"set {worded(wrong)} on {args.path}", (call,), restore(args.path))


def _link(args: FileArgs, now: State, site: Site) -> Change | None:
    if now["kind"] == "link" and now["target"] == args.target:
        return None
    if now["kind"] not in ("absent", "link"):
        raise refuse(args.path, now, "link")
    permit(args.path, now, "link", site)
    call = files_link(args.path, str(args.target), expect=expected(now), keep=KEEP)
    before = f", instead of {now['target']}" if now["kind"] == "link" else ""
    return Change(f"link {args.path} to {args.target}{before}", (call,), restore(args.path))


def _absent(args: FileArgs, reply: Reply[State], site: Site) -> Change | None:
    now = reply.result
    if now["kind"] == "absent":
        return None
    permit(args.path, now, "remove", site)
    call = files_remove(args.path, expect=expected(now), keep=KEEP)
    diffs = (FileDiff(args.path, reply.body, None),) if now.get("content") else ()
    what = {"dir": "folder", "other": "special file"}.get(now["kind"], now["kind"])
    return Change(f"remove {what} {args.path}", (call,), restore(args.path), diffs=diffs)


def _summary(text: str, wanted: Given) -> str:
    return f"{text}, {worded(wanted)}" if wanted else text
