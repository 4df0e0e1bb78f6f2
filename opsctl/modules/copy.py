"""Files and folders copied from the controller."""

from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from pydantic import Field, model_validator

from opsctl.agent.filestate import hidden
from opsctl.agent.protocol import Call, Reply
from opsctl.modules.content import Placed, holds_secret, look, place
from opsctl.modules.contract import Change, FileDiff, Host, Module, Progress, Site
from opsctl.modules.fields import HostPath, Mode, Text, reveal
from opsctl.modules.paths import DIFF_LIMIT, Seen, expected, refuse
from opsctl.secret import Secret
from opsctl.text import size

if TYPE_CHECKING:
    from opsctl.remote.host import RemoteHost

IN_FRAME = 4 << 20  # bytes of a file that travel with its call; longer ones are sent in parallel, and resumed
ALL_IN_FRAME = 32 << 20  # bytes of all files of one change that do


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
    files: those of the local file). Copying a folder adds and changes files and removes none. Long files are sent over
    several channels, and continue where a lost connection left them.
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
            return (Call("filelook.tree", {"path": _dest(args, source)}),)
        return (look(_dest(args, source), args.follow),)

    def plan(self, args: CopyArgs, seen: Sequence[Reply], site: Site) -> Change | None:
        source = _source(args, site)
        if source is None:
            assert args.content is not None
            text = reveal(args.content)
            secret = args.secret or isinstance(args.content, Secret) or holds_secret(text)
            return place(args.dest, text.encode(), seen[0], args, secret)
        if source.is_dir():
            return _plan_tree(args, source, seen[0].result)
        if args.mode is None and seen[0].result["kind"] == "absent":
            args = args.model_copy(update={"mode": stat.S_IMODE(source.stat().st_mode)})
        if source.stat().st_size <= IN_FRAME:
            return place(_dest(args, source), source.read_bytes(), seen[0], args, args.secret)
        batch = _Batch(args)
        target = seen[0].result.get("real", _dest(args, source))
        batch.file(source, target, seen[0].result)
        return batch.change(f"{'create' if seen[0].result['kind'] == 'absent' else 'change'} {target}")


def _source(args: CopyArgs, site: Site) -> Path | None:
    return None if args.src is None else site.find("files", args.src)


def _dest(args: CopyArgs, source: Path | None) -> str:
    return os.path.join(args.dest, source.name) if source is not None and args.dest.endswith("/") else args.dest


def _plan_tree(args: CopyArgs, source: Path, seen: dict[str, Any]) -> Change | None:
    top = _dest(args, source)
    batch = _Batch(args)
    for relative, path in _walk(source):
        target = os.path.join(top, relative) if relative else top
        now: Seen = seen["top"] if not relative else seen["entries"].get(relative, {"kind": "absent"})
        if path.is_dir():
            batch.folder(target, now)
        else:
            batch.file(path, target, now)
    if batch.written:
        return batch.change(f"copy {batch.written} file{'s' * (batch.written != 1)} into {top}")
    return batch.change(f"set permissions in {top}")


def _walk(source: Path) -> Iterator[tuple[str, Path]]:
    """Folders before what is in them."""
    yield "", source
    for folder, folders, names in os.walk(source, followlinks=True):
        folders.sort()
        for name in sorted(folders + names):
            path = Path(folder, name)
            yield str(path.relative_to(source)), path


@dataclass
class _Batch:
    """Calls that place files and folders, each kept under its own number, so that undoing goes backwards."""

    args: CopyArgs
    calls: list[Call] = field(default_factory=list)
    undo: list[Call] = field(default_factory=list)
    diffs: list[FileDiff] = field(default_factory=list)
    sending: list[tuple[Path, str]] = field(default_factory=list)
    written: int = 0
    total: int = 0
    in_frame: int = 0

    def folder(self, target: str, now: Seen) -> None:
        mode = {} if self.args.folder_mode is None else {"mode": self.args.folder_mode}
        owner = {key: value for key, value in self.args.given().items() if key != "mode"}
        if now["kind"] == "absent":
            self._add("files.mkdir", target, {**owner, **mode})
            return
        if now["kind"] != "dir":
            raise refuse(target, now, "folder")
        wrong = {key: value for key, value in self.args.wrong(now).items() if key != "mode"}
        if mode and now["mode"] != self.args.folder_mode:
            wrong.update(mode)
        if wrong:
            self._add("files.attributes", target, {**wrong, "expect": expected(now)})

    def file(self, path: Path, target: str, now: Seen) -> None:
        if now["kind"] not in ("absent", "file"):
            raise refuse(target, now, "file")
        info = path.stat()
        digest = _digest(path, info.st_size, info.st_mtime_ns)
        if now["kind"] == "file" and now["sha256"] == digest:
            wrong = self.args.wrong(now)
            if wrong:
                self._add("files.attributes", target, {**wrong, "expect": expected(now)})
            return
        wanted = self.args.given()
        if now["kind"] == "absent":
            wanted.setdefault("mode", stat.S_IMODE(info.st_mode))
        self.written += 1
        self.total += info.st_size
        wanted["expect"] = expected(now)
        if info.st_size > IN_FRAME or self.in_frame + info.st_size > ALL_IN_FRAME:
            partial = os.path.join(os.path.dirname(target), hidden(os.path.basename(target), digest))
            self.sending.append((path, partial))
            self._add("files.adopt", target, {"partial": partial, "sha256": digest, **wanted})
            return
        content = path.read_bytes()
        self.in_frame += len(content)
        self._add("files.write", target, wanted, content)
        if now["kind"] == "absent" and len(content) <= DIFF_LIMIT:
            self.diffs.append(FileDiff(target, None, content, self.args.secret))

    def change(self, summary: str) -> Change | None:
        if not self.calls:
            return None
        told = f"{summary} ({size(self.total)})" if self.written else summary
        transfer = _transfer(tuple(self.sending)) if self.sending else None
        return Change(told, tuple(self.calls), tuple(self.undo), transfer=transfer, diffs=tuple(self.diffs))

    def _add(self, name: str, target: str, how: dict[str, Any], body: bytes = b"") -> None:
        keep = str(len(self.calls))
        self.calls.append(Call(name, {"path": target, **how, "keep": keep}, body))
        self.undo.insert(0, Call("files.restore", {"path": target, "keep": keep}))


def _transfer(sending: tuple[tuple[Path, str], ...]) -> Callable[[Host, Progress], dict[str, Any]]:
    def transfer(host: Host, progress: Progress) -> dict[str, Any]:
        from opsctl.remote.bulk import send  # only where something is sent

        for path, partial in sending:

            def told(done: int, total: int, path: Path = path) -> None:
                progress(f"{path.name}: {size(done)} of {size(total)}", done / total if total else 1.0)

            send(cast("RemoteHost", host), path, partial, on_bytes=told)
        return {}

    return transfer


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, length: int, changed: int) -> str:
    """SHA-256 of a local file. Its size and time of change are part of the key, so that it is read once."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
