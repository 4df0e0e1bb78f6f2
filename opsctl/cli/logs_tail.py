"""`opsctl logs tail`: the server logs of several hosts as one stream."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args

import typer

from opsctl.cli.logs_collect import expected
from opsctl.errors import AuthFailed, Exit, HostKeyError, OpsctlError, Unreachable, UsageError
from opsctl.secret import mask, secrets_in
from opsctl.sglang.logs.log_parts import Server
from opsctl.text import printable
from opsctl.wire.calls.logs import Level, Place, follow_lines

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost

LEVELS: tuple[Level, ...] = get_args(Level)
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "bright_cyan", "bright_magenta", "bright_green")
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0  # seconds before a lost host is tried again
_MOST_UNPACKED = 64 << 20


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


@dataclass(slots=True)
class Screen:
    """Where all hosts write: whole lines, each with its host before it where there are several."""

    hosts: Sequence[str]
    colour: bool = field(default_factory=lambda: sys.stdout.isatty())
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def lines(self, host: str, lines: Sequence[str]) -> None:
        label = self._label(host)
        with self._lock:
            for line in lines:
                sys.stdout.write(f"{label}{printable(mask(line))}\n")
            sys.stdout.flush()

    def say(self, host: str, text: str) -> None:
        """What is no line of a log: on stderr."""
        with self._lock:
            typer.echo(f"{host}: {printable(mask(text))}", err=True)

    def _label(self, host: str) -> str:
        if len(self.hosts) < 2:
            return ""
        label = f"{host:<{max(map(len, self.hosts))}} │ "
        return typer.style(label, fg=_COLOURS[self.hosts.index(host) % len(_COLOURS)]) if self.colour else label


class _Stop(Exception):
    """The user has had enough."""


def follow(hosts: Sequence[InventoryHost], wanted: Filter) -> int:
    """Until Ctrl-C, or until no host is left that can be followed. The exit code."""
    screen, stop = Screen([host.name for host in hosts]), threading.Event()
    for host in hosts:
        expected(host)  # a mistake in the inventory is told before any host is asked
    with ThreadPoolExecutor(len(hosts), thread_name_prefix="tail") as pool:
        futures = [pool.submit(_Tail(host, wanted, screen, stop).run) for host in hosts]
        try:
            codes = [future.result() for future in futures]
        except KeyboardInterrupt:
            stop.set()
            return Exit.DONE  # it is how a tail ends
        finally:
            stop.set()
    return max(codes, default=Exit.DONE)


@dataclass(slots=True)
class _Tail:
    """Follows one host, connecting again as often as it takes."""

    host: InventoryHost
    wanted: Filter
    screen: Screen
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
                self.screen.say(self.host.name, f"error: {error.message}")
                return error.exit_code
            except OpsctlError as error:
                if not self.began:
                    self.screen.say(self.host.name, f"error: {error.message}")
                    return error.exit_code
                pause = _FIRST_PAUSE if time.monotonic() - since > _LONGEST_PAUSE else pause
                reason = "lost" if isinstance(error, Unreachable) else "failed"
                self.screen.say(self.host.name, f"{reason}: {error.message}; trying again in {pause:.0f} s")
                self.stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
        return Exit.DONE

    def _once(self) -> None:
        from opsctl.remote.host import connect
        from opsctl.sglang.logs import log_survey

        with connect(self.host.connection(), self.stop.is_set) as remote:
            sglang = self.host.sglang
            server = log_survey.survey(lambda call: remote.call(call, timeout=60), sglang, expected(self.host))
            if self.began:
                self.screen.say(self.host.name, "there again")
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
            self.screen.lines(self.host.name, text.split("\n"))

    def _secrets(self) -> list[str]:
        found = []
        for secret in secrets_in(vars(self.host.settings)):
            try:
                found.append(secret.reveal())
            except UsageError as error:
                self.screen.say(self.host.name, f"note: not masked by its value, only by its form: {error.message}")
        return found
