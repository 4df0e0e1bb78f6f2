"""Before-images in the journal: kept without copying where the file system allows, and put back as they were."""

from __future__ import annotations

import errno
import os
import stat as st
from typing import Any, Dict, List, Optional

from opsctl.agent import filestate as fs
from opsctl.agent.durable import sync_folder
from opsctl.agent.keep import place, save
from opsctl.agent.protocol import AgentError, Context
from opsctl.agent.regular import opened


def image(path: str, blob: str, shared: bool) -> None:
    """Keep the file `path` as `blob`. `shared`: the name will be replaced, so a hard link keeps the very file."""
    if os.path.lexists(blob):
        os.unlink(blob)
    if shared:
        try:
            os.link(path, blob, follow_symlinks=False)
            return
        except OSError:  # another file system, or not our file: copy it
            pass
    _copy(path, blob)
    sync_folder(os.path.dirname(blob))


def put(blob: str, path: str, before: fs.State, temporary: str) -> None:
    """Make `path` the file that was kept as `blob`, in one step where the name can be replaced."""
    if fs.sha256(blob) != before["sha256"]:
        raise AgentError("failed", "what was kept of %s is damaged; it is left as it is" % path, path=blob)
    try:
        try:
            os.link(blob, temporary)
        except OSError:
            _copy(blob, temporary)
        fs.dress(temporary, before["mode"], before["uid"], before["gid"])
        try:
            os.replace(temporary, path)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EXDEV, errno.ETXTBSY):
                raise
            with open(blob, "rb") as source, open(path, "r+b") as target:
                target.writelines(fs.parts(source))
                target.truncate()
            fs.dress(path, before["mode"], before["uid"], before["gid"])
    finally:
        if os.path.lexists(temporary):
            os.unlink(temporary)
    sync_folder(os.path.dirname(path))


def discard(call: Context, path: str, before: fs.State, keep: Optional[str]) -> None:
    """Make `path` absent; with `keep`, moved into the journal, or copied there from another file system."""
    _refuse_roots(path)
    if before["kind"] == "dir" and os.path.ismount(path):
        raise AgentError("busy", "%s is a mount point" % path, path=path)
    if keep is None:
        _delete(path, fs.beside(path))
        return
    blob = place(call, keep)
    record: Dict[str, Any] = {"before": before, "after": dict(fs.ABSENT), "trashed": _identity(path)}
    save(call, keep, record)
    try:
        fs.moved(path, blob)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    _room(path, os.path.dirname(blob))
    _copy_tree(path, blob + ".partial")
    fs.moved(blob + ".partial", blob)
    hidden = fs.beside(path)
    save(call, keep, dict(record, hidden=hidden))
    _delete(path, hidden)


def untouched(path: str, record: Dict[str, Any]) -> bool:
    """Whether the very thing that was to be discarded is still there."""
    return os.path.lexists(path) and _identity(path) == record["trashed"]


def recover(blob: str, path: str, temporary: str) -> None:
    """Move what was discarded back to `path`."""
    try:
        fs.moved(blob, path)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        try:
            _copy_tree(blob, temporary)
            fs.moved(temporary, path)
        finally:
            if os.path.lexists(temporary):
                delete(temporary)


def tidy(record: Dict[str, Any]) -> None:
    """Remove what a discard cut half way may have left beside the path."""
    hidden = record.get("hidden")
    if hidden and os.path.lexists(hidden):
        delete(hidden)


def _identity(path: str) -> List[int]:
    info = os.lstat(path)
    return [info.st_dev, info.st_ino]


def delete(path: str) -> None:
    """Remove a thing of our own."""
    _delete(path, path)


def _refuse_roots(path: str) -> None:
    if path.count(os.sep) < 2 or path == os.path.expanduser("~"):
        raise AgentError("invalid", "%s is never removed" % path, path=path)


def _delete(path: str, hidden: str) -> None:
    """Gone in one step for whoever looks, then taken apart."""
    if st.S_ISDIR(os.lstat(path).st_mode):
        if hidden != path:
            os.rename(path, hidden)
        import shutil  # brings compression libraries with it, which the agent's start need not wait for

        shutil.rmtree(hidden)
    else:
        os.unlink(path)
    sync_folder(os.path.dirname(path))


def _room(path: str, folder: str) -> None:
    """Refuse before copying what would not fit."""
    needed = 0
    for top, _, names in os.walk(path):
        needed += sum(os.lstat(os.path.join(top, name)).st_size for name in names)
    info = os.statvfs(folder)
    free = info.f_bavail * info.f_frsize
    if needed > free:
        text = "keeping %s needs %d bytes, and %s has %d" % (path, needed, folder, free)
        raise AgentError("no-space", text, path=folder)


def _copy_tree(source: str, target: str) -> None:
    info = os.lstat(source)
    if st.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
        os.chown(target, info.st_uid, info.st_gid, follow_symlinks=False)
    elif st.S_ISREG(info.st_mode):
        _copy(source, target)
    elif st.S_ISDIR(info.st_mode):
        os.mkdir(target, 0o700)
        for name in os.listdir(source):
            _copy_tree(os.path.join(source, name), os.path.join(target, name))
        _like(source, target, info)
    elif st.S_ISFIFO(info.st_mode):
        os.mkfifo(target)
        _like(source, target, info)
    elif not st.S_ISSOCK(info.st_mode):  # a socket's name means nothing without its server
        raise AgentError("invalid", "%s is a device" % source, path=source)


def _copy(source: str, target: str) -> None:
    info = os.lstat(source)
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with opened(source, os.O_NOFOLLOW) as reader, os.fdopen(descriptor, "wb") as writer:
            writer.writelines(fs.parts(reader))
            writer.flush()
            os.fsync(writer.fileno())
        _like(source, target, info)
    except BaseException:
        os.unlink(target)
        raise


def _like(source: str, target: str, info: os.stat_result) -> None:
    if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
        os.chown(target, info.st_uid, info.st_gid)
    os.chmod(target, st.S_IMODE(info.st_mode))
    fs.copy_xattrs(source, target)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
