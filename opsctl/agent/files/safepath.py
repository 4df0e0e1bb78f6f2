"""Opening what a path names step by step, so that nobody else decides what is changed.

Whoever may rename things in a folder can put a symbolic link in the place of what was looked at. So a path is walked
with a descriptor in the hand, and what it names is then changed by its name in that very folder, or by descriptor. A
symbolic link on the way is followed only where nobody but root and we could have put it there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat as st
from typing import BinaryIO, Iterator, List, NamedTuple, Optional, Set, Tuple

from opsctl.agent.core import durable, users
from opsctl.agent.core.dispatch import KINDS
from opsctl.wire.protocol import AgentError

_STEP = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_MOST_LINKS = 40  # as in Linux
_NAMES = {
    st.S_IFDIR: "a folder",
    st.S_IFIFO: "a pipe",
    st.S_IFSOCK: "a socket",
    st.S_IFCHR: "a device",
    st.S_IFBLK: "a device",
}


class Place(NamedTuple):
    """A name in a folder that is held open. `folder`: its descriptor; `path`: the whole, for messages."""

    folder: int
    name: str
    path: str

    def stat(self) -> os.stat_result:
        """Of the thing itself; a symbolic link is not followed."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def exists(self) -> bool:
        try:
            self.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def open(self, flags: int, mode: int = 0o600) -> int:
        """A descriptor of it. Raises OSError where it is a symbolic link."""
        return os.open(self.name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=self.folder)

    @contextlib.contextmanager
    def held(self) -> Iterator[str]:
        """A path of whatever has the name now, a link apart, that stays its path whatever becomes of the name."""
        fd = self.open(os.O_PATH)
        try:
            if st.S_ISLNK(os.fstat(fd).st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self.path)
            yield "/proc/self/fd/%d" % fd
        finally:
            os.close(fd)

    @contextlib.contextmanager
    def entered(self) -> Iterator[int]:
        """A descriptor of the folder that has the name."""
        fd = self.open(os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    def planted(self, info: os.stat_result) -> bool:
        """Whether a file, of this stat, may be a hard link to another one that somebody has put here."""
        return st.S_ISREG(info.st_mode) and info.st_nlink > 1 and changeable_by_others(os.fstat(self.folder))

    def beside(self, name: str) -> Place:
        """Another name in the same folder."""
        return Place(self.folder, name, os.path.join(os.path.dirname(self.path), name))

    def rename(self, target: Place) -> None:
        """Make it `target`, in the place of what is there, and have that survive a crash."""
        os.replace(self.name, target.name, src_dir_fd=self.folder, dst_dir_fd=target.folder)
        target.sync()
        if target.folder != self.folder:
            self.sync()

    def link(self, target: Place) -> None:
        """Give the same file another name."""
        os.link(self.name, target.name, src_dir_fd=self.folder, dst_dir_fd=target.folder, follow_symlinks=False)

    def unlink(self) -> None:
        os.unlink(self.name, dir_fd=self.folder)

    def sync(self) -> None:
        """Make the entries of its folder survive a crash, where the file system and our rights let us."""
        durable.sync_folder(".", self.folder)


@contextlib.contextmanager
def place(path: str) -> Iterator[Place]:
    """Hold the folder open that has what the absolute `path` names. Raises OSError; AgentError for a foreign link."""
    above, name = os.path.split(path)
    if not name:  # the root itself
        above, name = path, "."
    with folder(above) as fd:
        yield Place(fd, name, path)


@contextlib.contextmanager
def there(path: str) -> Iterator[Optional[Place]]:
    """As `place`; None where the folder that would hold it is missing."""
    with contextlib.ExitStack() as stack:
        try:
            at = stack.enter_context(place(path))
        except (FileNotFoundError, NotADirectoryError):
            at = None
        yield at


@contextlib.contextmanager
def folder(path: str) -> Iterator[int]:
    """Open the folder an absolute path names, for `dir_fd`. Raises OSError; AgentError for a foreign link."""
    fd, _ = _walked(path)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def pinned(path: str) -> Iterator[str]:
    """A path of a folder that leads there whatever is renamed.

    Raises AgentError where root is to work in it and others can change it. What is below is then root's alone, so that
    paths will do; another user risks nothing but their own files.
    """
    with folder(path) as fd:
        if not os.geteuid():
            demand_ours(fd, path)
        yield "/proc/self/fd/%d" % fd


def resolved(path: str) -> str:
    """Where `path` leads: links on the way are followed, the last one too. What does not exist stays as it is named.

    Raises OSError; AgentError for a foreign link.
    """
    for _ in range(_MOST_LINKS):
        above, name = os.path.split(path)
        whole = name in ("", ".", "..")
        try:
            fd, names = _walked(path if whole else above)
        except (FileNotFoundError, NotADirectoryError):
            return path
        try:
            found = os.path.join("/", *names, *([] if whole else [name]))
            try:
                info = os.stat("." if whole else name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                return found
            if not st.S_ISLNK(info.st_mode):
                return found
            _demand_trusted(fd, info, path)
            path = os.path.join("/", *names, os.readlink(name, dir_fd=fd))
        finally:
            os.close(fd)
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)


def changeable_by_others(info: os.stat_result) -> bool:
    """Whether somebody who is neither root nor we may rename what is in a folder, given its stat."""
    if info.st_uid not in (0, os.geteuid()):
        return True
    if info.st_mode & st.S_ISVTX:  # others may add names, but rename only their own
        return False
    group = info.st_mode & st.S_IWGRP and info.st_gid and not durable.private_group(info)
    return bool(info.st_mode & st.S_IWOTH or group)


def changers(path: str) -> Set[int]:
    """The users but root who can change what `path` leads to: itself, a folder or a link on the way. For root alone.

    0 stands for members of a group, or everybody, who can write where root owns. What is missing is nobody's to change.
    """
    found = set()  # type: Set[int]
    todo, links, at = [os.path.join(os.getcwd(), path)], 0, "/"
    while todo:
        part, _, rest = todo.pop().lstrip("/").partition("/")
        if rest:
            todo.append(rest)
        full = os.path.normpath(os.path.join(at, part))
        try:
            info = os.lstat(full)
        except OSError:
            break
        if st.S_ISLNK(info.st_mode) and links < _MOST_LINKS:
            links += 1
            if info.st_uid:
                found.add(info.st_uid)
            target = os.readlink(full)
            todo.append(target)
            at = "/" if target.startswith("/") else at
            continue
        if changeable_by_others(info):
            found.add(info.st_uid)
        at = full
    return found


def demand_ours(folder: int, path: str) -> None:
    """Raise AgentError where somebody who is neither root nor we may rename things in a folder."""
    info = os.fstat(folder)
    if changeable_by_others(info):
        we = " and ".join(dict.fromkeys(("root", users.name_of(os.geteuid()))))
        message = "others than %s can change %s: it belongs to %s, mode %04o"
        values = (we, path, users.name_of(info.st_uid), st.S_IMODE(info.st_mode))
        raise AgentError("permission", message % values, path=path)


def _demand_trusted(folder: int, link: os.stat_result, path: str) -> None:
    """Raise AgentError where somebody else can have put a link there. `user`: who that is, None if many could."""
    us = (0, os.geteuid())
    above = os.fstat(folder)
    if link.st_uid not in us:
        what = "is a symbolic link of the user %s" % users.name_of(link.st_uid)
    elif changeable_by_others(above):
        what = "is a symbolic link in a folder that others can change (it belongs to %s)" % users.name_of(above.st_uid)
    else:
        return
    who = next((info.st_uid for info in (link, above) if info.st_uid not in us), None)
    message = "%s %s: it is not followed; name the path it leads to" % (path, what)
    raise AgentError("permission", message, path=path, foreign_link=True, user=who)


def _walked(path: str) -> Tuple[int, List[str]]:
    """A descriptor of the folder, and the names that lead there without any link."""
    todo = path.split("/")
    todo.reverse()
    names = []  # type: List[str]
    links = 0
    fd = os.open("/", _STEP | os.O_DIRECTORY)
    try:
        while todo:
            name = todo.pop()
            if name in ("", "."):
                continue
            at = "/" + "/".join([*names, name])
            try:
                below = os.open(name, _STEP, dir_fd=fd)
            except OSError as error:
                raise OSError(error.errno, error.strerror, at) from None
            try:
                info = os.fstat(below)
                if st.S_ISLNK(info.st_mode):
                    links += 1
                    if links > _MOST_LINKS:
                        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), at)
                    _demand_trusted(fd, info, at)
                    target = os.readlink("", dir_fd=below)
                    todo.extend(reversed(target.split("/")))
                    if target.startswith("/"):
                        above, fd = fd, os.open("/", _STEP | os.O_DIRECTORY)
                        os.close(above)
                        names.clear()
                    continue
                if not st.S_ISDIR(info.st_mode):
                    raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), at)
                fd, below = below, fd
                if name == "..":
                    del names[-1:]
                else:
                    names.append(name)
            finally:
                os.close(below)
    except BaseException:
        os.close(fd)
        raise
    return fd, names


