"""Files and folders copied from the controller."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from opsctl.agent.protocol import Call, Reply
from opsctl.errors import UsageError
from opsctl.modules.content import Placed, holds_secret, look, place
from opsctl.modules.contract import Change, FileDiff, Module, Site
from opsctl.modules.fields import HostPath, Mode, Text, reveal
from opsctl.modules.paths import Seen, expected, refuse
from opsctl.secret import Secret
from opsctl.text import size

LARGEST = 32 << 20  # bytes that travel in one frame
TREE_LARGEST = 48 << 20


class CopyArgs(Placed):
    src: str | None = Field(None, description="File or folder: beside the playbook, or in files/ of the project.")
    content: Text | None = Field(None, description="The content itself, instead of `src`.")
    dest: HostPath = Field(description="The path on the host. Ending in / : into that folder, under its own name.")
    folder_mode: Mode | None = Field(None, description="Mode of folders that are made when a folder is copied.")
    secret: bool = Field(False, description="Never show its content; implied for a secret `content`.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.src is None) == (self.content is None):
            raise ValueError("give either `src` or `content`")
        return self


class Copy(Module[CopyArgs]):
    """Write a file, or everything in a folder, from the controller to the host.

    Compared by digest; a file is replaced in one step and keeps its owner and, without `mode`, its permissions (new
    files: those of the local file). Copying a folder adds and changes files and removes none.
    """

    name = "copy"
    args = CopyArgs
    examples = """
- name: A note
  copy: {content: "kept by opsctl\\n", dest: "{{ scratch }}/NOTE", mode: "0644"}
"""

    def observe(self, args: CopyArgs, site: Site) -> Sequence[Call]:
        source = _source(args, site)
        if source is not None and source.is_dir():
            return (Call("files.tree", {"path": _dest(args, source)}),)
        return (look(_dest(args, source), args.follow),)

    def plan(self, args: CopyArgs, seen: Sequence[Reply], site: Site) -> Change | None:
        source = _source(args, site)
        if source is not None and source.is_dir():
            return _plan_tree(args, source, seen[0].result)
        if source is None:
            assert args.content is not None
            text = reveal(args.content)
            secret = args.secret or isinstance(args.content, Secret) or holds_secret(text)
            return place(args.dest, text.encode(), seen[0], args, secret)
        if args.mode is None and seen[0].result["kind"] == "absent":
            args = args.model_copy(update={"mode": stat.S_IMODE(source.stat().st_mode)})
        return place(_dest(args, source), _content(source), seen[0], args, args.secret)


def _source(args: CopyArgs, site: Site) -> Path | None:
    return None if args.src is None else site.find("files", args.src)


def _dest(args: CopyArgs, source: Path | None) -> str:
    return os.path.join(args.dest, source.name) if source is not None and args.dest.endswith("/") else args.dest


def _content(path: Path) -> bytes:
    length = path.stat().st_size
    if length > LARGEST:
        raise UsageError(
            f"{path} is {size(length)}; `copy` takes files up to {size(LARGEST)}",
            hint="weights are staged by `opsctl drafter stage`, in parallel and resumable",
        )
    return path.read_bytes()


def _plan_tree(args: CopyArgs, source: Path, seen: dict[str, Any]) -> Change | None:
    """Folders first, then files; each call keeps under its own number, so that undoing goes backwards through them."""
    top = _dest(args, source)
    calls: list[Call] = []
    undo: list[Call] = []
    diffs: list[FileDiff] = []
    total = 0
    for relative, path in _walk(source):
        target = os.path.join(top, relative) if relative else top
        now: Seen = seen["top"] if not relative else seen["entries"].get(relative, {"kind": "absent"})
        keep = str(len(calls))
        call = _folder(args, target, now, keep) if path.is_dir() else _file(args, path, target, now, keep)
        if call is None:
            continue
        total += len(call.body)
        if total > TREE_LARGEST:
            raise UsageError(f"{source} holds more than {size(TREE_LARGEST)} to copy", hint="copy its parts apart")
        calls.append(call)
        undo.insert(0, Call("files.restore", {"path": target, "keep": keep}))
        if call.name == "files.write" and now["kind"] == "absent":
            diffs.append(FileDiff(target, None, call.body, args.secret))
    if not calls:
        return None
    files = sum(call.name == "files.write" for call in calls)
    summary = f"copy {files} file{'s' * (files != 1)} ({size(total)}) into {top}"
    if not files:
        summary = f"set permissions in {top}"
    return Change(summary, tuple(calls), tuple(undo), diffs=tuple(diffs))


def _walk(source: Path) -> Iterator[tuple[str, Path]]:
    yield "", source
    for folder, folders, names in os.walk(source, followlinks=True):
        folders.sort()
        for name in sorted(folders + names):
            path = Path(folder, name)
            yield str(path.relative_to(source)), path


def _folder(args: CopyArgs, target: str, now: Seen, keep: str) -> Call | None:
    owner = {key: value for key, value in args.given().items() if key != "mode"}
    wanted = owner if args.folder_mode is None else {**owner, "mode": args.folder_mode}
    if now["kind"] == "absent":
        return Call("files.mkdir", {"path": target, **wanted, "keep": keep})
    if now["kind"] != "dir":
        raise refuse(target, now, "folder")
    wrong = {key: value for key, value in args.wrong(now).items() if key != "mode"}
    if args.folder_mode is not None and now["mode"] != args.folder_mode:
        wrong["mode"] = args.folder_mode
    return Call("files.attributes", {"path": target, **wrong, "expect": expected(now), "keep": keep}) if wrong else None


def _file(args: CopyArgs, path: Path, target: str, now: Seen, keep: str) -> Call | None:
    if now["kind"] not in ("absent", "file"):
        raise refuse(target, now, "file")
    content = _content(path)
    same = now["kind"] == "file" and now["sha256"] == hashlib.sha256(content).hexdigest()
    if same:
        wrong = args.wrong(now)
        call = Call("files.attributes", {"path": target, **wrong, "expect": expected(now), "keep": keep})
        return call if wrong else None
    wanted = args.given()
    if now["kind"] == "absent":
        wanted.setdefault("mode", stat.S_IMODE(path.stat().st_mode))
    return Call("files.write", {"path": target, **wanted, "expect": expected(now), "keep": keep}, content)
