"""The controller's side of an agent: sends calls, gives out answers. No thread of its own.

Whoever waits for an answer reads for everybody: one waiter holds the reading lock and hands out what comes, the others
sleep until theirs is there or the reader's place is free.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from opsctl.answers import fitting
from opsctl.errors import Conflict, Damaged, Locked, OpsctlError, RemoteError, Unreachable, UsageError
from opsctl.remote import become, bundle, heartbeat
from opsctl.remote.stream import SourceUnreadable, Stream
from opsctl.text import one_line, size
from opsctl.wire import limits
from opsctl.wire.calls import reply_type
from opsctl.wire.host import OnProgress
from opsctl.wire.protocol import LENGTHS, MAX_BODY, MAX_HEADER, Call, ProtocolError, Reply, frame, frame_head

PING_AFTER = 15.0  # seconds of silence after which a waiting controller asks whether the agent is there
LOST_AFTER = 45.0  # seconds of silence after which it is taken for lost
GRACE = 5.0  # seconds that a call has to answer once nobody wants to know any more
BEHIND = 4  # times as long may an answer be behind megabytes on their way, while its connection gives signs of life


@dataclass(eq=False)
class Pending:
    """A call that was sent. `wait` gives its reply."""

    client: AgentClient
    number: int
    call: Call[Any]
    on_progress: OnProgress | None = None
    outcome: Reply[Any] | OpsctlError | None = None
    news: list[tuple[Any, bytes, int]] = field(default_factory=list)  # progress not yet handed on, and its size
    waiting: int = 0  # bytes of news
    told: int = 0  # bytes of the headers of all progress so far, and of bodies that nobody wants

    def wait(self, timeout: float | None = None, stopped: Callable[[], bool] | None = None) -> Reply[Any]:
        """The reply. Raises RemoteError (kind timeout after `timeout` seconds), Locked, Unreachable.

        stopped: whether nobody wants it any more; then the call is cancelled, and after `GRACE` seconds given up.
        """
        outcome = self.client.wait(self, timeout, stopped)
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
        self._known = {bundle.LOADER, *bundle.CORE}
        self._sending, self._reading = threading.Lock(), threading.Lock()
        self._changed = threading.Condition()
        self._pending: dict[int, Pending] = {}
        self._numbers = 0
        self._buffer = bytearray()
        self._heard = time.monotonic()
        self._brought = 0  # modules that it asked for
        self._pings = 0  # that were not answered yet
        self._dead: OpsctlError | None = None
        heartbeat.keep(self)

    @property
    def alive(self) -> bool:
        return self._dead is None

    def send(
        self,
        calls: Sequence[Call[Any]],
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

    def tell_secrets(self, values: Collection[str]) -> None:
        """Have the agent mask these values from now on. That it is lost is for those to notice who wait for it."""
        if values:
            with self._sending, contextlib.suppress(OpsctlError):
                load = bundle.load_modules(("wire.masking", "wire.secret_values"), self._known)
                self._write(load + frame({"secrets": sorted(values)}))

    def send_files(self, call: Call[Any], ranges: Sequence[tuple[str, int, int]]) -> Pending:
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
            file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise _unreadable(path, error.strerror or str(error)) from None
        try:
            self._stream.send_file(file, start, count, LOST_AFTER)
        except SourceUnreadable as error:
            raise _unreadable(path, str(error)) from None
        finally:
            os.close(file)

    def wait(
        self, pending: Pending, timeout: float | None, stopped: Callable[[], bool] | None = None
    ) -> Reply[Any] | OpsctlError:
        """The outcome of a call, reading for everybody meanwhile."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if stopped is not None and stopped():
                self.cancel(pending)
                deadline, stopped = time.monotonic() + _limit(deadline, GRACE), None
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
                        self._pings += 1
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
        when = "since it was cancelled" if timeout is None else f"within {timeout:g} s"
        return RemoteError(f"{pending.call.name}: no answer {when}", kind="timeout", where=self._name)

    def _tell(self, pending: Pending) -> None:
        """Hand progress to the caller's function in the caller's own thread, outside all locks."""
        while pending.news:
            with self._changed:
                data, body, length = pending.news.pop(0)
                pending.waiting -= length
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
            self._stream.abandon()  # whatever else it has to say

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
                said = one_line(buffer[:200].decode("utf-8", "replace"))
                raise ProtocolError(
                    f"unexpected output, or a frame of {size(head + body)}, more than {size(MAX_BODY)}: {said}"
                )
            end = LENGTHS.size + head + body
            if len(buffer) < end:
                return
            text = bytes(buffer[LENGTHS.size : LENGTHS.size + head])
            content = bytes(buffer[LENGTHS.size + head : end])
            del buffer[:end]
            try:
                header = limits.read_json(text)
            except ValueError as error:
                said = one_line(text[:200].decode("utf-8", "replace"))
                raise ProtocolError(f"no frame of ours: {one_line(str(error))}: {said}") from error
            if not isinstance(header, dict):
                raise ProtocolError(f"no frame of ours: {one_line(text[:200].decode('utf-8', 'replace'))}")
            self._deliver(header, len(text), content)

    def _deliver(self, header: dict[str, Any], length: int, body: bytes) -> None:
        """Take one frame. Raises ProtocolError for one that no agent of ours sends."""
        if "need" in header:
            self._bring(header["need"])
            return
        if "pong" in header:
            self._pings -= 1
            if self._pings < 0:
                raise ProtocolError("an answer to a ping that was never sent")
            return
        number = header.get("id")
        if type(number) is not int or not 0 < number <= self._numbers:
            raise ProtocolError(f"an answer to call {one_line(repr(number), 40)}, which was never made")
        if "result" not in header and length > limits.FRAME:
            raise ProtocolError(f"an error, or progress, of {size(length)}, more than {size(limits.FRAME)}")
        with self._changed:
            pending = self._pending.get(number)
            if pending is None:
                if "progress" in header:
                    return  # of what a call had begun that has been answered
                raise ProtocolError(f"a second answer to call {number}")
            if "progress" in header:
                self._note(pending, header["progress"], body, length)
            elif "error" in header:
                pending.outcome = _error(header["error"], self._name)
            elif "result" in header:
                pending.outcome = checked(pending.call, Reply(header["result"], body), self._name)
            else:
                raise ProtocolError(f"an answer to call {number} with neither result nor error")
            if pending.outcome is not None:
                del self._pending[pending.number]
            self._changed.notify_all()

    @staticmethod
    def _note(pending: Pending, data: Any, body: bytes, length: int) -> None:
        pending.told += length if pending.on_progress else length + len(body)
        if pending.told > limits.STORY:
            raise ProtocolError(f"more than {size(limits.STORY)} of progress of {pending.call.name}")
        if pending.on_progress is None:
            return  # nobody wants to know
        pending.news.append((data, body, length + len(body)))
        pending.waiting += length + len(body)
        if pending.waiting > limits.NEWS:
            raise ProtocolError(f"more than {size(limits.NEWS)} of progress of {pending.call.name} at a time")

    def _bring(self, module: Any) -> None:
        """Send a module that the agent asked for (undo calls of an earlier run need what this run did not load)."""
        self._brought += 1
        if not isinstance(module, str) or not bundle.MODULE.fullmatch(module) or self._brought > limits.NEEDS:
            raise ProtocolError(f"it needs {one_line(repr(module), 80)}, after {self._brought - 1} other modules")
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