def descriptor(path: str, flags: int = 0, dir_fd: Optional[int] = None) -> int:
    """A regular file, open to be read. Raises OSError, AgentError invalid for anything else.

    What it is is asked of the open file: between a look at a name and its opening, another thing may have got the name.
    Where somebody else decides what the path leads to, root reads with their rights: by a link of theirs it gets no
    file that they cannot read. Raises AgentError permission where it cannot be told who that is.
    """
    if dir_fd is not None or os.geteuid():
        return _opened(path, flags, dir_fd)
    path = os.path.join(os.getcwd(), path)
    try:
        with place(path if flags & os.O_NOFOLLOW else resolved(path)) as at:
            fd = _opened(at.name, flags | os.O_NOFOLLOW, at.folder, path)
            if not at.planted(os.fstat(fd)):
                return fd
            os.close(fd)
            uid = os.fstat(at.folder).st_uid
    except AgentError as error:
        if error.fields.get("user") is None:
            raise
        uid = error.fields["user"]
    if not uid:
        raise AgentError("permission", "%s may be a hard link that somebody has put there" % path, path=path)
    with users.acting(users.user(uid, uid)):
        return _opened(path, flags, None)


def _opened(path: str, flags: int, dir_fd: Optional[int], shown: str = "") -> int:
    shown = shown or path
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror, shown) from None
    kind = st.S_IFMT(os.fstat(fd).st_mode)
    if kind != st.S_IFREG:
        os.close(fd)
        raise AgentError("invalid", "%s is %s, not a file" % (shown, _NAMES.get(kind, "no file")), path=shown)
    return fd


def opened(path: str, flags: int = 0, dir_fd: Optional[int] = None) -> BinaryIO:
    """The same as a stream without a buffer."""
    return os.fdopen(descriptor(path, flags, dir_fd), "rb", buffering=0)


def whole(stream: BinaryIO, limit: int) -> bytes:
    """What is left of a file, at most `limit` bytes of it."""
    parts = []
    while limit > 0:
        part = stream.read(min(limit, 1 << 20))
        if not part:
            break
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


@contextlib.contextmanager
def told(doing: str, path: str) -> Iterator[None]:
    """Turns an OSError inside into an AgentError that says what was being done to which path."""
    try:
        yield
    except OSError as error:
        kind = KINDS.get(error.errno or 0, "failed")
        text = "cannot %s %s: %s" % (doing, path, error.strerror or error)
        raise AgentError(kind, text, path=path, errno=error.errno) from error
