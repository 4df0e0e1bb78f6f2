"""Unified diffs on a source tree, tried out in a folder of their own: what the tree's files would become."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import zlib
from typing import TYPE_CHECKING, Dict, List, Optional, Tuple

from opsctl.agent.core.users import User
from opsctl.agent.files.safepath import descriptor, told
from opsctl.agent.git import ownership
from opsctl.agent.source.source import run
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.source import DiffChange, DiffsTried, DiffTried


def attempt(call: Context, root: str, sizes: List[int]) -> Reply[DiffsTried]:
    """Apply diffs to a copy of the files they name, one upon the other, as `git apply --3way` does.

    The diffs lie one after the other in the body, `sizes` bytes each. The tree and its index are left alone. A
    three-way merge needs a git checkout.
    Body: old and new contents of each change, zlib.
    """
    root = os.path.realpath(os.path.expanduser(root))
    scratch = tempfile.mkdtemp(prefix="opsctl-diff-")
    work = os.path.join(scratch, "work")
    os.mkdir(work)
    try:
        before: Dict[str, Optional[bytes]] = {}
        answers: List[DiffTried] = []
        offset = 0
        for size in sizes:
            diff, names = call.body[offset : offset + size], []  # type: bytes, List[str]
            offset += size
            try:
                names = _named(scratch, work, diff)
                before.update({path: _copied(root, work, path) for path in names if path not in before})
                answers.append(_one(root, scratch, work, diff, names))
            except AgentError as error:  # the others are tried all the same
                if error.kind != "invalid":
                    raise
                answers.append({"applies": False, "already": False, "message": error.message, "paths": names})
        changes: List[DiffChange] = []
        parts: List[bytes] = []
        for path, old in before.items():
            new, mode = _read(os.path.join(work, path), path)
            if new != old:
                changes.append(
                    {
                        "path": path,
                        "before": None if old is None else hashlib.sha256(old).hexdigest(),
                        "mode": mode,
                        "old": None if old is None else len(old),
                        "new": None if new is None else len(new),
                    }
                )
                parts += [old or b"", new or b""]
        return Reply({"diffs": answers, "changes": changes}, zlib.compress(b"".join(parts), 6))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _one(root: str, scratch: str, work: str, diff: bytes, names: List[str]) -> DiffTried:
    apply = ["apply", "--whitespace=nowarn"]
    plain = _alone(scratch)
    if _git(work, [*apply, "--check", "--reverse", "-"], plain, diff).returncode == 0:
        return {"applies": True, "already": True, "message": "", "paths": names}
    held = {path: _read(os.path.join(work, path), path) for path in names}
    done = _git(work, [*apply, "-"], plain, diff)
    merging = _merging(root, scratch, work) if done.returncode else None
    if merging is not None:
        done = _git(work, [*apply, "--3way", "-"], merging, diff)
    message = done.stderr.decode("utf-8", "replace").strip()
    applies = done.returncode == 0 and "with conflicts" not in message
    try:
        for path in names:
            _read(os.path.join(work, path), path)
        if not applies:
            message = _told(work, names, message)
    except AgentError as error:
        applies, message = False, error.message
    if not applies:
        for path, (content, mode) in held.items():  # what it has left is not what the next one is to find
            _put(os.path.join(work, path), content, mode)
    return {"applies": applies, "already": False, "message": message, "paths": names}


def _told(work: str, names: List[str], message: str) -> str:
    """What git said, in words about the tree: it knows the copy alone."""
    for path in names:
        content, _ = _read(os.path.join(work, path), path)
        marker = re.search(rb"^<{7} ", content or b"", re.MULTILINE)
        if content and marker:
            line = content.count(b"\n", 0, marker.start()) + 1
            return "patch failed: %s:%d: it is neither as before the diff nor as after it" % (path, line)
    return message.replace(
        "does not exist in index", "is not in the tree; paths begin at its root, as git diff says them"
    )


def _put(path: str, content: Optional[bytes], mode: Optional[int]) -> None:
    if os.path.lexists(path):
        os.unlink(path)
    if content is None:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as stream:
        stream.write(content)
    os.chmod(path, mode or 0o644)


def _alone(scratch: str) -> Dict[str, str]:
    """The copy is in no repository, whatever is above it."""
    return {"GIT_CEILING_DIRECTORIES": scratch}


def _merging(root: str, scratch: str, work: str) -> Optional[Dict[str, str]]:
    """What makes git see the copy as a checkout with the tree's objects, and an index of the copied files."""
    try:
        asking = ownership.command(root, ["rev-parse", "--git-path", "objects"])
    except AgentError as error:
        if error.kind == "not-found":
            return None
        raise
    found = run(asking.argv, asking.env, check=False)
    if found.returncode:
        return None
    own = os.path.join(scratch, "git")
    if not os.path.isdir(own):
        _git(scratch, ["init", "--quiet", "--bare", own], {}, check=True)
    environment = {
        "GIT_DIR": own,
        "GIT_WORK_TREE": work,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.path.join(root, os.fsdecode(found.stdout).strip()),
    }
    _git(work, ["add", "--all", "--force"], environment, check=True)
    return environment


def _git(
    folder: str, words: List[str], env: Dict[str, str], stdin: bytes = b"", check: bool = False
) -> "subprocess.CompletedProcess[bytes]":
    """git in our own scratch folder, whose configuration is ours."""
    command = ownership.command_of(User(os.geteuid(), os.getegid()), folder, words)
    return run(command.argv, dict(command.env, **env), stdin=stdin, check=check)


def _named(scratch: str, work: str, diff: bytes) -> List[str]:
    """The files that a diff is about, old names and new ones. Raises AgentError for what leads out of the tree."""
    if re.search(rb"^new mode ", diff, re.MULTILINE):
        raise AgentError("invalid", "it changes the mode of a file; only contents are changed by a diff here")
    names: List[str] = []
    for direction in ([], ["--reverse"]):
        done = _git(work, ["apply", "--numstat", "-z", *direction, "-"], _alone(scratch), diff)
        if done.returncode:
            raise AgentError(
                "invalid", "not a diff that git takes: %s" % done.stderr.decode("utf-8", "replace").strip()
            )
        names += [
            os.fsdecode(entry.split(b"\t", 2)[2]) for entry in done.stdout.split(b"\0") if entry.count(b"\t") >= 2
        ]
    for name in names:
        if os.path.isabs(name) or ".." in name.split("/"):
            raise AgentError("invalid", "%s leads out of the tree" % name, path=name)
    return list(dict.fromkeys(names))


def _copied(root: str, work: str, path: str) -> Optional[bytes]:
    place = os.path.realpath(os.path.join(root, path))
    if os.path.commonpath([root, place]) != root:
        raise AgentError("invalid", "%s leads out of the tree, to %s" % (path, place), path=path)
    with told("read", place):
        content, mode = _read(place, path)
    if content is None:
        return None
    _put(os.path.join(work, path), content, mode)
    return content


def _read(path: str, name: str) -> Tuple[Optional[bytes], Optional[int]]:
    """Content and mode of a regular file, None where there is nothing. Raises AgentError for anything else."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None, None
    if not stat.S_ISREG(info.st_mode):
        raise AgentError("invalid", "%s is no regular file" % name, path=path)
    with os.fdopen(descriptor(path), "rb") as stream:
        return stream.read(), stat.S_IMODE(info.st_mode)


CALLS = {"attempt": attempt}
