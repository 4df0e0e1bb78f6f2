"""Looking at files on the host. Apart from `files`, which changes them and is twice as long to send."""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING, Dict

from opsctl.agent.core.oserrors import told
from opsctl.agent.files import prospects, safepath
from opsctl.agent.files import state as fs
from opsctl.agent.files.regular import opened, whole
from opsctl.agent.files.safepath import Place
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.files import Owner, Part, State, Tree

MOST_ENTRIES = 100000  # of a tree


def stat(
    call: Context,
    path: str,
    digest: bool = True,
    content: int = 0,
    follow: bool = False,
    owner: Owner = None,
    group: Owner = None,
) -> Reply[State]:
    """The state of a path, and the bytes of a regular file of at most `content` bytes as the body.

    The bytes of what may be somebody's hard link to a file that is not theirs stay here: `planted` is true then.
    With `follow` a symbolic link is resolved; the state then has the `real` path. It also has what would keep a change
    from being made, see prospects; `owner` and `group`: whom it may be given to.
    """
    path = fs.absolute(path)
    with told("look at", path):
        real = safepath.resolved(path) if follow else path
        body = b""
        with safepath.there(real) as at:
            found = fs.of(at, False) if at else fs.ABSENT.copy()
            if at and found["kind"] == "file" and found["size"] <= content:
                with opened(at.name, os.O_NOFOLLOW, at.folder) as stream:
                    data, info = whole(stream, content + 1), os.fstat(stream.fileno())
                found["size"], found["sha256"] = len(data), hashlib.sha256(data).hexdigest()
                if at.planted(info) and info.st_uid != os.fstat(at.folder).st_uid:
                    found["planted"] = True  # what is in it is not for whom this path is of
                else:
                    body, found["content"] = data, True
            elif at and found["kind"] == "file" and digest:
                found["sha256"] = fs.sha256(at.name, call, at.folder)
            prospects.of(real, at, found, owner, group)
    if follow:
        found["real"] = real
    return Reply(found, body)


def read(call: Context, path: str, offset: int = 0, limit: int = 1 << 20) -> Reply[Part]:
    """Up to `limit` bytes from `offset` (negative: from the end) and the size of the whole."""
    path = fs.absolute(path)
    with told("read", path), opened(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else offset
        stream.seek(start)
        return Reply({"size": size, "offset": start}, whole(stream, limit))


def tree(call: Context, path: str, digest: bool = True, owner: Owner = None, group: Owner = None) -> Tree:
    """States of a folder and of everything below it, by relative path. Links are listed, not followed.

    Each has what would keep a change from being made, see prospects.
    """
    path = fs.absolute(path)
    entries: Dict[str, State] = {}

    def visit(folder: int, above: str) -> None:
        closed = prospects.closed(folder, os.path.join(path, above))
        for name in sorted(os.listdir(folder)):
            if call.cancelled() or len(entries) >= MOST_ENTRIES:
                raise AgentError("invalid", "more than %d entries below %s" % (MOST_ENTRIES, path), path=path)
            at = Place(folder, name, os.path.join(path, above, name))
            with told("look at", at.path):
                try:
                    found = fs.of(at, digest, call)
                except PermissionError:  # perhaps nobody wants to change it
                    found = fs.of(at, False)
                entries[os.path.join(above, name)] = found
                found["barred"] = prospects.barred(at, found, closed, owner, group)
                if found["kind"] == "dir":
                    with contextlib.suppress(PermissionError), at.entered() as below:
                        visit(below, os.path.join(above, name))

    with told("list", path), safepath.there(path) as at:
        top = fs.of(at, False) if at else fs.ABSENT.copy()
        prospects.of(path, at, top, owner, group)
        if at and top["kind"] == "dir":
            with at.entered() as folder:
                visit(folder, "")
    return {"top": top, "entries": entries}


CALLS = {"stat": stat, "read": read, "tree": tree}
