"""Files on the host: looked at, replaced in one step only if still as observed, and put back exactly.

Calls that change something take `expect`, the state as observed (see filestate), and refuse with a conflict if it no
longer holds; with `keep` they write down first what `restore` needs. Text never travels through a shell.
"""

from __future__ import annotations

import errno
import hashlib
import os
from typing import Any, Dict, List, Optional

from opsctl.agent import filestate as fs
from opsctl.agent import filewrite, trash
from opsctl.agent.durable import sync_folder
from opsctl.agent.filewrite import Owner
from opsctl.agent.keep import load, place, save
from opsctl.agent.oserrors import told
from opsctl.agent.protocol import AgentError, Context, Reply
from opsctl.agent.regular import opened, whole


def stat(call: Context, path: str, digest: bool = True, content: int = 0, follow: bool = False) -> Reply:
    """The state of a path, and the bytes of a regular file of at most `content` bytes as the body.

    With `follow` a symbolic link is resolved; the state then has the `real` path.
    """
    path = fs.absolute(path)
    real = os.path.realpath(path) if follow else path
    with told("look at", path):
        body = b""
        found = fs.state(real, False)
        if found["kind"] == "file" and found["size"] <= content:
            with opened(real) as stream:
                body = whole(stream, content + 1)
            found.update(size=len(body), sha256=hashlib.sha256(body).hexdigest(), content=True)
        elif found["kind"] == "file" and digest:
            found["sha256"] = fs.sha256(real, call)
    if follow:
        found["real"] = real
    return Reply(found, body)


def read(call: Context, path: str, offset: int = 0, limit: int = 1 << 20) -> Reply:
    """Up to `limit` bytes from `offset` (negative: from the end) and the size of the whole."""
    path = fs.absolute(path)
    with told("read", path), opened(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else offset
        stream.seek(start)
        return Reply({"size": size, "offset": start}, whole(stream, limit))


def tree(call: Context, path: str, digest: bool = True, limit: int = 100000) -> Dict[str, Any]:
    """States of everything below a folder, by relative path. Links are listed, not followed."""
    path = fs.absolute(path)
    entries: Dict[str, Any] = {}
    with told("list", path):
        top = fs.state(path, False)
        for folder, folders, names in os.walk(path):
            for name in folders + names:
                if call.cancelled() or len(entries) >= limit:
                    raise AgentError("invalid", "more than %d entries below %s" % (limit, path), path=path)
                full = os.path.join(folder, name)
                entries[os.path.relpath(full, path)] = fs.state(full, digest, call)
    return {"top": top, "entries": entries}


def write(
    call: Context,
    path: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    expect: Optional[fs.State] = None,
    keep: Optional[str] = None,
) -> Dict[str, Any]:
    """Make `path` a file with the body as its content. Mode and owner default to those it has, else 0644 and ours."""
    path = fs.absolute(path)
    with told("write", path):
        temporary = filewrite.temporary_for(call, path, keep)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS) or not os.path.isfile(path):
                raise
            return filewrite.replace(call, path, None, mode, owner, group, expect, keep)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(call.body)
                stream.flush()
                os.fsync(stream.fileno())
            return filewrite.replace(call, path, temporary, mode, owner, group, expect, keep)
        finally:
            filewrite.gone(temporary)


def adopt(
    call: Context,
    partial: str,
    path: str,
    sha256: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    expect: Optional[fs.State] = None,
    keep: Optional[str] = None,
) -> Dict[str, Any]:
    """Make `path` the file that was transferred to `partial`, in the same folder, if its digest is right."""
    partial, path = fs.absolute(partial), fs.absolute(path)
    with told("put in place", path):
        if fs.sha256(partial, call) != sha256:
            raise AgentError("conflict", "%s is not what was sent: its digest differs" % partial, path=partial)
        return filewrite.replace(call, path, partial, mode, owner, group, expect, keep)


def attributes(
    call: Context,
    path: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    expect: Optional[fs.State] = None,
    keep: Optional[str] = None,
) -> Dict[str, Any]:
    """Set mode, owner and group of a file or folder."""
    path = fs.absolute(path)
    with told("change", path):
        before = fs.state(path, digest=bool(expect and "sha256" in expect))
        fs.demand(path, before, expect)
        if before["kind"] in ("absent", "link"):
            raise AgentError("not-found", "%s is not a file or folder" % path, path=path)
        uid, gid = fs.uid_of(owner), fs.gid_of(group)
        save(call, keep, {"before": before, "after": filewrite.dressed(before, mode, uid, gid)})
        fs.dress(path, mode, uid, gid)
        return fs.state(path, digest=False)


