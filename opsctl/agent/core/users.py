"""Another user: who it is, and touching files with their rights."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import sys
from typing import Iterator, List, NamedTuple, Optional

from opsctl.wire.protocol import AgentError

# The system call setgroups(2) of 64-bit Linux, by machine. It is one thread's, the function of libc is the process's.
_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}


class User(NamedTuple):
    """Whose rights are meant."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        entry = known(self.uid)
        return entry.pw_name if entry else "uid %d" % self.uid

    @property
    def groups(self) -> List[int]:
        """Their supplementary groups: none where the host does not know them."""
        entry = known(self.uid)
        return os.getgrouplist(entry.pw_name, self.gid) if entry else []


def user(uid: int, gid: int) -> User:
    """The user `uid` with their own group, `gid` where the host does not know them."""
    entry = known(uid)
    return User(uid, entry.pw_gid if entry else gid)


def others(who: User) -> bool:
    """Whether these are other rights than ours."""
    return who.uid != os.geteuid()


@contextlib.contextmanager
def acting(who: User) -> Iterator[None]:
    """Have this thread, and no other, touch files with the rights of `who`; what it creates is theirs.

    So nothing that they put in the way (a link, say) leads further than they get by themselves. See setfsuid(2).
    Raises AgentError permission where we cannot take these rights.
    """
    if not others(who):
        yield
        return
    libc = ctypes.CDLL(None)
    ours = libc.setfsuid(-1), libc.setfsgid(-1), os.getgroups()  # perhaps not root's: it may be within another one
    try:
        _set_groups(libc, who.groups)
        libc.setfsgid(who.gid)
        libc.setfsuid(who.uid)
        if (libc.setfsuid(-1), libc.setfsgid(-1), set(os.getgroups())) != (*who, set(who.groups)):
            raise AgentError("permission", "cannot touch files with the rights of %s" % who.name)
        yield
    finally:
        libc.setfsuid(ours[0])
        libc.setfsgid(ours[1])
        _set_groups(libc, ours[2])


def _set_groups(libc: ctypes.CDLL, groups: List[int]) -> None:
    """Give this thread these supplementary groups; os.getgroups tells whether the call for it is known."""
    number = _SETGROUPS.get(os.uname().machine) if sys.maxsize > 1 << 32 else None
    if number is not None:
        libc.syscall(ctypes.c_long(number), ctypes.c_size_t(len(groups)), (ctypes.c_uint * len(groups))(*groups))


def known(uid: int) -> Optional[pwd.struct_passwd]:
    """What the host knows of a user."""
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None


def name_of(uid: int) -> str:
    """The name of a user, the number where the host knows none."""
    entry = known(uid)
    return entry.pw_name if entry else str(uid)
