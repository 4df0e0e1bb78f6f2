"""Before-images in the journal: kept without copying where the file system allows, and put back as they were."""

from __future__ import annotations

import contextlib
import errno
import os
import stat as st
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from opsctl.agent.core.undo_record import place, save
from opsctl.agent.files import safepath, states
from opsctl.agent.files.safepath import Place, opened, whole
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.files import State

_DIGESTED = 64 << 20  # bytes of a removed file up to which it is read, to know it again
IN_PLACE = (errno.EBUSY, errno.EXDEV, errno.ETXTBSY)  # the name cannot be replaced: a bind mount, most often


def image(at: Place, blob: str, shared: bool) -> List[str]:
    """Keep a file as `blob`. `shared`: the name will be replaced, so a hard link keeps the very file.

    A file that somebody else can write, or that may be another one of theirs, is copied. Gives what an undo will not
    bring back, in words.
    """
    with safepath.place(blob) as kept:
        if kept.exists():
            kept.unlink()
        info = at.stat()
        if shared and info.st_uid in (0, os.geteuid()) and not at.planted(info):
            try:
                at.link(kept)
                return []
            except OSError:  # another file system, or not our file: copy it
                pass
        left = copy(at, kept)
        kept.sync()
    return _told(at, left, info.st_nlink > 1 and shared)


def put(blob: str, at: Place, before: State, temporary: Place) -> None:
    """Make `at` the file that was kept as `blob`, in one step where the name can be replaced."""
    with safepath.place(blob) as kept:
        _demand_whole(kept, at, before)
        try:
            _put(kept, at, before, temporary)
        except OSError as error:  # its folder or owner, too, may keep the name from being replaced
            if error.errno not in (*IN_PLACE, errno.EROFS) and not isinstance(error, PermissionError):
                raise
            with opened(kept.name, dir_fd=kept.folder) as source:
                overwrite(at, whole(source, before["size"]), before)
        finally:
            if temporary.exists():
                temporary.unlink()


def _put(kept: Place, at: Place, before: State, temporary: Place) -> None:
    try:
        kept.link(temporary)
    except OSError:
        copy(kept, temporary)
    with temporary.held() as handle:
        states.dress(handle, before["mode"], before["uid"], before["gid"])
    temporary.rename(at)
    kept.unlink()  # with another name it would look like a hard link of somebody


def overwrite(at: Place, content: bytes, dressed: State) -> None:
    """Write into a file whose name cannot be replaced. Not atomic."""
    fd = at.open(os.O_RDWR | os.O_NONBLOCK)
    with os.fdopen(fd, "r+b") as stream:
        info = os.fstat(fd)
        if not st.S_ISREG(info.st_mode) or at.planted(info):
            raise AgentError("permission", "%s may be a link to another file" % at.path, path=at.path)
        stream.write(content)
        stream.truncate()
        stream.flush()
        os.fsync(fd)
        states.dress(fd, dressed["mode"], dressed["uid"], dressed["gid"])


def discard(call: Context, at: Place, before: State, keep: Optional[str]) -> List[str]:
    """Make `at` absent; with `keep`, moved into the journal, or copied there from another file system.

    Gives what an undo will not bring back, in words.
    """
    _refuse_roots(at.path)
    if before["kind"] == "dir" and os.path.ismount(at.path):
        raise AgentError("busy", "%s is a mount point" % at.path, path=at.path)
    if keep is None:
        _delete(at, states.beside(at))
        return []
    if before["kind"] == "file" and before["size"] <= _DIGESTED and "sha256" not in before:
        with contextlib.suppress(PermissionError):  # who may not read a file may still remove it
            before = before.copy()
            before["sha256"] = states.sha256(at.name, dir_fd=at.folder)
    record: Dict[str, Any] = {"before": before, "after": states.ABSENT.copy(), "trashed": _identity(at)}
    with safepath.place(place(call, keep)) as blob:
        save(call, keep, record)
        try:
            at.rename(blob)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            if _identity(blob) != record["trashed"]:
                blob.rename(at)
                raise AgentError("conflict", "%s has changed since it was looked at" % at.path, path=at.path)
            return []
        partial = blob.beside(blob.name + ".partial")
        _room(at, blob)
        copied = _Copied(partial)
        try:
            copied.tree(at, partial, "")
        except BaseException:
            if partial.exists():
                delete(partial)
            raise
        partial.rename(blob)
    hidden = states.beside(at)
    save(call, keep, dict(record, hidden=hidden.name))
    _delete(at, hidden)
    return _told(at, copied.left, copied.apart)


def _told(at: Place, left: List[str], apart: bool) -> List[str]:
    said = []
    if left:
        said.append("an undo of %s cannot bring back %s" % (at.path, ", ".join(sorted(set(left)))))
    if apart:
        said.append("an undo cannot make %s a hard link to what its other names are" % at.path)
    return said


def untouched(at: Place, record: Dict[str, Any]) -> bool:
    """Whether the very thing that was to be discarded is still there."""
    return at.exists() and _identity(at) == record["trashed"]


def recover(blob: str, at: Place, before: State, temporary: Place) -> None:
    """Move what was discarded back to `at`."""
    with safepath.place(blob) as kept:
        _demand_whole(kept, at, before)
        try:
            kept.rename(at)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            try:
                _Copied(temporary).tree(kept, temporary, "")
                temporary.rename(at)
            finally:
                if temporary.exists():
                    delete(temporary)


