"""Opening what is meant to be a file, and is perhaps something else: a pipe would block the call that opens it."""

from __future__ import annotations

import os
import stat as st
from typing import BinaryIO, Optional

from opsctl.agent.protocol import AgentError

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
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags, dir_fd=dir_fd)
    kind = st.S_IFMT(os.fstat(fd).st_mode)
    if kind != st.S_IFREG:
        os.close(fd)
        raise AgentError("invalid", "%s is %s, not a file" % (path, _NAMES.get(kind, "no file")), path=path)
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
