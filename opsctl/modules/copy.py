"""Files and folders copied from the controller."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from opsctl.errors import OpsctlError, Unreachable, UsageError
from opsctl.localfiles import demand_file, opened, read
from opsctl.modules.contract import Change, FileDiff, Module, Progress, Site
from opsctl.modules.fields import HostPath, Mode, Text, reveal
from opsctl.modules.paths import DIFF_LIMIT, Placed, expected, holds_secret, look, permit, place, refuse
from opsctl.secret import Secret
from opsctl.text import size
from opsctl.wire.calls import files
from opsctl.wire.calls.files import State, filelook_tree
from opsctl.wire.calls.stage import arrival_begin, arrival_drop
from opsctl.wire.digests import temporary_name
from opsctl.wire.host import Host, Part
from opsctl.wire.protocol import Call, Reply

IN_FRAME = 4 << 20  # bytes of a file that travel with its call; longer ones are sent in parallel, and resumed
ALL_IN_FRAME = 32 << 20  # bytes of all files of one change that do
MOST_TOLD = 10  # things in a folder that cannot be copied


class CopyArgs(Placed):
    src: str | None = Field(None, description="File or folder: beside the playbook, or in files/ of the project.")
    content: Text | None = Field(None, description="The content itself, instead of `src`.")
    dest: HostPath = Field(description="The path on the host. Ending in / : into that folder, under its own name.")
    folder_mode: Mode | None = Field(None, description="Mode of folders that are made when a folder is copied.")
    local_follow: bool = Field(
        True, description="Copy what symbolic links in a local folder point to; `false`: copy them as links."
    )
    secret: bool = Field(False, description="Never show its content; implied for a secret `content`.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.src is None) == (self.content is None):
            raise ValueError("give either `src` or `content`")
        return self


class Copy(Module[CopyArgs]):
    """Write a file, or everything in a folder, from the controller to the host.

    Compared by digest; a file is replaced in one step and keeps its owner and, without `mode`, its permissions (new
    files: those of the local file). Copying a folder adds and changes files and removes none; what cannot be copied,
    such as a link to nothing or a socket, is told before anything is sent. Long files are sent over several channels.
    They go on where a lost connection left them; what has arrived of them is removed when sending fails or is stopped.
    """

    name = "copy"
    src = "files"
    programs = frozenset({"cp", "install", "tee"})
    args = CopyArgs
    examples = """
- name: A note
  copy: {content: "kept by opsctl\\n", dest: "{{ scratch }}/NOTE", mode: "0644"}
