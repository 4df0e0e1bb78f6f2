"""Changing files on the host: replaced in one step only if still as observed, and put back exactly.

Calls that change something take `expect`, the state as observed (see state), and refuse with a conflict if it no
longer holds; with `keep` they write down first what `restore` needs. Text never travels through a shell.
"""

from __future__ import annotations

import errno
import os
import stat as st
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional

from opsctl.agent.core.undo_record import load, place, save
from opsctl.agent.files import backups, replace, safepath, states
from opsctl.agent.files.safepath import Place, opened, told, whole
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.files import Owner, Restored, State

_SHORT = 256 << 10  # bytes of a file up to which its content is told


def write(
    call: Context,
    path: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    expect: Optional[State] = None,
    keep: Optional[str] = None,
) -> State:
    """Make `path` a file with the body as its content. Mode and owner default to those it has, else 0644 and ours."""
    path = states.absolute(path)
    with told("write", path), safepath.place(path) as at:
        temporary = replace.temporary_for(call, at, keep)
        try:
            descriptor = temporary.open(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS) or states.of(at, False)["kind"] != "file":
                raise
            return replace.replace(call, at, None, mode, owner, group, expect, keep)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(call.body)
                stream.flush()
                os.fsync(stream.fileno())
            return replace.replace(call, at, temporary, mode, owner, group, expect, keep)
        finally:
            replace.gone(temporary)


def adopt(
    call: Context,
    partial: str,
    path: str,
    sha256: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    expect: Optional[State] = None,
    keep: Optional[str] = None,
) -> State:
    """Make `path` the file that arrived as `partial` (see arrival), if its digest is right."""
    partial, path = states.absolute(partial), states.absolute(path)
    with told("put in place", path), safepath.place(partial) as arrived, safepath.place(path) as at:
        safepath.demand_ours(arrived.folder, os.path.dirname(partial))
        if states.sha256(arrived.name, call, arrived.folder) != sha256:
            arrived.unlink()
            raise AgentError("conflict", "%s is not what was sent: its digest differs" % partial, path=partial)
        if os.fstat(arrived.folder).st_dev == os.fstat(at.folder).st_dev:
            return replace.replace(call, at, arrived, mode, owner, group, expect, keep)
        temporary = replace.temporary_for(call, at, keep)  # something is mounted in between
        try:
            backups.copy(arrived, temporary)
            return replace.replace(call, at, temporary, mode, owner, group, expect, keep)
        finally:
            replace.gone(temporary)


def attributes(
    call: Context,
    path: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    expect: Optional[State] = None,
    keep: Optional[str] = None,
) -> State:
    """Set mode, owner and group of a file or folder."""
    path = states.absolute(path)
    with told("change", path), safepath.place(path) as at:
        before = states.of(at, digest=bool(expect and "sha256" in expect))
        states.demand(path, before, expect)
        if before["kind"] in ("absent", "link"):
            raise AgentError("not-found", "%s is not a file or folder" % path, path=path)
        uid, gid = states.uid_of(owner), states.gid_of(group)
        save(call, keep, {"before": before, "after": replace.dressed(before, mode, uid, gid)})
        _dress(at, before, mode, uid, gid)
        return states.of(at, digest=False)


def _dress(at: Place, before: State, mode: Optional[int], uid: int, gid: int) -> None:
    """Dress what is there, if it is what was looked at and not a name for another file."""
    with at.held() as handle:
        info = os.stat(handle)
        if info.st_uid != before["uid"] or st.S_IMODE(info.st_mode) != before["mode"]:
            raise AgentError("conflict", "%s has changed since it was looked at" % at.path, path=at.path)
        if at.planted(info):
            message = "%s is one of %d hard links to a file, in a folder that others can change: it is left as it is"
            raise AgentError("permission", message % (at.path, info.st_nlink), path=at.path)
        states.dress(handle, mode, uid, gid)


def mkdir(
    call: Context,
    path: str,
    mode: Optional[int] = None,
    owner: Owner = None,
    group: Owner = None,
    keep: Optional[str] = None,
) -> State:
    """Make a folder, and those above it that are missing (mode 0755, same owner)."""
    path = states.absolute(path)
    with told("make folder", path):
        missing: List[str] = []
        above = path
        while not _exists(above):
            missing.insert(0, above)
            above = os.path.dirname(above)
        if not missing:
            raise AgentError("conflict", "%s exists already" % path, path=path)
        uid, gid = states.uid_of(owner), states.gid_of(group)
        save(call, keep, {"made": missing})
        for folder in missing:
            with safepath.place(folder) as at:
                os.mkdir(at.name, 0o700, dir_fd=at.folder)
                with at.entered() as made:
                    if os.fstat(made).st_uid != os.geteuid() or os.listdir(made):
                        raise AgentError("conflict", "%s was changed by someone else meanwhile" % folder, path=folder)
                    states.dress(made, 0o755 if mode is None or folder != path else mode, uid, gid)
                at.sync()
        with safepath.place(path) as at:
            return states.of(at)


def _exists(path: str) -> bool:
    with safepath.there(path) as at:
        return at is not None and at.exists()


def link(call: Context, path: str, target: str, expect: Optional[State] = None, keep: Optional[str] = None) -> State:
    """Make `path` a symbolic link to `target`, replacing another link in one step."""
    path = states.absolute(path)
    with told("link", path), safepath.place(path) as at:
        before = states.of(at)
        states.demand(path, before, expect)
        if before["kind"] not in ("absent", "link"):
            raise AgentError("exists", "%s is a %s; only a link is replaced by a link" % (path, before["kind"]))
        led = before["kind"] == "link" and os.path.exists(path)
        save(call, keep, {"before": before, "after": {"kind": "link", "target": target}, "led": led})
        replace.put_link(at, target, replace.temporary_for(call, at, keep))
        return states.of(at)


