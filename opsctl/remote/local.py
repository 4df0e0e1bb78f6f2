"""`connection: local`: the same agent by pipe, without SSH."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import socket
import subprocess
import time
from typing import IO

from opsctl.remote.stream import Tail, read_range

_PIPE = 1 << 20  # bytes: the largest a user may ask for by default


class LocalStream:
    """A command on this machine, as a Stream.

    Args:
        much: it is an `ssh` by which much is to be sent: its standard input is a socket.
    """

    def __init__(self, command: str, *, much: bool = False) -> None:
        theirs, ours = _socket() if much else _pipe()
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", command],
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for the controller: it ends the agent by ending its input
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        assert self._process.stdout and self._process.stderr
        self._in, self._out, self._err = os.fdopen(ours, "wb", buffering=0), self._process.stdout, self._process.stderr
        for pipe in (self._in, self._out, self._err):
            os.set_blocking(pipe.fileno(), False)
        self._much, self._tail = much, Tail()

    def send(self, data: bytes, timeout: float) -> None:
        view = memoryview(data)
        while view:
            self._wait(None, self._in, time.monotonic() + timeout)
            with contextlib.suppress(BlockingIOError):
                view = view[os.write(self._in.fileno(), view[:_PIPE]) :]

    def send_file(self, file: int, start: int, count: int, timeout: float) -> None:
        end = start + count
        while start < end:
            self._wait(None, self._in, time.monotonic() + timeout)
            sent = 0
            try:
                sent = os.sendfile(self._in.fileno(), file, start, end - start)  # not a byte of it is copied here
            except BlockingIOError:
                continue
            except OSError:
                read_range(file, start, 1)  # whose error it was
                raise
            if not sent:
                read_range(file, start, 1)
            start += sent

    def receive(self, timeout: float) -> bytes:
        deadline = time.monotonic() + timeout
        while True:
            self._wait(self._out, None, deadline)
            with contextlib.suppress(BlockingIOError):
                return os.read(self._out.fileno(), 1 << 18)

    def heard(self) -> float:
        """Of `ssh` there is nothing to know: it ends by itself where the host is silent (ServerAliveInterval)."""
        return time.monotonic() if self._much else 0.0

    def can_send(self) -> bool:
        poll = select.poll()
        poll.register(self._in, select.POLLOUT)
        return bool(poll.poll(0))

    def stderr(self) -> str:
        with contextlib.suppress(BlockingIOError, ValueError):
            while data := os.read(self._err.fileno(), 1 << 16):
                self._tail.add(data)
        return self._tail.text()

    def status(self, timeout: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()

    def abandon(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self.end_input()
        with contextlib.suppress(OSError):
            self._out.close()
        if self.status(10.0) is None:
            self._process.kill()
            self._process.wait(5.0)
        self.stderr()
        with contextlib.suppress(OSError):
            self._err.close()

    def _wait(self, reading: IO[bytes] | None, writing: IO[bytes] | None, deadline: float) -> None:
        """Wait until a pipe is ready; takes in standard error meanwhile, so that it cannot fill up and block."""
        poll = select.poll()  # not select(): descriptors may be over 1023 with many hosts
        for pipe, events in ((reading, select.POLLIN), (writing, select.POLLOUT), (self._err, select.POLLIN)):
            if pipe:
                poll.register(pipe, events)
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                if fd != self._err.fileno():
                    return
                data = os.read(fd, 1 << 16)
                self._tail.add(data)
                if not data:
                    poll.unregister(fd)
        raise TimeoutError


def _pipe() -> tuple[int, int]:
    """Its reading end and ours."""
    theirs, ours = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # the system may have a limit for all pipes of a user
            fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, _PIPE)
    return theirs, ours


def _socket() -> tuple[int, int]:
    """Its end and ours.

    A pipe takes more as soon as `ssh` has read its 16 KiB, and so often we would be woken; a socket waits until three
    quarters of it are free.
    """
    theirs, ours = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIPE)
    return theirs.detach(), ours.detach()
