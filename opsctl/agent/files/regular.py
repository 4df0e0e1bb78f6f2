"""Opening what is meant to be a file, and is perhaps something else: a pipe would block the call that opens it.

It is also where root reads what a path leads to that somebody else can change.
"""

from __future__ import annotations

import os
import stat as st
from typing import BinaryIO, Optional

from opsctl.agent.core import users
from opsctl.agent.files import safepath
from opsctl.wire.protocol import AgentError

_NAMES = {
    st.S_IFDIR: "a folder",
    st.S_IFIFO: "a pipe",
    st.S_IFSOCK: "a socket",
    st.S_IFCHR: "a device",
    st.S_IFBLK: "a device",
}


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
        with safepath.place(path if flags & os.O_NOFOLLOW else safepath.resolved(path)) as at:
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
