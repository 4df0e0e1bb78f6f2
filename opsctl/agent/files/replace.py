"""Putting a file or link in its place in one step, with what is needed to go back kept first."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, List, Optional

from opsctl.agent.core.undo_record import place, save
from opsctl.agent.files import backups, states
from opsctl.agent.files.safepath import Place
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.files import Owner, State


def replace(
    call: Context,
    at: Place,
    temporary: Optional[Place],
    mode: Optional[int],
    owner: Owner,
    group: Owner,
    expect: Optional[State],
    keep: Optional[str],
) -> State:
    """Make `at` the file `temporary`, or write the call's body into it where there is none. Gives its new state."""
    before = states.of(at)
    states.demand(at.path, before, expect)
    if before["kind"] not in ("absent", "file"):
        raise AgentError("exists", "%s is a %s, not a file" % (at.path, before["kind"]), path=at.path)
    uid, gid = states.uid_of(owner), states.gid_of(group)
    new: State = {"kind": "file", "mode": 0o644, "uid": os.geteuid(), "gid": -1}
    bare = before if before["kind"] == "file" else new
    after = dressed(bare, mode, uid, gid)
    names = at.stat().st_nlink if before["kind"] == "file" else 1
    said = []  # type: List[str]
    if keep is not None and before["kind"] == "file":
        said += backups.image(at, place(call, keep), shared=temporary is not None)
    if temporary is None:
        return _in_place(call, at, call.body, before, after, keep)
    fd = temporary.open(os.O_RDWR | os.O_NONBLOCK)
    try:
        try:
            lost = _dress_new(fd, at, before, after)
        except PermissionError:  # it is another user's: what is there may still be overwritten
            if before["kind"] != "file":
                raise
            return _in_place(call, at, _content(fd), before, after, keep)
        given, after = after, states.of(temporary)
        after["uid"], after["mode"] = given["uid"], given["mode"]
        save(call, keep, {"before": before, "after": after})
        os.fsync(fd)
        try:
            temporary.rename(at)
        except OSError as error:
            if error.errno not in backups.IN_PLACE or before["kind"] != "file":
                raise
            return _in_place(call, at, _content(fd), before, after, keep)
        if not os.path.samestat(os.fstat(fd), at.stat()):
            raise AgentError("conflict", "%s was changed by someone else meanwhile" % at.path, path=at.path)
    finally:
        os.close(fd)
    if names > 1:
        said.insert(0, _apart(at, names))
    if lost:
        said.insert(0, "%s could not keep %s" % (at.path, ", ".join(lost)))
    if said:
        after["warning"] = "; ".join(said)
    return after


def _content(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as stream:
        stream.seek(0)
        return stream.read()


def _dress_new(fd: int, at: Place, before: State, after: State) -> List[str]:
    """Give a new file what it is to have, while nobody else can open it. Gives the attributes it could not get."""
    if (after["uid"], after["gid"]) != (os.geteuid(), -1):
        os.fchown(fd, after["uid"], after["gid"])
    lost = []  # type: List[str]
    if before["kind"] == "file":
        with at.held() as old:
            if os.stat(old).st_uid != before["uid"]:
                raise AgentError("conflict", "%s was changed by someone else meanwhile" % at.path, path=at.path)
            lost = states.copy_xattrs(old, fd)
    os.fchmod(fd, after["mode"])
    return lost


def _apart(at: Place, names: int) -> str:
    others = "the other name keeps" if names == 2 else "its %d other names keep" % (names - 1)
    return "%s was one of %d hard links to a file: %s what was there" % (at.path, names, others)


def put_link(at: Place, target: str, temporary: Place) -> None:
    """Make `at` a link, replacing what is there in one step."""
    os.symlink(target, temporary.name, dir_fd=temporary.folder)
    try:
        temporary.rename(at)
    finally:
        gone(temporary)


def temporary_for(call: Context, at: Place, keep: Optional[str]) -> Place:
    """The name of what is renamed to `at`, free: what a crash left there is removed."""
    temporary = states.beside(at, None if keep is None else place(call, keep))
    if temporary.exists():
        backups.delete(temporary)
    return temporary


def dressed(before: State, mode: Optional[int], uid: int, gid: int) -> State:
    after = before.copy()
    after["mode"] = before["mode"] if mode is None else mode
    after["uid"] = before["uid"] if uid == -1 else uid
    after["gid"] = before["gid"] if gid == -1 else gid
    return after


def gone(at: Place) -> None:
    with contextlib.suppress(OSError):  # it was renamed into place, or the folder went away with it
        at.unlink()


def _in_place(call: Context, at: Place, content: bytes, before: State, after: State, keep: Optional[str]) -> State:
    """Overwrite the bytes of a name that cannot be replaced. Not atomic, so the caller is told."""
    if keep is not None:
        backups.image(at, place(call, keep), shared=False)
        save(call, keep, {"before": before, "after": None})  # cut half way, the content is neither of the two
    backups.overwrite(at, content, after)
    now = states.of(at)
    save(call, keep, {"before": before, "after": now})
    now["warning"] = "%s could not be replaced in one step (a mount point?); it was overwritten" % at.path
    return now
