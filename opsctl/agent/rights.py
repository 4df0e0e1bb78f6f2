"""Acting with another user's rights: running a program as them, and touching files as them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import shutil
from typing import Dict, Iterator, List, NamedTuple, Optional

from opsctl.agent.protocol import AgentError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("LANG", "LC_CTYPE", "TZ", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")


class User(NamedTuple):
    """Whose rights are meant."""

    uid: int
    gid: int

    @property
    def name(self) -> str:
        known = _known(self.uid)
        return known.pw_name if known else "uid %d" % self.uid


def user(uid: int, gid: int) -> User:
    """The user `uid` with their own group, `gid` where the host does not know them."""
    known = _known(uid)
    return User(uid, known.pw_gid if known else gid)


def others(who: User) -> bool:
    """Whether these are other rights than ours."""
    return who.uid != os.geteuid()


def words(who: User) -> List[str]:
    """What begins a command that is to run as `who`, whose groups it gets and no way back. Nothing for ourselves.

    setpriv is named by its path: PATH may be theirs. It is not done by preexec_fn, which may hang in a process of many
    threads; subprocess takes a user since Python 3.9 only.
    """
    if not others(who):
        return []
    groups = "--init-groups" if _known(who.uid) else "--clear-groups"
    return ["/usr/bin/setpriv", "--reuid", str(who.uid), "--regid", str(who.gid), groups, "--no-new-privs", "--"]


def environment(who: User) -> Dict[str, str]:
    """The environment of a command that runs as `who`: ours, or for another user their own with our language and proxy.

    A proxy's address that holds a password stays with us.
    """
    if not others(who):
        return dict(os.environ)
    kept = {name: os.environ[name] for name in _KEPT if "@" not in os.environ.get(name, "@")}
    known = _known(who.uid)
    home = {"HOME": known.pw_dir, "USER": known.pw_name, "LOGNAME": known.pw_name} if known else {}
    return dict(kept, PATH=PATH, **home)


def of_program(path: str) -> User:
    """Whose rights a program gets that we were told to run: as root, those of whoever could change it.

    Asked are the program, what it links to, and the folder it lies in, as a virtual environment is its folder's.
    """
    us = User(os.geteuid(), os.getegid())
    found = shutil.which(os.path.expanduser(path)) if us.uid == 0 else None
    for place in (found, os.path.realpath(found), os.path.dirname(os.path.abspath(found))) if found else ():
        info = os.lstat(place)
        if info.st_uid != 0:
            return user(info.st_uid, info.st_gid)
    return us


def program(who: User, name: str) -> Optional[str]:
    """Path of a program as `who` would find it, None where it is missing."""
    return shutil.which(name, path=environment(who).get("PATH", PATH))


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
    ours = os.geteuid(), os.getegid()
    try:
        libc.setfsgid(who.gid)
        libc.setfsuid(who.uid)
        if (libc.setfsuid(-1), libc.setfsgid(-1)) != tuple(who):
            raise AgentError("permission", "cannot touch files with the rights of %s" % who.name)
        yield
    finally:
        libc.setfsuid(ours[0])
        libc.setfsgid(ours[1])


def _known(uid: int) -> Optional[pwd.struct_passwd]:
    try:
        return pwd.getpwuid(uid)
    except KeyError:
        return None