def _demand_whole(kept: Place, at: Place, before: State) -> None:
    """Raise AgentError damaged unless what was kept is what was there: it is never put in the place of a good file."""
    now = states.state(kept.name, "sha256" in before, dir_fd=kept.folder)
    if any(now.get(key) != before[key] for key in ("kind", "size", "sha256", "target") if key in before):
        what = "gone" if now["kind"] == "absent" else "damaged"
        raise AgentError("damaged", "what was kept of %s is %s; it is left as it is" % (at.path, what), path=at.path)


def tidy(at: Place, record: Dict[str, Any]) -> None:
    """Remove what a discard cut half way may have left beside the path."""
    if record.get("hidden"):
        hidden = at.beside(os.path.basename(record["hidden"]))
        if hidden.exists():
            delete(hidden)


def _identity(at: Place) -> List[int]:
    info = at.stat()
    return [info.st_dev, info.st_ino]


def delete(at: Place) -> None:
    """Remove a thing of our own."""
    _delete(at, at)


def _refuse_roots(path: str) -> None:
    if path.count(os.sep) < 2 or path == os.path.expanduser("~"):
        raise AgentError("invalid", "%s is never removed" % path, path=path)


def _delete(at: Place, hidden: Place) -> None:
    """Gone in one step for whoever looks, then taken apart."""
    if st.S_ISDIR(at.stat().st_mode):
        if hidden != at:
            at.rename(hidden)
        import shutil  # brings compression libraries with it, which the agent's start need not wait for

        shutil.rmtree("/proc/self/fd/%d/%s" % (hidden.folder, hidden.name))
    else:
        at.unlink()
    at.sync()


def _room(at: Place, blob: Place) -> None:
    """Refuse before copying what would not fit."""
    info = os.fstatvfs(blob.folder)
    needed, free = _size(at), info.f_bavail * info.f_frsize
    if needed > free:
        folder = os.path.dirname(blob.path)
        text = "a copy of %s needs %d bytes, and %s has %d" % (at.path, needed, folder, free)
        raise AgentError("no-space", text, path=folder)


def _size(at: Place) -> int:
    info = at.stat()
    if not st.S_ISDIR(info.st_mode):
        return info.st_size
    with at.entered() as fd:
        return sum(_size(Place(fd, name, os.path.join(at.path, name))) for name in os.listdir(fd))


class _Copied:
    """A thing that is copied to `top`, with all that is in it; files with several names stay one.

    `left`: attributes that could not be copied; `apart`: whether a file has names besides those that were copied.
    """

    def __init__(self, top: Place) -> None:
        self.top = top
        self.left: List[str] = []
        self._first: Dict[Tuple[int, int], str] = {}  # where the first copy of a file is, below `top`
        self._missing: Dict[Tuple[int, int], int] = {}  # names of it that have not come

    @property
    def apart(self) -> bool:
        return any(self._missing.values())

    def tree(self, source: Place, target: Place, where: str) -> None:
        """Copy `source`; `where`: the path of `target` below `top`, "" for itself."""
        info = source.stat()
        if st.S_ISLNK(info.st_mode):
            os.symlink(os.readlink(source.name, dir_fd=source.folder), target.name, dir_fd=target.folder)
            os.chown(target.name, info.st_uid, info.st_gid, dir_fd=target.folder, follow_symlinks=False)
        elif st.S_ISREG(info.st_mode):
            self._file(source, target, where, info)
        elif st.S_ISDIR(info.st_mode):
            os.mkdir(target.name, 0o700, dir_fd=target.folder)
            with source.entered() as taken, target.entered() as given:
                for name in os.listdir(taken):
                    path = os.path.join(where, name)
                    self.tree(Place(taken, name, source.path + "/" + name), Place(given, name, target.path), path)
                self.left += _like(taken, given)
        elif st.S_ISFIFO(info.st_mode):
            os.mkfifo(target.name, 0o600, dir_fd=target.folder)
            with source.held() as taken_handle, target.held() as given_handle:
                self.left += _like(taken_handle, given_handle)
        elif not st.S_ISSOCK(info.st_mode):  # a socket's name means nothing without its server
            raise AgentError("invalid", "%s is a device" % source.path, path=source.path)

    def _file(self, source: Place, target: Place, where: str, info: os.stat_result) -> None:
        identity = (info.st_dev, info.st_ino)
        if identity in self._first:
            first = os.path.join(self.top.name, self._first[identity])
            os.link(first, target.name, src_dir_fd=self.top.folder, dst_dir_fd=target.folder)
        else:
            self.left += copy(source, target)
            self._first[identity] = where
        self._missing[identity] = self._missing.get(identity, info.st_nlink) - 1


def copy(source: Place, target: Place) -> List[str]:
    """Make a new file with the content, owner, attributes, mode and times of another one, or nothing.

    Gives the names of attributes that it could not get.
    """
    _room(source, target)
    descriptor = target.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with opened(source.name, os.O_NOFOLLOW, source.folder) as reader, os.fdopen(descriptor, "wb") as writer:
            writer.writelines(states.parts(reader))
            writer.flush()
            left = _like(reader.fileno(), descriptor)
            os.fsync(descriptor)
    except BaseException:
        target.unlink()
        raise
    return left


def _like(source: Any, target: Any) -> List[str]:
    """Owner, attributes, mode and times of an open file or folder as another one has them."""
    info = os.stat(source)
    if (info.st_uid, info.st_gid) != (os.geteuid(), os.getegid()):
        try:
            os.chown(target, info.st_uid, info.st_gid)
        except PermissionError:
            if not os.geteuid():
                raise
    left = states.copy_xattrs(source, target)
    os.chmod(target, st.S_IMODE(info.st_mode))
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
    return left