def remove(call: Context, path: str, expect: Optional[State] = None, keep: Optional[str] = None) -> State:
    """Make `path` absent. With `keep` it is moved into the journal, whole; else it is deleted."""
    path = states.absolute(path)
    with told("remove", path), safepath.there(path) as at:
        before = states.of(at, digest=bool(expect and "sha256" in expect)) if at else states.ABSENT.copy()
        if before["kind"] == "absent" and not expect:
            return before
        states.demand(path, before, expect)
        said = backups.discard(call, at, before, keep) if at else []
        now = states.ABSENT.copy()
        if said:
            now["warning"] = "; ".join(said)
        return now


def restore(call: Context, path: str, keep: str) -> Restored:
    """Put `path` back as it was before the change that kept `keep`; a third party's later change is a conflict."""
    path = states.absolute(path)
    record = load(call, keep)
    with told("restore", path):
        if record and "made" in record:
            return {"restored": _unmake(record["made"])}
        with safepath.there(path) as at:
            if at is None:  # nothing can have been made there
                if record and record["before"]["kind"] != "absent":
                    raise AgentError("conflict", "the folder of %s is gone" % path, path=path)
                return {"restored": False}
            temporary = replace.temporary_for(call, at, keep)
            return {"restored": record is not None and _restore(call, at, keep, record, temporary)}


def needs(call: Context, path: str, keep: str) -> List[str]:
    """What `restore` lacks: a link that led somewhere is to do so again. Before-images are the journal's to miss."""
    record = load(call, keep)
    if not record or not record.get("led"):
        return []
    path, target = states.absolute(path), record["before"]["target"]
    if os.path.exists(os.path.join(os.path.dirname(path), target)):
        return []
    return ["%s would lead to %s again, which is gone" % (path, target)]


class Foreseen(NamedTuple):
    """What `restore` would do to the content of a file: None where there is none.

    ours: the file is as the change left it; else it is somebody else's by now, and would be left as it is.
    """

    ours: bool
    now: Optional[bytes]
    then: Optional[bytes]


def foreseen(call: Context, path: str, keep: str) -> Optional[Foreseen]:
    """What `restore` would do; None where that is not to change the content of a short file."""
    record = load(call, keep)
    if not record or not record.get("after"):
        return None
    before, after = record["before"], record["after"]
    if before.get("sha256") == after.get("sha256"):
        return None
    path = states.absolute(path)
    with told("read", path), safepath.there(path) as at, safepath.place(place(call, keep)) as kept:
        now = states.of(at, digest=False) if at else states.ABSENT.copy()
        if any(one["kind"] not in ("file", "absent") or one.get("size", 0) > _SHORT for one in (now, before, after)):
            return None
        now = states.of(at) if at else now
        return Foreseen(_ours(now, before, after), _content(at, now), _content(kept, before))


def _content(at: Optional[Place], state: State) -> Optional[bytes]:
    if at is None or state["kind"] == "absent":
        return None
    with opened(at.name, os.O_NOFOLLOW, at.folder) as stream:
        return whole(stream, _SHORT)


def _restore(call: Context, at: Place, keep: str, record: Dict[str, Any], temporary: Place) -> bool:
    before, after = record["before"], record["after"]
    now = states.of(at, digest="sha256" in before or bool(after and "sha256" in after))
    if backups.untouched(at, record) if record.get("trashed") else not states.differs(now, before):
        backups.tidy(at, record)
        return False
    if after is not None and not _ours(now, before, after):
        message = "%s was changed by someone else since; it is left as it is" % at.path
        raise AgentError("conflict", message, path=at.path)
    _put_back(call, at, before, now, keep, record, temporary)
    return True


def _ours(now: State, before: State, after: State) -> bool:
    if after["kind"] in ("absent", "link"):
        return not states.differs(now, after) and now["kind"] == after["kind"]
    return states.between(now, before, after)


def _put_back(
    call: Context, at: Place, before: State, now: State, keep: str, record: Dict[str, Any], temporary: Place
) -> None:
    if record.get("trashed"):
        backups.recover(place(call, keep), at, before, temporary)
        backups.tidy(at, record)
    elif before["kind"] == "absent":
        at.unlink()
        at.sync()
    elif before["kind"] == "link":
        replace.put_link(at, before["target"], temporary)
        os.chown(at.name, before["uid"], before["gid"], dir_fd=at.folder, follow_symlinks=False)
    elif before["kind"] == "file" and now.get("sha256") != before.get("sha256"):
        backups.put(place(call, keep), at, before, temporary)
    else:
        _dress(at, now, before["mode"], before["uid"], before["gid"])


def _unmake(made: List[str]) -> bool:
    undone = False
    for folder in reversed(made):
        try:
            with safepath.place(folder) as at:
                os.rmdir(at.name, dir_fd=at.folder)
            undone = True
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            raise AgentError("conflict", "%s is no longer empty; it is left as it is" % folder, path=folder) from None
    return undone


CALLS = {
    "write": write,
    "adopt": adopt,
    "attributes": attributes,
    "mkdir": mkdir,
    "link": link,
    "remove": remove,
    "restore": restore,
}
NEEDS = {"restore": needs}
FORESEEN = {"restore": foreseen}
