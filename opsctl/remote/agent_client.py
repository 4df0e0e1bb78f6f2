"""The controller's side of an agent: sends calls, gives out answers. No thread of its own.

Whoever waits for an answer reads for everybody: one waiter holds the reading lock and hands out what comes, the others
sleep until theirs is there or the reader's place is free.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from opsctl.agent.protocol import LENGTHS, MAX_BODY, MAX_HEADER, Call, ProtocolError, Reply, frame, frame_head
from opsctl.errors import Conflict, Locked, OpsctlError, RemoteError, Unreachable, UsageError
from opsctl.remote import become, bundle, heartbeat
from opsctl.remote.stream import SourceUnreadable, Stream
from opsctl.text import one_line

OnProgress = Callable[[Any, bytes], None]
PING_AFTER = 15.0  # seconds of silence after which a waiting controller asks whether the agent is there
LOST_AFTER = 45.0  # seconds of silence after which it is taken for lost
BEHIND = 4  # times as long may an answer be behind megabytes on their way, while its connection gives signs of life


@dataclass(eq=False)
class Pending:
    """A call that was sent. `wait` gives its reply."""

    client: AgentClient
    number: int
    call: Call
    on_progress: OnProgress | None = None
    outcome: Reply | OpsctlError | None = None
    news: list[tuple[Any, bytes]] = field(default_factory=list)  # progress not yet handed to on_progress

    def wait(self, timeout: float | None = None) -> Reply:
        """The reply. Raises RemoteError (kind timeout after `timeout` seconds), Locked, Unreachable."""
        outcome = self.client.wait(self, timeout)
        if isinstance(outcome, OpsctlError):
            raise outcome
        return outcome

    def cancel(self) -> None:
        """Ask the agent to give up on the call; its answer still comes."""
        self.client.cancel(self)


class AgentClient:
    """One agent over one stream. Safe to use from several threads.

    Args:
        stream: the started agent, the boot bytes already sent.
        name: the host, for errors.
        user: the user it was to become, for errors.
    """

    def __init__(self, stream: Stream, name: str, user: str | None = None) -> None:
        self._stream, self._name, self._user = stream, name, user
        self._spoke = False
        self._known = {*bundle.CORE, "loader"}
        self._sending, self._reading = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[int, Pending] = {}
        self._numbers = 0
        self._buffer = bytearray()
        self._heard = time.monotonic()
        self._dead: OpsctlError | None = None
        heartbeat.keep(self)

    @property
    def alive(self) -> bool:
        return self._dead is None

    def send(
        self,
        calls: Sequence[Call],
        *,
        after: Iterable[Pending] = (),
        on_progress: OnProgress | None = None,
    ) -> list[Pending]:
        """Send calls in one write, without waiting. They start when those in `after` have ended."""
        waits_for = [p.number for p in after]
        with self._sending:
            sent, data = [], bundle.load_frames(calls, self._known)
            for call in calls:
                self._numbers += 1
                pending = Pending(self, self._numbers, call, on_progress)
                header: dict[str, Any] = {"id": pending.number, "call": call.name, "args": call.args}
                if waits_for:
                    header["after"] = waits_for
                data += frame(header, call.body)
                sent.append(pending)
            with self._changed:
                if self._dead:
                    raise self._dead
                self._pending.update((p.number, p) for p in sent)
            self._write(data)
        return sent

    def send_files(self, call: Call, ranges: Sequence[tuple[str, int, int]]) -> Pending:
        """Send a call with ranges of files (path, start, count) as its body.

        Raises UsageError: one cannot be read, or is shorter by now. Then the agent is of no use any more.
        """
        with self._sending:
            self._numbers += 1
            pending = Pending(self, self._numbers, call)
            header = {"id": pending.number, "call": call.name, "args": call.args}
            head = frame_head(header, sum(count for _, _, count in ranges))
            with self._changed:
                if self._dead:
                    raise self._dead
                self._pending[pending.number] = pending
            self._write(bundle.load_frames([call], self._known) + head)
            try:
                for path, start, count in ranges:
                    self._write_range(path, start, count)
            except UsageError as error:
                self.end(Unreachable(error.message, where=self._name))
                raise
            except (OSError, ValueError) as error:
                self._lost(error)
        return pending

    def _write_range(self, path: str, start: int, count: int) -> None:
        """One file is open at a time: there may be more of them than a process may have open."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from None
        try:
            self._stream.send_file(file, start, count, LOST_AFTER)
        except SourceUnreadable as error:
            raise _unreadable(path, str(error)) from None
        finally:
            os.close(file)

    def wait(self, pending: Pending, timeout: float | None) -> Reply | OpsctlError:
        """The outcome of a call, reading for everybody meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._tell(pending)
            with self._changed:
                if pending.outcome is not None:
                    break
                if self._dead:
                    return self._dead
                if not self._reading.acquire(blocking=False):
                    self._changed.wait(_limit(deadline, 1.0))
                    if pending.outcome is None and _over(deadline):
                        return self._late(pending, timeout)
                    continue
            try:
                if pending.outcome is None:
                    self._pump(_limit(deadline, 1.0))
            finally:
                self._reading.release()
                with self._changed:
                    self._changed.notify_all()
            if pending.outcome is None and _over(deadline):
                return self._late(pending, timeout)
        self._tell(pending)
        return pending.outcome

    def cancel(self, pending: Pending) -> None:
        with self._sending, contextlib.suppress(OpsctlError):
            self._write(frame({"cancel": pending.number}))

    def beat(self) -> None:
        """Tell the agent that we are here, unless other traffic does."""
        if self._sending.acquire(blocking=False):
            try:
                with contextlib.suppress(OpsctlError, OSError):
                    if self._stream.can_send():
                        self._write(frame({"ping": 0}))
            finally:
                self._sending.release()

    def end(self, why: OpsctlError) -> None:
        """Take the agent for gone: everybody who waits gets `why`."""
        with self._changed:
            self._dead = self._dead or why
            for pending in self._pending.values():
                pending.outcome = pending.outcome or self._dead
            self._pending.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """End the agent: it kills what it started, releases its locks and goes."""
        self.end(Unreachable("the connection is closed", where=self._name))
        self._stream.close()

    def abandon(self) -> None:
        """End it at once, whatever others are doing with it; it is still to be closed."""
        self.end(Unreachable("the connection is closed", where=self._name))
        self._stream.abandon()

    def _late(self, pending: Pending, timeout: float | None) -> OpsctlError:
        self.cancel(pending)
        return RemoteError(f"{pending.call.name}: no answer within {timeout:g} s", kind="timeout", where=self._name)

    @staticmethod
    def _tell(pending: Pending) -> None:
        """Hand progress to the caller's function in the caller's own thread, outside all locks."""
        while pending.news:
            data, body = pending.news.pop(0)
            if pending.on_progress:
                pending.on_progress(data, body)

    def _write(self, data: bytes) -> None:
        try:
            self._stream.send(data, LOST_AFTER)
        except (OSError, ValueError) as error:  # ValueError: another thread has closed the pipe
            self._lost(error)

    def _lost(self, error: OSError | ValueError) -> NoReturn:
        self._end_lost(_reason(error))
        assert self._dead
        raise self._dead from error

    def _pump(self, seconds: float) -> None:
        """Read once and hand out what came."""
        try:
            data = self._stream.receive(seconds)
        except TimeoutError:
            self._check_silence()
            return
        except (OSError, ValueError) as error:
            self._end_lost(_reason(error))
            return
        self._heard = time.monotonic()
        if not data:
            self._end_lost("it ended")
            return
        self._spoke = True
        self._buffer += data
        try:
            self._hand_out()
        except ProtocolError as error:
            self._end_lost(f"{error}")

    def _check_silence(self) -> None:
        now = time.monotonic()
        quiet = now - self._heard
        silent = quiet if quiet > BEHIND * LOST_AFTER else now - max(self._heard, self._stream.heard())
        if silent > LOST_AFTER:
            self._end_lost(f"no sign of life for {silent:.0f} s")
        elif quiet > PING_AFTER:
            self.beat()

    def _hand_out(self) -> None:
        buffer = self._buffer
        while len(buffer) >= LENGTHS.size:
            head, body = LENGTHS.unpack_from(buffer)
            if head > MAX_HEADER or body > MAX_BODY:
                raise ProtocolError(f"unexpected output: {one_line(buffer[:200].decode('utf-8', 'replace'))}")
            end = LENGTHS.size + head + body
            if len(buffer) < end:
                return
            text = bytes(buffer[LENGTHS.size : LENGTHS.size + head])
            content = bytes(buffer[LENGTHS.size + head : end])
            del buffer[:end]
            try:
                self._deliver(json.loads(text), content)
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise ProtocolError(f"no frame of ours: {one_line(text[:200].decode('utf-8', 'replace'))}") from error

    def _deliver(self, header: dict[str, Any], body: bytes) -> None:
        if "need" in header:
            self._bring(str(header["need"]))
            return
        with self._changed:
            pending = self._pending.get(header.get("id", -1))
            if pending is None:
                return  # a pong, or a call that was given up
            if "progress" in header:
                pending.news.append((header["progress"], body))
            elif "error" in header:
                pending.outcome = _error(header["error"], self._name)
            else:
                pending.outcome = Reply(header.get("result"), body)
            if pending.outcome is not None:
                del self._pending[pending.number]
            self._changed.notify_all()

    def _bring(self, module: str) -> None:
        """Send a module that the agent asked for (undo calls of an earlier run need what this run did not load)."""
        with self._sending, contextlib.suppress(OpsctlError):
            self._known.update(bundle.needs(module))
            self._write(bundle.load_frame(bundle.needs(module) or (module,)))

    def _end_lost(self, why: str) -> None:
        if not self._spoke:
            self.end(become.refused(self._stream, self._user, self._name))
            return
        said = self._stream.stderr()
        self.end(
            Unreachable(
                f"lost the agent: {why}" + (f" ({one_line(said)})" if said.strip() else ""),
                where=self._name,
                hint="what it was doing is in the host's journal: opsctl history",
            )
        )


def _error(error: dict[str, Any], host: str) -> OpsctlError:
    """An agent's error as ours."""
    kind, message = str(error.get("kind", "failed")), str(error.get("message", "failed"))
    fields = {k: v for k, v in error.items() if k not in ("kind", "message")}
    if kind == "locked":
        holder = fields.get("holder")
        return locked(message, holder if isinstance(holder, dict) else {}, host)
    if kind == "conflict":
        return Conflict(message, kind=kind, where=host, fields=fields)
    hint = None
    if fields.get("state"):
        hint = "free some space there, or set `state_dir` of the host in the inventory"
    return RemoteError(message, kind=kind, where=host, hint=hint, fields=fields)


def locked(message: str, holder: dict[str, Any], host: str) -> Locked:
    """The error for a host that somebody else holds; says who, what and since when."""
    return Locked(message, where=host, hint="wait for it with --lock-wait", holder=holder)


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, TimeoutError):
        return "it takes no more input"
    if isinstance(error, ValueError):
        return "it was closed"
    return error.strerror or str(error) or type(error).__name__


def _unreadable(path: str, why: str) -> UsageError:
    return UsageError(f"cannot read {path}: {why}", hint="run it again when it is complete; what has arrived stays")


def _limit(deadline: float | None, most: float) -> float:
    return most if deadline is None else max(0.0, min(most, deadline - time.monotonic()))


def _over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() >= deadline
