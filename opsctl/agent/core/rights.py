"""Running programs with another user's rights."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Dict, List, Optional

from opsctl.agent.core import users
from opsctl.agent.core.users import User, others
from opsctl.agent.files import safepath
from opsctl.wire.protocol import AgentError

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_KEPT = ("LANG", "LC_CTYPE", "TZ", "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")

# Becomes a user for good, and then another program, which hears the signals that Python ignores. It imports before it
# becomes them all that execvp may want: they may be unable to read the library.
_BECOME = """\
import ctypes, os, signal, sys, warnings
uid, gid, groups, *argv = sys.argv[1:]
os.setgroups([int(group) for group in groups.split(",") if group])
os.setgid(int(gid))
os.setuid(int(uid))
PR_SET_NO_NEW_PRIVS = 38
if ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
    sys.exit("cannot give up new privileges")
for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored, signal.SIG_DFL)
try:
    os.execvp(argv[0], argv)
except OSError as error:
    print("%s: %s" % (argv[0], error.strerror), file=sys.stderr)
    sys.exit(127)
"""


def words(who: User) -> List[str]:
    """What begins a command that is to run as `who`, whose groups it gets and no way back. Nothing for ourselves.

    It is the agent's own interpreter: setpriv is not on every host, preexec_fn may hang in a process of many threads,
    and subprocess takes a user since Python 3.9 only.
    """
    if not others(who):
        return []
    groups = ",".join(str(group) for group in who.groups)
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(who.uid), str(who.gid), groups]


def environment(who: User) -> Dict[str, str]:
    """The environment of a command that runs as `who`: ours, or for another user their own with our language and proxy.

    A proxy's address that holds a password stays with us.
    """
    if not others(who):
        return dict(os.environ)
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ and "@" not in os.environ[name]}
    known = users.known(who.uid)
    home = {"HOME": known.pw_dir, "USER": known.pw_name, "LOGNAME": known.pw_name} if known else {}
    return dict(kept, PATH=PATH, **home)


def of_program(path: str, *code: str) -> User:
    """Whose rights a program gets that we were told to run: as root, those of whoever could change what it does.

    Asked are the program and what it links to, the `code` it runs or the folders that it takes some from, and every
    folder on the way to them.
    Raises AgentError permission where several could, or nobody can be named.
    """
    us = User(os.geteuid(), os.getegid())
    found = shutil.which(os.path.expanduser(path)) if us.uid == 0 else None
    who = {}  # type: Dict[int, str]
    for named in (found, *code) if found else ():
        who.update((uid, named) for uid in safepath.changers(named))
    if not who:
        return us
    if len(who) > 1 or 0 in who:
        text = "%s is not run as root: others can change %s" % (path, " and ".join(sorted(set(who.values()))))
        raise AgentError("permission", text, path=path)
    uid = next(iter(who))
    return users.user(uid, uid)


def program(who: User, name: str) -> Optional[str]:
    """Path of a program as `who` would find it, None where it is missing."""
    return shutil.which(name, path=environment(who).get("PATH", PATH))
