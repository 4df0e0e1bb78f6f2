"""Logs of hosts: bundles of them, timelines, and following them as one stream."""

from __future__ import annotations

import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from opsctl.errors import AuthFailed, Exit, HostKeyError, OpsctlError, Unreachable, Unreadable, UsageError
from opsctl.secret import secrets_in
from opsctl.sglang.logs import log_survey, timeline
from opsctl.verbs.frontend import SILENT, Done, Frontend
from opsctl.verbs.health import expected
from opsctl.verbs.hosts import on_each
from opsctl.wire.calls.logs import Level, Place, Scan, follow_lines, serverlog_scan, serverlog_scan_unit
from opsctl.wire.protocol import AgentError

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.logs.log_collect import Collected, Source, Wish
    from opsctl.sglang.logs.log_parts import Server

LEVELS: tuple[Level, ...] = get_args(Level)
_MOST_OLDER = 6  # rotated files to go back in search of the start of the server
_LONGEST = 900.0  # seconds: ten gigabytes, on a slow disk
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds before a lost host is tried again
_MOST_UNPACKED = 64 << 20


class Stopped(OpsctlError):
    """Whoever asked has had enough."""

    exit_code = Exit.INTERRUPTED


def collect(
    hosts: Sequence[InventoryHost], wish: Wish, place: Callable[[str], Path], front: Frontend = SILENT
) -> list[Done[Collected]]:
    """Collect a bundle from every host, side by side. place: where the bundle of a host of this name goes.

    Raises UsageError for a mistake in the inventory before any host is asked.
    """
    from opsctl.sglang.logs.log_collect import collect as collect_one
    from opsctl.sglang.logs.log_collect import of_run

    sources = {host.name: source(host) for host in hosts}

    def work(remote: RemoteHost, host: InventoryHost) -> Collected:
        def tell(text: str, fraction: float | None) -> None:
            if front.cancelled():
                raise Stopped("stopped; nothing was written", where=host.name)
            front.progress(host.name, text, fraction)

        return collect_one(remote, sources[host.name], of_run(wish, remote), place, tell)

    return on_each(hosts, work, front)


def source(host: InventoryHost) -> Source:
    """A host of the inventory, with every secret that is known of it. Raises UsageError."""
    from opsctl.sglang.logs.log_collect import Source

    return Source(host.name, host.sglang, expected(host), tuple(secrets_in(vars(host.settings))))


def summary(hosts: Sequence[InventoryHost], front: Frontend = SILENT) -> list[Done[timeline.Summary]]:
    """The timeline of each host's server. Logs are scanned where they lie, and only the marks travel."""
    return on_each(hosts, _summary, front)


def _summary(remote: RemoteHost, host: InventoryHost) -> timeline.Summary:
    server = log_survey.survey(remote.call, host.sglang, expected(host))
    if server.logs:
        found = _scan(remote, server.logs)
    elif server.unit:
        found = remote.call(serverlog_scan_unit(server.unit, server.user_unit), timeout=_LONGEST).result
    else:
        raise UsageError("no server runs here, and no log is known", hint="set `log` or `unit` in its sglang section")
    return timeline.build(found, current=True)


def _scan(remote: RemoteHost, logs: Sequence[str]) -> Scan:
    """The newest file, and as many older ones as it takes to see a start of the server."""
    older: list[str] = []
    earlier = list(logs[:-1])
    while True:
        found = remote.call(serverlog_scan(logs[-1], older=older), timeout=_LONGEST).result
        started = any(mark["name"] == "start" for mark in found["marks"])
        if started or not earlier or len(older) >= _MOST_OLDER:
            return found
        older.insert(0, earlier.pop())


def summary_here(files: Sequence[Path]) -> timeline.Summary:
    """The timeline of a log on this machine. files: its rotated parts, oldest first. Raises UsageError, Unreadable."""
    from opsctl.sglang.logs.timeline import scan_files

    for file in files:
        if file.is_dir():
            raise UsageError(f"{file} is a folder", hint="name the log file in it")
    try:
        found = scan_files(files)
    except AgentError as error:
        if error.kind == "missing-tool":
            raise Unreadable(error.message, hint="unpack it first, or install zstandard") from None
        raise UsageError(error.message) from None
    except OSError as error:
        raise UsageError(f"{error.filename or files[-1]} cannot be read: {error.strerror}") from None
    if not (found["marks"] or found["first_at"] or found["samples"] or found["ranks"]):
        raise _no_log(files[-1], found["lines"])
    return timeline.build(found)


