"""Where the parts of a log bundle come from: commands, files, logs, and other calls of the agent."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Tuple

from opsctl.agent.core import dispatch, rights
from opsctl.agent.git import checkout
from opsctl.agent.logs import logfiles
from opsctl.agent.logs.logtail import begin_of, file_of
from opsctl.wire.protocol import AgentError, Context
from opsctl.wire.redact import Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Entry, Part

PIECE = 1 << 20
_GRACE = 2.0  # seconds for a killed command to go; one in state D stays, and is left behind


def read(call: Context, part: Part, entry: Entry, deadline: float, root: str, texts: Redactor) -> Iterator[bytes]:
    """The bytes of a part as they come; what went wrong is noted in `entry`. Raises AgentError, OSError."""
    if "argv" in part:
        environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": "", "PAGER": "cat"}
        yield from _command(call, part["argv"], environment, None, entry, deadline)
        return
    if "python" in part:
        who = rights.of_program(part["python"])
        argv = [*rights.words(who), os.path.expanduser(part["python"]), "-c", part["script"]]
        yield from _command(call, argv, dict(rights.environment(who), LC_ALL="C"), "/", entry, deadline)
        return
    if "git" in part:
        command = checkout.command(part["tree"], part["git"])
        yield from _command(call, command.argv, dict(command.env, PAGER="cat"), "/", entry, deadline)
        return
    if "call" in part:
        yield from _answer(call, part["call"], part.get("args", {}), texts)
        return
    for path, offset in _files(part, root):
        for data in logfiles.blocks(path, offset, block=PIECE, once=True):
            yield data
            if time.monotonic() > deadline:
                entry["error"] = "time limit"
                return


def named(part: Part) -> str:
    """Where a part comes from, for the manifest."""
    if "argv" in part:
        return " ".join(part["argv"])
    if "python" in part:
        return " ".join([part["python"], "-c", part["script"]])
    if "git" in part:
        return " ".join(["git", "-C", part["tree"], *part["git"]])
    if "call" in part:
        return str(part["call"])
    return ", ".join(part.get("logs") or [part["path"]])


def _files(part: Part, root: str) -> Iterator[Tuple[str, int]]:
    paths = [os.path.join(root, path.lstrip("/")) for path in part.get("logs") or [part["path"]]]
    since, begun = part.get("since"), part.get("begun")
    if begun is not None:
        known = [number for number, path in enumerate(paths) if begun["file"] and file_of(path) == begun["file"]]
        if known:
            first = paths[known[-1]]
            yield first, begin_of(first, begun["file"], begun["offset"])
            yield from ((path, 0) for path in paths[known[-1] + 1 :])
            return
        # Made since, or packed by a rotation since: told by its times.
        since = max(0.0, time.time() - begun["at"])
        if begun["file"] is None and begun["log"] in part.get("logs", ()):
            yield from ((path, 0) for path in logfiles.recent(paths, since))
            return
    if since is None:
        yield from ((path, 0) for path in paths)
        return
    for path in logfiles.recent(paths, since):
        yield path, logfiles.offset_of(path, since) if os.path.isfile(path) else 0


def _answer(call: Context, name: str, args: Dict[str, Any], texts: Redactor) -> Iterator[bytes]:
    """What another call of the agent gives, as JSON with an element a line, so that names stay beside their values.

    Texts inside are redacted line by line before they become one JSON line.
    """
    inner = _Inner(call)
    for line in _rows(_clean(dispatch.invoke(name, args, inner).result, texts)):
        yield line.encode("utf-8", "surrogateescape")


class _Inner(Context):
    """A call within a call: its progress is of no interest, the rest is passed on."""

    def __init__(self, outer: Context) -> None:
        self._outer = outer

    def cancelled(self) -> bool:
        return self._outer.cancelled()

    def started(self, group: int) -> None:
        self._outer.started(group)

    def ended(self, group: int) -> None:
        self._outer.ended(group)


def _clean(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, list):
        return [_clean(element, redactor) for element in value]
    if isinstance(value, dict):
        return {key: _clean(element, redactor) for key, element in value.items()}
    return value


def _rows(value: Any, depth: int = 2) -> Iterator[str]:
    """JSON text in rows: containers are taken apart `depth` levels deep."""
    if not depth or not isinstance(value, (dict, list)) or not value:
        yield json.dumps(value, ensure_ascii=False)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    items = (
        [(json.dumps(k) + ": ", v) for k, v in value.items()] if isinstance(value, dict) else [("", v) for v in value]
    )
    yield opening + "\n"
    for number, (name, element) in enumerate(items):
        yield name
        # A list of words is a command line: a flag and its value stay together.
        plain = isinstance(element, list) and not any(isinstance(word, (dict, list)) for word in element)
        yield from _rows(element, 0 if plain else depth - 1)
        yield ",\n" if number < len(items) - 1 else "\n"
    yield closing


def _command(
    call: Context,
    argv: List[str],
    environment: Dict[str, str],
    cwd: Optional[str],
    entry: Entry,
    deadline: float,
) -> Iterator[bytes]:
    """The output of a command as it comes. The command has a session of its own, so all of it can be ended."""
    try:
        child = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env=environment,
        )
    except FileNotFoundError:
        raise AgentError("missing-tool", "no such command: %s" % argv[0]) from None
    call.started(child.pid)
    assert child.stdout is not None
    handle = child.stdout.fileno()
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                entry["error"] = "time limit"
                return
            data = os.read(handle, PIECE)
            if not data:
                break
            yield data
        entry["exit"] = _wait(child, max(_GRACE, deadline - time.monotonic()))
    finally:
        child.stdout.close()
        if child.poll() is None:
            _kill(child)
            entry["exit"] = _wait(child, _GRACE)
        call.ended(child.pid)


def _wait(child: "subprocess.Popen[bytes]", seconds: float) -> Optional[int]:
    try:
        return child.wait(seconds)
    except subprocess.TimeoutExpired:
        return None


def _kill(child: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        child.kill()