def checked(call: Call[Any], reply: Reply[Any], host: str) -> Reply[Any] | OpsctlError:
    """The reply, or what is wrong with it where it is not of the type that is declared for the call."""
    try:
        fitting(reply.result, reply_type(call.name), f"the answer to {call.name}")
        if call.name in ("journal.apply", "supervise.start") and "replies" in reply.result:
            inner, found = call.args["calls"], reply.result["replies"]
            if len(inner) != len(found) or sum(length for _, length in found) != len(reply.body):
                raise ValueError(f"the answer to {call.name} has {len(found)} replies to {len(inner)} calls")
            for (name, _, _), (result, _) in zip(inner, found, strict=True):
                fitting(result, reply_type(name), f"the answer to {name}")
    except ValueError as error:
        return RemoteError(
            f"its answer was not understood: {one_line(str(error))}",
            kind="not-understood",
            where=host,
            hint="is something between us and its agent, or its Python damaged?",
        )
    return reply


def _error(error: Any, host: str) -> OpsctlError:
    """An agent's error as ours. Raises ProtocolError."""
    if not isinstance(error, dict):
        raise ProtocolError(f"an error that is none: {one_line(repr(error), 80)}")
    kind, message = str(error.get("kind", "failed")), str(error.get("message", "failed"))
    if len(message) > limits.MESSAGE:
        message = f"{message[: limits.MESSAGE]}… and {len(message) - limits.MESSAGE} more characters"
    fields = {k: v for k, v in error.items() if k not in ("kind", "message")}
    if kind == "locked":
        holder = fields.get("holder")
        return locked(message, holder if isinstance(holder, dict) else {}, host)
    if kind == "conflict":
        return Conflict(message, kind=kind, where=host, fields=fields)
    if kind == "damaged":
        hint = f"opsctl rollback {fields['run']} undoes what it still has" if fields.get("damage") else None
        return Damaged(message, kind=kind, where=host, hint=hint, fields=fields)
    hint = None
    if kind == "unsafe":
        hint = "see whose it is; make it yours alone, or set `state_dir` of the host in the inventory to another folder"
    elif fields.get("state"):
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
