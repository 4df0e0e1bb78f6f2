"""Where opsctl keeps what must outlive a run on the host: journals, locks, records of processes it started.

What lies there is acted on, so nobody but its user and root may have written it. As sshd does with the keys of a user,
the owner and the mode of the folder and of every folder above it are looked at each time.
"""

from __future__ import annotations

import errno
import os
import stat as st
from typing import Optional

from opsctl.wire.protocol import AgentError


def state_dir(*parts: str) -> str:
    """The state folder, or a folder below it, made if need be and readable by its owner alone.

    OPSCTL_STATE_DIR if set, else /var/lib/opsctl for root, else $XDG_STATE_HOME/opsctl (~/.local/state/opsctl).
    Raises AgentError unsafe where somebody else could have written into it.
    """
    path = base()
    demand_safe(path)
    for part in ("", *parts):  # one by one: the mode is for the last folder alone
        path = os.path.join(path, part) if part else path
        os.makedirs(path, mode=0o700, exist_ok=True)
    demand_safe(path)
    return path


def base() -> str:
    """The state folder, which need not be there yet."""
    named = os.environ.get("OPSCTL_STATE_DIR")
    if named:
        return named
    if os.geteuid() == 0:
        return "/var/lib/opsctl"
    home = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(home, "opsctl")


def demand_safe(path: str) -> None:
    """Raise AgentError unsafe if anybody but root and ourselves can change what a folder of ours holds.

    Symbolic links are resolved, and the folders that hold them are looked at, too.
    """
    why = _unsafe(path)
    if why:
        raise AgentError("unsafe", "what opsctl keeps in %s is not acted on: %s" % (path, why), path=path, state=True)


def foreign(info: os.stat_result) -> Optional[str]:
    """Why a file or folder of ours may be somebody else's work, in words; None if it is ours or root's alone."""
    if info.st_uid not in (0, os.geteuid()):
        return "it belongs to user %d" % info.st_uid
    if info.st_mode & st.S_IWOTH or (info.st_mode & st.S_IWGRP and not _private_group(info)):
        return "others can write to it (mode %04o)" % st.S_IMODE(info.st_mode)
    return None


def _unsafe(path: str) -> Optional[str]:
    """Why it is not safe, in words. What is not there yet is."""
    here, links = os.sep, 0
    todo = os.path.join(os.getcwd(), path).split(os.sep)
    while True:
        try:
            info = os.lstat(here)
        except FileNotFoundError:
            return None
        if st.S_ISLNK(info.st_mode):
            links += 1
            if links > 40:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), here)
            if info.st_uid not in (0, os.geteuid()):
                return "the link %s belongs to user %d" % (here, info.st_uid)
            target = os.readlink(here)
            todo = target.split(os.sep) + todo
            here = os.sep if os.path.isabs(target) else os.path.dirname(here)
            continue
        why = foreign(info)
        # In a sticky folder of root's, as /tmp, nobody can take away or replace what is ours.
        shared = info.st_uid == 0 and info.st_mode & st.S_ISVTX and any(todo)
        if why and not shared:
            return "%s: %s" % (here, why)
        if not todo:
            return None
        part = todo.pop(0)
        here = os.path.dirname(here) if part == ".." else os.path.join(here, part) if part not in ("", ".") else here


def _private_group(info: os.stat_result) -> bool:
    """Whether a group is its owner's alone: where every user has one, folders are made writable for it."""
    import grp
    import pwd

    try:
        owner, group = pwd.getpwuid(info.st_uid), grp.getgrgid(info.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == info.st_gid and group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}
