"""Files on the host: looked at, replaced in one step only if still as observed, and put back exactly.

Calls that change something take `expect`, the state as observed (see filestate), and refuse with a conflict if it no
longer holds; with `keep` they write down first what `restore` needs. Text never travels through a shell.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from typing import Any, Dict, List, Optional, Union

from opsctl.agent import filestate as fs
from opsctl.agent import trash
from opsctl.agent.durable import sync_folder
from opsctl.agent.keep import load, place, save
from opsctl.agent.oserrors import told
from opsctl.agent.protocol import AgentError, Context, Reply

Owner = Union[str, int, None]
IN_PLACE = (errno.EBUSY, errno.EXDEV, errno.ETXTBSY)  # the name cannot be replaced: a bind mount, most often


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
            with open(real, "rb") as stream:
                body = stream.read(content + 1)
            found.update(size=len(body), sha256=hashlib.sha256(body).hexdigest(), content=True)
        elif found["kind"] == "file" and digest:
            found["sha256"] = fs.sha256(real, call)
    if follow:
        found["real"] = real
    return Reply(found, body)


def read(call: Context, path: str, offset: int = 0, limit: int = 1 << 20) -> Reply:
    """Up to `limit` bytes from `offset` (negative: from the end) and the size of the whole."""
    path = fs.absolute(path)
    with told("read", path), open(path, "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        start = max(0, size + offset) if offset < 0 else offset
        stream.seek(start)
        return Reply({"size": size, "offset": start}, stream.read(limit))


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
        temporary = _temporary(call, path, keep)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS) or not os.path.isfile(path):
                raise
            return _replace(call, path, None, mode, owner, group, expect, keep)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(call.body)
                stream.flush()
                os.fsync(stream.fileno())
            return _replace(call, path, temporary, mode, owner, group, expect, keep)
        finally:
            _gone(temporary)


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
        return _replace(call, path, partial, mode, owner, group, expect, keep)


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
        save(call, keep, {"before": before, "after": _dressed(before, mode, uid, gid)})
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
        _put_link(path, target, _temporary(call, path, keep))
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
        temporary = _temporary(call, path, keep)
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


def _replace(
    call: Context,
    path: str,
    temporary: Optional[str],
    mode: Optional[int],
    owner: Owner,
    group: Owner,
    expect: Optional[fs.State],
    keep: Optional[str],
) -> Dict[str, Any]:
    before = fs.state(path)
    fs.demand(path, before, expect)
    if before["kind"] not in ("absent", "file"):
        raise AgentError("exists", "%s is a %s, not a file" % (path, before["kind"]), path=path)
    uid, gid = fs.uid_of(owner), fs.gid_of(group)
    bare = before if before["kind"] == "file" else {"mode": 0o644, "uid": os.geteuid(), "gid": -1}
    after = _dressed(bare, mode, uid, gid)
    if keep is not None and before["kind"] == "file":
        trash.image(path, place(call, keep), shared=temporary is not None)
    if temporary is None:
        return _in_place(call, path, call.body, before, after, keep)
    if before["kind"] == "file":
        fs.copy_xattrs(path, temporary)
    fs.dress(temporary, after["mode"], after["uid"], after["gid"])
    after = fs.state(temporary)
    save(call, keep, {"before": before, "after": after})
    fs.fsynced(temporary)
    try:
        os.replace(temporary, path)
    except OSError as error:
        if error.errno not in IN_PLACE or before["kind"] != "file":
            raise
        with open(temporary, "rb") as stream:
            return _in_place(call, path, stream.read(), before, after, keep)
    sync_folder(os.path.dirname(path))
    return after


def _in_place(
    call: Context, path: str, content: bytes, before: fs.State, after: fs.State, keep: Optional[str]
) -> Dict[str, Any]:
    """Overwrite the bytes of a name that cannot be replaced. Not atomic, so the caller is told."""
    if keep is not None:
        trash.image(path, place(call, keep), shared=False)
        save(call, keep, {"before": before, "after": None})  # cut half way, the content is neither of the two
    with open(path, "r+b") as stream:
        stream.write(content)
        stream.truncate()
        stream.flush()
        os.fsync(stream.fileno())
    fs.dress(path, after["mode"], after["uid"], after["gid"])
    now = fs.state(path)
    save(call, keep, {"before": before, "after": now})
    return dict(now, warning="%s could not be replaced in one step (a mount point?); it was overwritten" % path)


def _dressed(before: fs.State, mode: Optional[int], uid: int, gid: int) -> fs.State:
    return dict(
        before,
        mode=before["mode"] if mode is None else mode,
        uid=before["uid"] if uid == -1 else uid,
        gid=before["gid"] if gid == -1 else gid,
    )


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
        _put_link(path, before["target"], temporary)
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


def _temporary(call: Context, path: str, keep: Optional[str]) -> str:
    """The name of what is renamed to `path`, free: what a crash left there is removed."""
    temporary = fs.beside(path, None if keep is None else place(call, keep))
    if os.path.lexists(temporary):
        trash.delete(temporary)
    return temporary


def _put_link(path: str, target: str, temporary: str) -> None:
    os.symlink(target, temporary)
    try:
        os.replace(temporary, path)
    finally:
        _gone(temporary)
    sync_folder(os.path.dirname(path))


def _gone(path: str) -> None:
    with contextlib.suppress(OSError):  # it was renamed into place, or the folder went away with it
        os.unlink(path)


def free(call: Context, path: str) -> Dict[str, int]:
    """Bytes free to us and in all on the file system that holds `path`, or its nearest existing folder."""
    path = fs.absolute(path)
    while not os.path.exists(path):
        path = os.path.dirname(path)
    info = os.statvfs(path)
    return {"free": info.f_bavail * info.f_frsize, "total": info.f_blocks * info.f_frsize}


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
    "free": free,
}
