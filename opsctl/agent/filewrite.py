"""Putting a file or link in its place in one step, with what is needed to go back kept first."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Any, Dict, Optional, Union

from opsctl.agent import filestate as fs
from opsctl.agent import trash
from opsctl.agent.durable import sync_folder
from opsctl.agent.keep import place, save
from opsctl.agent.protocol import AgentError, Context

Owner = Union[str, int, None]
IN_PLACE = (errno.EBUSY, errno.EXDEV, errno.ETXTBSY)  # the name cannot be replaced: a bind mount, most often


def replace(
    call: Context,
    path: str,
    temporary: Optional[str],
    mode: Optional[int],
    owner: Owner,
    group: Owner,
    expect: Optional[fs.State],
    keep: Optional[str],
) -> Dict[str, Any]:
    """Make `path` the file `temporary`, or write the call's body into it where there is none. Gives its new state."""
    before = fs.state(path)
    fs.demand(path, before, expect)
    if before["kind"] not in ("absent", "file"):
        raise AgentError("exists", "%s is a %s, not a file" % (path, before["kind"]), path=path)
    uid, gid = fs.uid_of(owner), fs.gid_of(group)
    bare = before if before["kind"] == "file" else {"mode": 0o644, "uid": os.geteuid(), "gid": -1}
    after = dressed(bare, mode, uid, gid)
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


def put_link(path: str, target: str, temporary: str) -> None:
    """Make `path` a link, replacing what is there in one step."""
    os.symlink(target, temporary)
    try:
        os.replace(temporary, path)
    finally:
        gone(temporary)
    sync_folder(os.path.dirname(path))


def temporary_for(call: Context, path: str, keep: Optional[str]) -> str:
    """The name of what is renamed to `path`, free: what a crash left there is removed."""
    temporary = fs.beside(path, None if keep is None else place(call, keep))
    if os.path.lexists(temporary):
        trash.delete(temporary)
    return temporary


def dressed(before: fs.State, mode: Optional[int], uid: int, gid: int) -> fs.State:
    return dict(
        before,
        mode=before["mode"] if mode is None else mode,
        uid=before["uid"] if uid == -1 else uid,
        gid=before["gid"] if gid == -1 else gid,
    )


def gone(path: str) -> None:
    with contextlib.suppress(OSError):  # it was renamed into place, or the folder went away with it
        os.unlink(path)


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
