"""The agent's heart: reads frames, runs calls side by side, answers, and cleans up once its controller is gone."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import threading
import time
import zlib
from typing import Any, BinaryIO, Dict, Iterable, List, Set

from opsctl.agent.core import dispatch, durable, loader
from opsctl.wire.protocol import AgentError, Context, ProtocolError, frame, read_frame

LINGER = 0.003  # seconds that an answer waits for those of calls that still run: together they are one packet
LOADING = 0.1  # seconds that it waits for calls whose code is still being compiled, which is once
OUTBOX = 8 << 20  # bytes waiting to be written, from which on calls wait with saying more
PIPE = 1 << 20  # bytes that wait to be read: the most that a user may ask for by default
GRACE = 5.0  # seconds that calls get to end by themselves once the controller is gone
KILL_AFTER = 2.0  # seconds between SIGTERM and SIGKILL for what they had started


class Running(Context):
    """A call of the controller, as the call sees it."""

    def __init__(self, agent: Agent, number: int, name: str, args: Dict[str, Any], body: bytes) -> None:
        self.agent, self.number, self.name, self.args, self.body = agent, number, name, args, body
        self.waits_for: Set[int] = set()
        self.loading = True  # its code
        self._cancel = threading.Event()

    def progress(self, data: Any, body: bytes = b"") -> None:
        self.agent.send({"id": self.number, "progress": data}, body)

    def cancelled(self) -> bool:
        return self._cancel.is_set()

    def cancel(self) -> None:
        self._cancel.set()

    def started(self, group: int) -> None:
        self.agent.groups.add(group)

    def ended(self, group: int) -> None:
        self.agent.groups.discard(group)


class Agent:
    """One controller, any number of calls at a time."""

    def __init__(self, source: BinaryIO, sink: int, lease: float) -> None:
        self.groups: Set[int] = set()
        self._source, self._sink, self._lease = source, sink, lease
        # What was sent first is like what comes after it: a dictionary for it, which the controller has as well.
        self._dictionary = "".join(text or "" for text in loader.sources.values()).encode()
        self._idle = threading.Condition()  # guards what follows; told of every change
        self._outbox: List[bytes] = []
        self._waiting_bytes = 0
        self._calls: Dict[int, Running] = {}  # running or waiting, by number
        self._leaving = False

    def serve(self) -> None:
        """Answer until the input ends, then leave."""
        threading.Thread(target=self._write, daemon=True).start()
        with contextlib.suppress(EOFError, OSError, ProtocolError):
            while True:
                # A controller that is there says so now and then; one that vanished without a word ends us by SIGALRM.
                signal.setitimer(signal.ITIMER_REAL, self._lease)
                received = read_frame(self._source)
                if received is None:
                    break
                self._take(*received)
        self.leave()

    def leave(self, *_: Any) -> None:
        """Clean up and end the process, once; also as the handler of a signal.

        A handler runs in the middle of whatever the main thread does. It does all of the work itself rather than raise
        an exception that the code it lands in would have to pass on: of two signals, one would be lost in cleaning up.
        """
        if not self._leaving:
            self._leaving = True
            self._clean_up()
            os._exit(0)  # threads of calls that would not end must not keep the process

    def send(self, header: Dict[str, Any], body: bytes = b"") -> None:
        """Have one frame written, in the order of sending; waits while the controller takes nothing."""
        self._post(frame(header, body))

    def _post(self, data: bytes) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._waiting_bytes < OUTBOX)
            self._outbox.append(data)
            self._waiting_bytes += len(data)
            self._idle.notify_all()

    def _write(self) -> None:
        """Write what is in the outbox, for ever.

        sshd leaves Nagle's algorithm on: the second of two small packets waits a round trip for the first. So the
        answers of calls that run at the same time are given a moment to come together.
        """
        while True:
            with self._idle:
                self._idle.wait_for(lambda: bool(self._outbox))
                self._idle.wait_for(self._nobody_loads, LOADING)
                self._idle.wait_for(self._nobody_runs, LINGER)
                data, self._outbox = b"".join(self._outbox), []
            # A controller that is gone is noticed by the reader, so that is no error here.
            with contextlib.suppress(OSError):
                durable.write_all(self._sink, data)
            with self._idle:
                self._waiting_bytes -= len(data)
                self._idle.notify_all()

    def _nobody_loads(self) -> bool:
        return all(call.waits_for or not call.loading for call in self._calls.values())

    def _nobody_runs(self) -> bool:
        return all(call.waits_for for call in self._calls.values())

    def fetch(self, module: str) -> bool:
        """Ask the controller for a module that it did not see coming."""
        self.send({"need": module})
        return loader.wait_for(module, 30.0)

    def _take(self, header: Dict[str, Any], body: bytes) -> None:
        if "call" in header:
            call = Running(self, header["id"], header["call"], header.get("args") or {}, body)
            with self._idle:
                call.waits_for = {n for n in header.get("after", ()) if n in self._calls}
                self._calls[call.number] = call
                ready = not call.waits_for
            if ready:
                self._start([call])
        elif "load" in header:
            rest = zlib.decompressobj(zdict=self._dictionary).decompress(body) if body else b""
            for module, size in header["load"]:
                loader.add(module, None if size is None else rest[:size].decode())
                rest = rest[size or 0 :]
        elif "cancel" in header:
            with self._idle:
                known = self._calls.get(header["cancel"])
            if known:
                known.cancel()
        elif "secrets" in header:
            from opsctl.wire import masking  # it came with them

            masking.learn(header["secrets"])
        elif "ping" in header and self._waiting_bytes < OUTBOX:  # never has the reader wait
            self.send({"pong": header["ping"]})

    def _start(self, ready: Iterable[Running]) -> None:
        for call in ready:
            threading.Thread(target=self._run, args=(call,), daemon=True).start()

    def _run(self, call: Running) -> None:
        try:
            if call.cancelled():
                raise AgentError("failed", "cancelled before it started")
            function = dispatch.find(call.name)
            with self._idle:
                call.loading = False
                self._idle.notify_all()
            reply = dispatch.as_reply(function(call, **call.args))
            answer = frame({"id": call.number, "result": reply.result}, reply.body)
        except BaseException as error:  # noqa: BLE001  whatever happens in a call, its caller is told
            answer = frame({"id": call.number, "error": dispatch.describe(error)})
        with self._idle:
            self._post(answer)
            del self._calls[call.number]
            ready: List[Running] = []
            for waiting in self._calls.values():
                if call.number in waiting.waits_for:
                    waiting.waits_for.discard(call.number)
                    if not waiting.waits_for:
                        ready.append(waiting)
            self._idle.notify_all()
        self._start(ready)

    def _clean_up(self) -> None:
        with self._idle:
            for number, call in list(self._calls.items()):
                call.cancel()
                if call.waits_for:
                    del self._calls[number]
        kill_groups(self.groups, KILL_AFTER)
        with self._idle:
            self._idle.wait_for(lambda: not self._calls, GRACE)
        kill_groups(self.groups, KILL_AFTER)


def kill_groups(groups: Set[int], seconds: float) -> None:
    """SIGTERM to process groups, and after `seconds` SIGKILL to those that are left."""
    deadline = time.monotonic() + seconds
    left = [group for group in list(groups) if _signal(group, signal.SIGTERM)]
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [group for group in left if group in groups and _signal(group, 0)]  # its number may be another's by now
    for group in left:
        _signal(group, signal.SIGKILL)


def _signal(group: int, sig: int) -> bool:
    try:
        os.killpg(group, sig)
    except OSError:
        return False
    return True


def _have_main_thread_woken() -> None:
    """See that the main thread, which alone runs Python's handlers, is not left waiting for input at a signal.

    The kernel may deliver a signal to any thread, and does so where several come at a time.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)

    def wake() -> None:
        os.read(reader, 1)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)  # once is enough: all of them end us

    threading.Thread(target=wake, daemon=True).start()


def main(source: BinaryIO, config: Dict[str, Any]) -> None:
    """Serve on `source` and standard output until the input ends.

    `config`: state (a directory, or null) and lease (seconds without a word from the controller).
    """
    if config.get("state"):
        os.environ["OPSCTL_STATE_DIR"] = config["state"]
    # What `systemctl --user` needs to find the user's systemd, where no login set it: behind sudo, say.
    os.environ.setdefault("XDG_RUNTIME_DIR", "/run/user/%d" % os.getuid())
    # Frames have descriptors of their own, so that neither a child nor a stray print can come between.
    sink = os.dup(1)
    os.dup2(2, 1)
    # sshd writes a packet at a time, and has to wait where we take them more slowly than they come.
    with contextlib.suppress(OSError):  # no pipe, or the system has a limit for all of a user
        fcntl.fcntl(source.fileno(), getattr(fcntl, "F_SETPIPE_SZ", 1031), PIPE)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    agent = Agent(source, sink, config["lease"])
    loader.fetch = agent.fetch
    for sig in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(sig, agent.leave)
    _have_main_thread_woken()
    agent.serve()
