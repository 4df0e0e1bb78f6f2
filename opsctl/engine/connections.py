"""Connections of a run: begun early, side by side, each host once. Imports little, so that it can be first.

No host is touched for a playbook that is wrong. Loading and checking one costs as much time as a connection's round
trips, so a run that passed its checks notes the digests of everything it was read from, and how its first hosts are
reached; a run with the same words, in the same folder and with the same files begins to connect at once. A note is only
a hint: everything is read and checked again in any case, and a host that is to be reached in another way is connected
to anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opsctl import __version__
from opsctl.localfiles import read
from opsctl.remote.host import RemoteHost, connect
from opsctl.remote.spec import ConnectionSpec, Timeouts


@dataclass(frozen=True, slots=True)
class Connected:
    remote: RemoteHost
    seconds: float  # that connecting took


@dataclass(slots=True)
class Connections:
    """Connects to hosts, at most `at_once` at a time."""

    cancelled: Callable[[], bool] = lambda: False
    at_once: int = 32
    _pool: ThreadPoolExecutor | None = None
    _begun: dict[str, tuple[ConnectionSpec, Future[Connected]]] = field(default_factory=dict)

    def begin(self, specs: Iterable[ConnectionSpec]) -> None:
        """Begin to connect, without waiting. Called from one thread only."""
        for spec in specs:
            before, connecting = self._begun.get(spec.name, (None, None))
            if before == spec:
                continue
            if connecting is not None:
                connecting.add_done_callback(_close)  # the inventory says something else now
            self._pool = self._pool or ThreadPoolExecutor(self.at_once, thread_name_prefix="connect")
            self._begun[spec.name] = spec, self._pool.submit(self._connect, spec)

    def of(self, spec: ConnectionSpec) -> Future[Connected]:
        """The connection to a host, begun if it was not. Its result raises Unreachable, HostKeyError, AuthFailed."""
        self.begin([spec])
        return self._begun[spec.name][1]

    def _connect(self, spec: ConnectionSpec) -> Connected:
        began = time.monotonic()
        remote = connect(spec, lambda: self.cancelled())  # it may be set later
        return Connected(remote, time.monotonic() - began)

    def close(self) -> None:
        """Close all of them; those still on their way are closed as soon as they stand."""
        pool, self._pool = self._pool, None
        begun, self._begun = dict(self._begun), {}
        for _, connecting in begun.values():
            connecting.add_done_callback(_close)
        if pool:
            pool.shutdown(wait=False, cancel_futures=True)


def _close(done: Future[Connected]) -> None:
    if not done.cancelled() and not done.exception():
        done.result().remote.close()


_MOST_NOTES = 200


@dataclass(frozen=True, slots=True)
class First:
    """The hosts that a run begins with, as they are reached, and how many of them are worked on at a time."""

    hosts: tuple[ConnectionSpec, ...]
    at_once: int


def first(words: Sequence[str]) -> First | None:
    """What a command line will begin with, as far as that is known before it is read."""
    if _names_files(words):
        return None
    try:
        noted = json.loads(_note(words).read_bytes())
        if all(_digest(Path(file)) == digest for file, digest in noted["files"].items()):
            return First(tuple(_spec(told) for told in noted["hosts"]), int(noted["at_once"]))
    except (OSError, RuntimeError, ValueError, KeyError, TypeError):
        pass
    return None


def remember(words: Sequence[str], files: Iterable[str], found: First) -> None:
    """Note that a command line is right, the files it was read from, and what it begins with."""
    if _names_files(words):
        return
    plain = [spec for spec in found.hosts if spec.password is None and spec.become_password is None]
    hosts = [asdict(spec) for spec in plain]
    with contextlib.suppress(OSError, RuntimeError):  # a hint that cannot be kept is no loss
        digests = {str(Path(f).absolute()): _digest(Path(f)) for f in files}
        path, data = _note(words), json.dumps({"files": digests, "hosts": hosts, "at_once": found.at_once}).encode()
        if path.exists() and path.read_bytes() == data:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(data)
        temporary.replace(path)
        for old in sorted(path.parent.glob("*.json"), key=lambda p: p.stat().st_mtime)[:-_MOST_NOTES]:
            old.unlink(missing_ok=True)


def _names_files(words: Sequence[str]) -> bool:
    """Whether the words may name files of variables (`-e @FILE`), whose content the note would have to cover."""
    return any("@" in word for word in words)


def _spec(told: dict[str, Any]) -> ConnectionSpec:
    lists = {key: tuple(value) for key, value in told.items() if isinstance(value, list)}
    return ConnectionSpec(**{**told, **lists, "timeouts": Timeouts(**told["timeouts"])})


def _note(words: Sequence[str]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Values are digested with the rest: they decide whether the playbook is right, and are nobody's business.
    text = repr((__version__, os.getcwd(), os.environ.get("OPSCTL_INVENTORY"), list(words)))
    return cache / "opsctl" / "checked" / f"{hashlib.sha256(text.encode()).hexdigest()}.json"


def _digest(path: Path) -> str:
    return hashlib.sha256(read(path)).hexdigest()