def _no_log(file: Path, lines: int) -> Unreadable:
    with file.open("rb") as stream:
        utf16 = stream.read(2) in (b"\xff\xfe", b"\xfe\xff")
    if utf16:
        return Unreadable(f"{file} is UTF-16 text", hint=f"make it UTF-8 first: iconv -f UTF-16 -t UTF-8 {file}")
    what = f"nothing in its {lines} lines is a server's" if lines else "it is empty"
    return Unreadable(f"{file} is no log of an SGLang server: {what}", hint="`opsctl logs collect` finds the right one")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines are wanted."""

    grep: str | None = None
    level: Level = "info"
    past: int = 10
    keep_prompts: bool = False

    @classmethod
    def of(cls, grep: str | None, level: str | None, past: int, keep_prompts: bool) -> Filter:
        """From options. Raises UsageError."""
        chosen = next((one for one in LEVELS if one == (level or "info")), None)
        if chosen is None:
            raise UsageError(f"--level {level} is no level", hint=f"valid: {', '.join(LEVELS)}")
        try:
            re.compile(grep or "")
        except re.error as error:
            raise UsageError(
                f"--grep: {error}", hint=r"a regular expression is expected; \ before . ( [ * + ?"
            ) from None
        return cls(grep, chosen, past, keep_prompts)


Lines = Callable[[str, Sequence[str]], None]
"""Takes lines of the log of a host with this name. They are data of the host: escape and mask them for a terminal."""


def follow(hosts: Sequence[InventoryHost], wanted: Filter, lines: Lines, front: Frontend = SILENT) -> int:
    """Follow the server logs of hosts until interrupted, or until no host is left that can be followed.

    Returns the exit code. Rotation, restarts of the server and lost connections end nothing.
    """
    stop = threading.Event()
    for host in hosts:
        expected(host)  # a mistake in the inventory is told before any host is asked
    with ThreadPoolExecutor(len(hosts), thread_name_prefix="tail") as pool:
        futures = [pool.submit(_Tail(host, wanted, lines, front, stop).run) for host in hosts]
        try:
            codes = [future.result() for future in futures]
        except KeyboardInterrupt:
            return Exit.DONE  # it is how a tail ends
        finally:
            stop.set()
    return max(codes, default=Exit.DONE)


class _Stop(Exception):
    """The user has had enough."""


@dataclass(slots=True)
class _Tail:
    """Follows one host, connecting again as often as it takes."""

    host: InventoryHost
    wanted: Filter
    lines: Lines
    front: Frontend
    stop: threading.Event
    at: Place | None = None
    began: bool = False

    def run(self) -> Exit:
        pause = _FIRST_PAUSE
        while not self.stop.is_set():
            since = time.monotonic()
            try:
                self._once()
            except _Stop:
                break
            except (AuthFailed, HostKeyError, UsageError) as error:
                self._say(f"error: {error.message}")
                return error.exit_code
            except OpsctlError as error:
                if not self.began:
                    self._say(f"error: {error.message}")
                    return error.exit_code
                pause = _FIRST_PAUSE if time.monotonic() - since > _LONGEST_PAUSE else pause
                reason = "lost" if isinstance(error, Unreachable) else "failed"
                self._say(f"{reason}: {error.message}; trying again in {pause:.0f} s")
                self.stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return Exit.DONE

    def _say(self, text: str) -> None:
        self.front.say(f"{self.host.name}: {text}")

    def _once(self) -> None:
        from opsctl.remote.host import connect

        with connect(self.host.connection(), self.stop.is_set) as remote:
            sglang = self.host.sglang
            server = log_survey.survey(lambda call: remote.call(call, timeout=60), sglang, expected(self.host))
            if self.began:
                self._say("there again")
            self.began = True
            self._listen(remote, server)

    def _listen(self, remote: RemoteHost, server: Server) -> None:
        call = follow_lines(
            path=server.logs[-1] if server.logs else None,
            unit=server.unit, user_unit=server.user_unit, container=server.container,
            at=self.at, past=self.wanted.past,
            grep=self.wanted.grep, level=self.wanted.level, keep_prompts=self.wanted.keep_prompts,
            body=json.dumps(self._secrets()).encode(),
        )  # fmt: skip
        remote.call(call, on_progress=self._take)

    def _take(self, told: Any, body: bytes) -> None:
        if self.stop.is_set():
            raise _Stop
        self.at = told["at"] or self.at
        if told["lines"]:
            text = zlib.decompressobj().decompress(body, _MOST_UNPACKED).decode("utf-8", "replace")
            self.lines(self.host.name, text.split("\n"))

    def _secrets(self) -> list[str]:
        found = []
        for secret in secrets_in(vars(self.host.settings)):
            try:
                found.append(secret.reveal())
            except UsageError as error:
                self._say(f"note: not masked by its value, only by its form: {error.message}")
        return found
