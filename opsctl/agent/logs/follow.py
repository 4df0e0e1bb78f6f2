"""Follow a server's log as it grows, redacted here, over rotation, truncation and the end of journald's file.

Lines travel in progress messages {"at": where to go on, "lines": count}, the lines as zlib-compressed body; at least
every second there is one, so that both sides know that the other is there. `at` given to a later call goes on there.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import time
import zlib
from typing import TYPE_CHECKING, Any, Generator, List, Optional

from opsctl.agent.files.safepath import descriptor
from opsctl.agent.logs.logtail import Tail
from opsctl.wire.protocol import AgentError, Context
from opsctl.wire.redact import MAX_LINE, Redactor

if TYPE_CHECKING:
    from opsctl.wire.calls.logs import Level, Place

TICK = 1.0
_POLL = 0.2
_PAST = 256 << 10  # bytes in which the lines of the past are looked for
_LEVELS = {"info": 0, "warning": 1, "error": 2}
_ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|Traceback \(most|hit an exception|^\w*(?:Error|Exception)\b|[oO]ut of memory"
    r"|atchdog timeout|sigquit|SIGQUIT|NVRM: Xid|\" 5\d\d "
)
_WARNING = re.compile(r"\bWARN(?:ING)?\b|Warning\b|deprecat|\" 4\d\d ")
_PREFIX = re.compile(r"\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d|INFO: |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ")


class Levels:
    """The level of each line: SGLang writes none, so its wording tells; a line without a time belongs to the last."""

    def __init__(self) -> None:
        self._last = 0

    def of(self, line: str) -> int:
        level = _LEVELS["error"] if _ERROR.search(line) else _LEVELS["warning"] if _WARNING.search(line) else 0
        if _PREFIX.match(line):
            self._last = level
            return level
        return max(level, self._last)


def lines(
    call: Context,
    path: Optional[str] = None,
    unit: Optional[str] = None,
    user_unit: bool = False,
    container: Optional[str] = None,
    at: Optional[Place] = None,
    past: int = 10,
    grep: Optional[str] = None,
    level: Level = "info",
    keep_prompts: bool = False,
) -> None:
    """Agent call `follow.lines`: until it is cancelled. The body is a JSON list of secrets known by value.

    Patterns are tried on what is left after redaction: nothing can be learnt of a secret by asking for it.
    """
    redactor = Redactor(json.loads(call.body.decode()) if call.body else (), keep_prompts=keep_prompts)
    wanted, least, levels = re.compile(grep or ""), _LEVELS[level], Levels()
    if path:
        source = _file(path, at, past)
    elif unit or container:
        source = _command(call, _argv(unit, user_unit, container, at, past), bool(unit), redactor)
    else:
        raise AgentError("not-found", "there is no log to follow: neither a file nor a unit is known")
    said = 0.0
    try:
        for found, place in source:
            kept = []
            for line in found:
                clean = redactor.text(line)
                if levels.of(clean) >= least and wanted.search(clean):
                    kept.append(clean)
            if kept or time.monotonic() - said >= TICK:
                said = time.monotonic()
                call.progress(
                    {"at": place, "lines": len(kept)}, zlib.compress("\n".join(kept).encode("utf-8", "replace"))
                )
            if call.cancelled():
                return
    finally:
        source.close()


def _file(path: str, at: Any, past: int) -> "Generator[Any, None, None]":
    """New lines of a file and where they end: [device, inode, offset]. A file that is not there yet is waited for."""
    tail = Tail(path, _resume(path, at, past))
    try:
        while True:
            found = tail.lines()
            yield found, tail.place()
            if not found:
                time.sleep(_POLL)
    finally:
        tail.close()


def _resume(path: str, at: Any, past: int) -> int:
    try:
        with os.fdopen(descriptor(path), "rb") as file:
            status = os.fstat(file.fileno())
            if at and at[:2] == [status.st_dev, status.st_ino] and at[2] <= status.st_size:
                return int(at[2])
            if at:
                return 0  # rotated meanwhile: all of the new file is news
            start = max(0, status.st_size - _PAST)
            file.seek(start)
            data = file.read(_PAST)
    except OSError:
        return 0
    ends = [m.start() + 1 for m in re.finditer(rb"\n", data)]
    whole = data.endswith(b"\n") or not data
    begin = len(ends) - past - (1 if whole else 0)
    return start + (ends[begin] if 0 <= begin < len(ends) else len(data) if past == 0 else 0)


def _argv(unit: Optional[str], user: bool, container: Optional[str], at: Any, past: int) -> List[str]:
    if container:
        return ["docker", "logs", "--follow"] + (["--since", str(at)] if at else ["--tail", str(past)]) + [container]
    start = ["--after-cursor", str(at)] if at else ["--lines", str(past)]
    return ["journalctl", "--user-unit" if user else "--unit", str(unit), "--follow", "--output", "json"] + start


def _command(call: Context, argv: List[str], journal: bool, redactor: Redactor) -> "Generator[Any, None, None]":
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        )
    except FileNotFoundError:
        raise AgentError("missing-tool", "no such command: %s" % argv[0]) from None
    call.started(child.pid)
    assert child.stdout is not None
    handle, rest, place = child.stdout.fileno(), b"", None  # type: int, bytes, Any
    try:
        while True:
            found = []  # type: List[str]
            if select.select([handle], [], [], _POLL)[0]:
                data = os.read(handle, 1 << 16)
                if not data:
                    said = redactor.text(rest.decode("utf-8", "replace"))
                    raise AgentError("failed", "%s ended: %s" % (argv[0], said[:200]))
                *whole, rest = (rest + data).split(b"\n")
                rest = rest[:MAX_LINE]
                for line in whole:
                    text, cursor = (
                        _entry(line) if journal else (line.decode("utf-8", "backslashreplace"), int(time.time()))
                    )
                    place = cursor or place
                    found += text.split("\n")
            yield found, place
    finally:
        child.stdout.close()
        child.kill()
        child.wait()
        call.ended(child.pid)


def _entry(line: bytes) -> Any:
    """Text and cursor of one entry of journald. What is no text comes as a list of bytes."""
    try:
        entry = json.loads(line.decode("utf-8", "replace"))
    except ValueError:
        return line.decode("utf-8", "backslashreplace"), None
    message = entry.get("MESSAGE") or ""
    if isinstance(message, list):
        message = bytes(message).decode("utf-8", "backslashreplace")
    return message, entry.get("__CURSOR")


CALLS = {"lines": lines}