def mkdir(
    call: Context,
    path: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    keep: Optional[str] = None,
) -> Dict[str, Any]:
    """Make a folder, and those above it that are missing (mode 0755, same owner)."""
    path = fs.absolute(path)
    with told("make folder", path):
        missing: List[str] = []
        above = path
        while not os.path.lexists(above):
            missing.insert(0, above)
            above = os.path.dirname(above)
        if not missing:
            raise AgentError("conflict", "%s exists already" % path, path=path)
        uid, gid = fs.uid_of(owner), fs.gid_of(group)
        save(call, keep, {"made": missing})
        for folder in missing:
            os.mkdir(folder, 0o700)
            fs.dress(folder, 0o755 if mode is None or folder != path else mode, uid, gid)
            sync_folder(os.path.dirname(folder))
        return fs.state(path)


def link(
    call: Context, path: str, target: str, expect: Optional[fs.State] = None, keep: Optional[str] = None
) -> Dict[str, Any]:
    """Make `path` a symbolic link to `target`, replacing another link in one step."""
    path = fs.absolute(path)
    with told("link", path):
        before = fs.state(path)
        fs.demand(path, before, expect)
        if before["kind"] not in ("absent", "link"):
            raise AgentError("exists", "%s is a %s; only a link is replaced by a link" % (path, before["kind"]))
        save(call, keep, {"before": before, "after": {"kind": "link", "target": target}})
        filewrite.put_link(path, target, filewrite.temporary_for(call, path, keep))
        return fs.state(path)


def remove(call: Context, path: str, expect: Optional[fs.State] = None, keep: Optional[str] = None) -> Dict[str, Any]:
    """Make `path` absent. With `keep` it is moved into the journal, whole; else it is deleted."""
    path = fs.absolute(path)
    with told("remove", path):
        before = fs.state(path, digest=bool(expect and "sha256" in expect))
        if before["kind"] == "absent" and not expect:
            return before
        fs.demand(path, before, expect)
        trash.discard(call, path, before, keep)
        return dict(fs.ABSENT)


def restore(call: Context, path: str, keep: str) -> Dict[str, Any]:
    """Put `path` back as it was before the change that kept `keep`; a third party's later change is a conflict."""
    path = fs.absolute(path)
    record = load(call, keep)
    with told("restore", path):
        temporary = filewrite.temporary_for(call, path, keep)
        if record is None:
            return {"restored": False}
        if "made" in record:
            return {"restored": _unmake(record["made"])}
        before, after = record["before"], record["after"]
        now = fs.state(path, digest="sha256" in before or bool(after and "sha256" in after))
        if trash.untouched(path, record) if record.get("trashed") else not fs.differs(now, before):
            trash.tidy(record)
            return {"restored": False}
        if after is not None and not _ours(now, before, after):
            raise AgentError("conflict", "%s was changed by someone else since; it is left as it is" % path, path=path)
        _put_back(call, path, before, now, keep, record, temporary)
        return {"restored": True}


def _ours(now: fs.State, before: fs.State, after: fs.State) -> bool:
    if after["kind"] in ("absent", "link"):
        return not fs.differs(now, after) and now["kind"] == after["kind"]
    return fs.between(now, before, after)


def _put_back(
    call: Context, path: str, before: fs.State, now: fs.State, keep: str, record: Dict[str, Any], temporary: str
) -> None:
    if record.get("trashed"):
        trash.recover(place(call, keep), path, temporary)
        trash.tidy(record)
    elif before["kind"] == "absent":
        os.unlink(path)
        sync_folder(os.path.dirname(path))
    elif before["kind"] == "link":
        filewrite.put_link(path, before["target"], temporary)
        os.chown(path, before["uid"], before["gid"], follow_symlinks=False)
    elif before["kind"] == "file" and now.get("sha256") != before.get("sha256"):
        trash.put(place(call, keep), path, before, temporary)
    else:
        fs.dress(path, before["mode"], before["uid"], before["gid"])


def _unmake(made: List[str]) -> bool:
    undone = False
    for folder in reversed(made):
        try:
            os.rmdir(folder)
            undone = True
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise AgentError("conflict", "%s is no longer empty; it is left as it is" % folder, path=folder) from None
    return undone


CALLS = {
    "stat": stat,
    "read": read,
    "tree": tree,
    "write": write,
    "adopt": adopt,
    "attributes": attributes,
    "mkdir": mkdir,
    "link": link,
    "remove": remove,
    "restore": restore,
}