"""

    def observe(self, args: CopyArgs, site: Site) -> Sequence[Call[Any]]:
        source = _source(args, site)
        if isinstance(source, Tree):
            return (filelook_tree(_dest(args, source.top), **args.whom()),)
        return (look(_dest(args, source), args.follow, whom=args.whom()),)

    def plan(self, args: CopyArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        source = _source(args, site)
        if source is None:
            assert args.content is not None
            text = reveal(args.content)
            secret = args.secret or isinstance(args.content, Secret) or holds_secret(text)
            return place(args.dest, text.encode(), seen[0], args, site, secret)
        if isinstance(source, Tree):
            return _plan_tree(args, source, seen[0].result, site)
        now: State = seen[0].result
        if args.mode is None and now["kind"] == "absent":
            args = args.model_copy(update={"mode": stat.S_IMODE(source.stat().st_mode)})
        if source.stat().st_size <= IN_FRAME:
            return place(_dest(args, source), read(source), seen[0], args, site, args.secret)
        target = now.get("real", _dest(args, source))
        batch = _Batch(args, site, target, os.path.dirname(target))
        batch.file(source, target, now)
        if batch.written:
            permit(target, now, "write", site, batch.total)
        return batch.change(f"{'create' if now['kind'] == 'absent' else 'change'} {target}")


def _source(args: CopyArgs, site: Site) -> Path | Tree | None:
    """What is to be copied. Raises UsageError for what cannot be."""
    if args.src is None:
        return None
    path = site.find("files", args.src)
    if path.is_dir():
        return Tree.of(path, args.local_follow)
    try:
        demand_file(path)
    except OSError as error:
        raise UsageError(f"cannot copy {path}: {error.strerror}") from None
    return path


def _dest(args: CopyArgs, source: Path | None) -> str:
    return os.path.join(args.dest, source.name) if source is not None and args.dest.endswith("/") else args.dest


def _plan_tree(args: CopyArgs, source: Tree, seen: files.Tree, site: Site) -> Change | None:
    top = _dest(args, source.top)
    first = seen["top"]
    batch = _Batch(args, site, top, top if first["kind"] == "dir" else first.get("ground", os.path.dirname(top)))
    batch.folder(top, first)
    for relative, path in source.entries:
        target = os.path.join(top, relative)
        now = seen["entries"].get(relative)
        above = seen["entries"].get(os.path.dirname(relative), first) if os.path.dirname(relative) else first
        if now is None:  # what bars making it is told with the folder it is to be in, if that is there already
            inside = above.get("barred", {}).get("inside") if above["kind"] == "dir" else None
            now = {"kind": "absent", "barred": dict.fromkeys(("write", "mkdir", "link"), inside) if inside else {}}
        if path.is_symlink() and not args.local_follow:
            batch.link(path, target, now)
        elif path.is_dir():
            batch.folder(target, now)
        else:
            batch.file(path, target, now)
    if batch.written:
        room: State = {"kind": "absent", "free": first.get("free", batch.total), "ground": batch.room}
        permit(top, room, "write", site, batch.total)
        return batch.change(f"copy {batch.written} file{'s' * (batch.written != 1)} into {top}")
    return batch.change(f"set permissions in {top}")


@dataclass(frozen=True, slots=True)
class Tree:
    """A local folder that can be copied. `entries`: relative and full path, folders before what is in them."""

    top: Path
    entries: tuple[tuple[str, Path], ...]

    @classmethod
    def of(cls, top: Path, follow: bool) -> Self:
        """Look at all of a folder. Raises UsageError that names everything in it that cannot be copied."""
        entries: list[tuple[str, Path]] = []
        wrong: list[str] = []

        def visit(folder: Path, above: frozenset[tuple[int, int]]) -> None:
            try:
                info = folder.stat()
                names = sorted(os.listdir(folder))
            except OSError as error:
                wrong.append(f"{folder}: {error.strerror}")
                return
            here = above | {(info.st_dev, info.st_ino)}
            for path in (folder / name for name in names):
                entries.append((str(path.relative_to(top)), path))
                if path.is_symlink() and not follow:
                    continue
                try:
                    info = path.stat()
                    if stat.S_ISDIR(info.st_mode) and (info.st_dev, info.st_ino) in here:
                        wrong.append(f"{path}: a link to a folder that it is in ({os.readlink(path)})")
                    elif stat.S_ISDIR(info.st_mode):
                        visit(path, here)
                    else:
                        demand_file(path)
                except OSError as error:
                    gone = path.is_symlink() and isinstance(error, FileNotFoundError)
                    what = f"a link to nothing ({os.readlink(path)})" if gone else error.strerror
                    wrong.append(f"{path}: {what}")

        visit(top, frozenset())
        if wrong:
            more = f", and {len(wrong) - MOST_TOLD} more" if len(wrong) > MOST_TOLD else ""
            raise UsageError(
                f"{top} cannot be copied: {'; '.join(wrong[:MOST_TOLD])}{more}",
                hint="take it out of the folder, or copy links as links with `local_follow: false`",
            )
        return cls(top, tuple(entries))


@dataclass
class _Batch:
    """Calls that place files and folders, each kept under its own number, so that undoing goes backwards.

    `room`: the folder on the host beside or in which long files arrive.
    """

    args: CopyArgs
    site: Site
    target: str
    room: str
    calls: list[Call[Any]] = field(default_factory=list)
    undo: list[Call[Any]] = field(default_factory=list)
    diffs: list[FileDiff] = field(default_factory=list)
    sending: dict[str, Path] = field(default_factory=dict)  # by the name under which it arrives
    written: int = 0
    total: int = 0
    in_frame: int = 0

    def folder(self, target: str, now: State) -> None:
        wanted = self.args.model_copy(update={"mode": self.args.folder_mode})
        if now["kind"] == "absent":
            permit(target, now, "mkdir", self.site)
            self._add(files.files_mkdir(target, **wanted.given()))
            return
        if now["kind"] != "dir":
            raise refuse(target, now, "folder")
        wrong = wanted.wrong(now)
        if wrong:
            permit(target, now, "attributes", self.site)
            self._add(files.files_attributes(target, **wrong, expect=expected(now)))

    def link(self, path: Path, target: str, now: State) -> None:
        leads = os.readlink(path)
        if now["kind"] == "link" and now["target"] == leads:
            return
        if now["kind"] not in ("absent", "link"):
            raise refuse(target, now, "link")
        permit(target, now, "link", self.site)
        self.written += 1
        self._add(files.files_link(target, leads, expect=expected(now)))

    def file(self, path: Path, target: str, now: State) -> None:
        if now["kind"] not in ("absent", "file"):
            raise refuse(target, now, "file")
        info = path.stat()
        digest = _digest(path, info.st_size, info.st_mtime_ns)
        if now["kind"] == "file" and now.get("sha256") == digest:
            wrong = self.args.wrong(now)
            if wrong:
                permit(target, now, "attributes", self.site)
                self._add(files.files_attributes(target, **wrong, expect=expected(now)))
            return
        permit(target, now, "write", self.site)
        wanted = self.args.given()
        if now["kind"] == "absent":
            wanted.setdefault("mode", stat.S_IMODE(info.st_mode))
        self.written += 1
        self.total += info.st_size
        if info.st_size > IN_FRAME or self.in_frame + info.st_size > ALL_IN_FRAME:
            name = f"{len(self.sending)}-{digest[:12]}"
            self.sending[name] = path
            self._add(files.files_adopt(name, target, digest, **wanted, expect=expected(now)))
            return
        content = read(path)
        self.in_frame += len(content)
        self._add(files.files_write(target, **wanted, expect=expected(now), body=content))
        if now["kind"] == "absent" and len(content) <= DIFF_LIMIT:
            self.diffs.append(FileDiff(target, None, content, self.args.secret))

    def change(self, summary: str) -> Change | None:
        if not self.calls:
            return None
        makes = frozenset(str(call.args["path"]) for call in self.calls if call.name == "files.mkdir")
        told = f"{summary} ({size(self.total)})" if self.written else summary
        if not self.sending:
            return Change(told, tuple(self.calls), tuple(self.undo), diffs=tuple(self.diffs), makes=makes)
        # The same for the same content, so that a later run goes on with it.
        folder = os.path.join(self.room, temporary_name(os.path.basename(self.target), repr(sorted(self.sending))))
        calls = [
            call.with_args(partial=f"{folder}/{call.args['partial']}") if call.name == "files.adopt" else call
            for call in self.calls
        ]
        drop = arrival_drop(folder)
        return Change(
            told,
            (*calls, drop),
            (*self.undo, drop),
            transfer=_transfer(folder, self.sending),
            diffs=tuple(self.diffs),
            makes=makes,
        )

    def _add(self, call: Call[State]) -> None:
        keep = str(len(self.calls))
        self.calls.append(call.with_args(keep=keep))
        self.undo.insert(0, files.files_restore(call.args["path"], keep))


def _transfer(folder: str, sending: Mapping[str, Path]) -> Callable[[Host, Progress], dict[str, Any]]:
    def transfer(host: Host, progress: Progress) -> dict[str, Any]:
        before = {path: _look(path) for path in sending.values()}
        sizes = {name: before[path][0] for name, path in sending.items()}
        total = sum(sizes.values())
        try:
            arrived = host.call(arrival_begin(folder, sizes)).result["arrived"]
            parts = [
                Part(str(sending[name]), name, start, end)
                for name, length in sizes.items()
                for start, end in _missing(length, [span[1:] for span in arrived if span[0] == name])
            ]
            there = total - sum(part.size for part in parts)

            def told(sent: int) -> None:
                progress(f"{size(there + sent)} of {size(total)}", (there + sent) / total)

            if parts:
                with host.sending(total - there) as stream:
                    stream.send(folder, parts, told)
            for path, looked in before.items():
                if _look(path) != looked:
                    raise UsageError(f"{path} was changed while it was being sent", hint="send it when it is complete")
        except Unreachable as error:
            error.hint = f"what has arrived is in {folder}: run it again to go on from there"
            raise
        except BaseException as error:
            removed = 0
            with contextlib.suppress(OpsctlError):
                removed = host.cleaning_up().call(arrival_drop(folder)).result["removed"]
            if removed and isinstance(error, OpsctlError):
                error.message += f"; what had arrived ({size(removed)}, in {folder}) was removed"
            raise
        return {}

    return transfer


def _missing(length: int, spans: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
    """What rising spans leave of a file."""
    at = 0
    for start, end in spans:
        if start > at:
            yield at, start
        at = max(at, end)
    if at < length:
        yield at, length


def _look(path: Path) -> tuple[int, int, int]:
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ino


@functools.lru_cache(maxsize=4096)
def _digest(path: Path, length: int, changed: int) -> str:
    """SHA-256 of a local file. Its size and time of change are part of the key, so that it is read once."""
    with opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
