"""Runs a journal and kills it (SIGKILL) at each system call that writes, then has another process take it back.

Run as a program of its own: `crash.py STATE FOLDER`. Prints one JSON object: how many places it was killed at, and
what was found wrong. Crashing is brought about by counting calls of `os`, so every boundary is met, none by luck.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opsctl.agent.core import history, journal, runs
from opsctl.wire import masking
from opsctl.wire.protocol import AgentError, Context
from tests.remote.steps import RUN, tree, writing

WRITES = ("write", "pwrite", "fsync", "replace", "rename", "link", "unlink", "mkdir", "rmdir", "chmod", "ftruncate")
BEFORE = {"old": b"old content", "kept": b"kept"}


def main(state: Path, folder: Path) -> None:
    os.environ["OPSCTL_STATE_DIR"] = str(state)
    # A place to be killed at all the same. Only the end of a machine takes what a process has written.
    os.fsync = lambda file: None
    wrong: list[str] = []
    # Loaded and compiled here, and not in every child.
    masking.text("")
    for name in ("core.undo_record", "files.changes"):
        importlib.import_module(f"opsctl.agent.{name}")
    places = crash_everywhere(state, folder, wrong, "making", lambda: None, lambda: make(folder))
    places += crash_everywhere(state, folder, wrong, "taking back", lambda: make(folder), take_back)
    print(json.dumps({"places": places, "wrong": wrong}))


def crash_everywhere(
    state: Path, folder: Path, wrong: list[str], what: str, prepare: Callable[[], None], work: Callable[[], Any]
) -> int:
    """Do `work` again and again, killed one write later each time, and check that a rollback restores all of it."""
    place = 0
    while True:
        reset(state, folder)
        in_child(prepare, None)
        finished = in_child(work, place)
        after = in_child_report(lambda: recover(folder))
        if after is not None:
            wrong.append(f"{what}, killed at write {place}: {after}")
        if finished:
            return place
        place += 1


def make(folder: Path) -> None:
    call = Context()
    journal.begin(call, RUN, {"who": "ann"})
    for seq, (name, content) in enumerate((("new", b"new"), ("old", b"changed")), 1):
        step = writing(folder / name, content, seq)
        call.body = step.body
        journal.apply(call, **step.args)


def take_back() -> Any:
    return journal.rollback(Context(), RUN)


def recover(folder: Path) -> str | None:
    """Take the run back, twice. Says what is wrong then."""
    try:
        [run] = history.newest(Context())["runs"] or [None]
        if run is None:
            return None if tree(folder) == BEFORE else "changed without a journal"
        first, second = take_back(), take_back()
    except AgentError as error:
        return f"{error.kind}: {error.message}"
    if tree(folder) != BEFORE:
        return f"left {tree(folder)}"
    if first["outcome"] != "rolled-back" or second["outcome"] != "rolled-back":
        return f"reported {first}"
    if runs.read(RUN).outcome != "rolled-back":
        return "outcome not noted"
    return None


def reset(state: Path, folder: Path) -> None:
    for path in (state, folder):
        shutil.rmtree(path, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in BEFORE.items():
        (folder / name).write_bytes(content)


def in_child(work: Callable[[], Any], die_at: int | None) -> bool:
    """Run `work` in a process of its own that is killed at its `die_at`-th write. Whether it came to its end."""
    pid = os.fork()
    if pid == 0:
        if die_at is not None:
            arm(die_at)
        work()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return False
    assert os.WEXITSTATUS(status) == 0, "the work failed by itself"
    return True


def in_child_report(work: Callable[[], str | None]) -> str | None:
    reading, writing_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing_end, (work() or "").encode()[:4000])
        os._exit(0)
    os.close(writing_end)
    with os.fdopen(reading, "rb") as answers:
        text = answers.read().decode()
    os.waitpid(pid, 0)
    return text or None


def arm(die_at: int) -> None:
    left = die_at

    def dying(original: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*args: Any, **options: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return original(*args, **options)

        return instead

    for name in WRITES:
        with contextlib.suppress(AttributeError):
            setattr(os, name, dying(getattr(os, name)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
