"""Undo operations: what a journal holds of how a step is taken back, by name and version.

A journal outlives the opsctl that wrote it. So an operation keeps its name, version and arguments for good, whatever
the call is named that does it today; one that takes other arguments is a new version beside the old one. In a journal
it is [name, version, arguments]; up to format 2 it was [name, arguments], always version 1.
"""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, List, NamedTuple, Tuple

VERSIONED = 3  # the first format of the journal in which operations have versions


class Operation(NamedTuple):
    """The call that does it today, and the arguments it takes."""

    call: str
    takes: FrozenSet[str]


def _takes(call: str, *names: str) -> Operation:
    return Operation(call, frozenset(names))


_RUN = ("argv", "shell", "cwd", "env", "timeout", "idle")
OPERATIONS: Dict[Tuple[str, int], Operation] = {
    ("arrival.drop", 1): _takes("arrival.drop", "folder"),
    ("container.restore", 1): _takes("container.restore", "name", "keep", "wait"),
    ("container.resume", 1): _takes("container.resume", "name", "keep"),
    ("files.restore", 1): _takes("files.restore", "path", "keep"),
    ("git.restore", 1): _takes("git.restore", "path", "keep", "timeout"),
    ("patching.restore", 1): _takes("patching.restore"),
    ("proc.run", 1): _takes("proc.run", *_RUN),
    ("proc.undo", 1): _takes("proc.undo", "keep", *_RUN),
    ("process.restore", 1): _takes("process.restore", "name", "keep", "wait"),
    ("process.resume", 1): _takes("process.resume", "name", "keep", "wait", "judge"),
    ("ready.wait", 1): _takes("ready.wait", "port", "host", "log", "offset", "timeout", "stall", "alive", "begun"),
    ("service.restore", 1): _takes("service.restore", "unit", "keep", "user", "timeout"),
    ("service.resume", 1): _takes("service.resume", "unit", "keep", "user", "timeout", "judge"),
    ("stage.remove", 1): _takes("stage.remove", "keep_as"),
}


def written(name: str, args: Dict[str, Any], journal: int) -> List[Any]:
    """A call as a journal of the format `journal` holds it. Raises ValueError where it is no undo operation."""
    for (operation, version), how in sorted(OPERATIONS.items(), reverse=True):
        if how.call == name and how.takes.issuperset(args):
            if journal >= VERSIONED:
                return [operation, version, args]
            if version == 1:
                return [operation, args]
    raise ValueError("%s(%s) is no undo operation" % (name, ", ".join(sorted(args))))


def read(entry: List[Any]) -> List[Any]:
    """What a journal holds, as [call, arguments]. Raises ValueError where this opsctl does not know it."""
    name, version, args = entry if len(entry) == 3 else (entry[0], 1, entry[1])
    how = OPERATIONS.get((name, version))
    if how is None or not how.takes.issuperset(args):
        raise ValueError("%s, version %s" % (name, version))
    return [how.call, args]
