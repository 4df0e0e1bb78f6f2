"""Sockets as SSH over long links wants them. Knows nothing of SSH, so that connecting can start before it is loaded."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import Protocol

_IN_PROGRESS = {0, errno.EINPROGRESS, errno.EWOULDBLOCK}


@dataclass
class Dialling:
    """A connection being made: `finish` waits for it, trying the further addresses in turn."""

    addresses: list[tuple[int, tuple[str, int]]]
    current: socket.socket | None = None
    error: OSError | None = field(default=None)

    def finish(self, timeout: float) -> socket.socket:
        """The connected, blocking socket. Raises OSError, TimeoutError (each address gets its share of the time)."""
        deadline = time.monotonic() + timeout
        while self.current or self._next():
            share = (deadline - time.monotonic()) / (len(self.addresses) + 1)
            found = self._wait(max(share, 0.01))
            if found:
                return found
        raise self.error or TimeoutError("timed out")

    def _next(self) -> bool:
        while self.addresses:
            family, address = self.addresses.pop(0)
            sock = tuned(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            code = sock.connect_ex(address)
            if code in _IN_PROGRESS:
                self.current = sock
                return True
            sock.close()
            self.error = OSError(code, os.strerror(code))
        return False

    def _wait(self, seconds: float) -> socket.socket | None:
        assert self.current
        sock, self.current = self.current, None
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        if not poll.poll(seconds * 1000):
            self.error = TimeoutError("timed out")
        elif code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.error = OSError(code, os.strerror(code))
        else:
            sock.setblocking(True)
            return sock
        sock.close()
        return None


def dial(host: str, port: int) -> Dialling:
    """Start connecting. Raises socket.gaierror."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label of the name is longer than DNS allows
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from None
    addresses: list[tuple[int, tuple[str, int]]] = [
        (family, (str(sockaddr[0]), int(sockaddr[1]))) for family, _, _, _, sockaddr in found
    ]
    dialling = Dialling(addresses)
    dialling._next()
    return dialling


def tuned(sock: socket.socket) -> socket.socket:
    """No Nagle delay (it costs a round trip and 40 ms per exec), and an end to connections whose peer has vanished."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 15),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 45_000),
    ):
        if hasattr(socket, option):  # macOS has not all of them
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return sock


class Socket(Protocol):
    """What is asked of a connected socket, or of what acts as one."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def close(self) -> None: ...


class Watched:
    """A connected socket that says how it fares. One thread reads; one at a time writes.

    Attributes:
        heard: when anything last came, by the monotonic clock.
        ended: whether the other side has ended it, or it has broken.
    """

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self.heard, self.ended = time.monotonic(), False
        self._writing: float | None = None  # since when nothing could be written of what is to be
        self._broken_off = False

    @property
    def stuck(self) -> float:
        """Seconds for which nothing could be written of what is to be; 0.0 where nothing is."""
        since = self._writing
        return 0.0 if since is None else time.monotonic() - since

    def recv(self, size: int) -> bytes:
        self._demand_there()
        try:
            data = self._sock.recv(size)
        except TimeoutError:
            raise
        except BaseException:
            self.ended = True
            raise
        if data:
            self.heard = time.monotonic()
        else:
            self.ended = True
        return data

    def send(self, data: bytes) -> int:
        self._demand_there()
        self._writing = self._writing or time.monotonic()
        try:
            count = self._sock.send(data)
        except TimeoutError:  # it will be tried again
            raise
        except BaseException:
            self._writing = None
            raise
        self._writing = None
        return count

    def acknowledge(self) -> None:
        """Acknowledge at once what has been read, where the system would wait 40 ms for something to send along."""
        if isinstance(self._sock, socket.socket) and hasattr(socket, "TCP_QUICKACK"):
            with contextlib.suppress(OSError):  # a proxy's socket is none of TCP
                self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)

    def break_off(self) -> None:
        """Have whoever reads or writes be told that it has ended. Waits for nobody, and says nothing to the other side.

        A channel of another connection is not closed: that would have to be written there.
        """
        self._broken_off = True
        if isinstance(self._sock, socket.socket):
            self._sock.close()

    def settimeout(self, seconds: float | None) -> None:
        self._sock.settimeout(seconds)

    def close(self) -> None:
        self._sock.close()

    @property
    def _closed(self) -> bool:  # paramiko asks that of sockets
        return bool(getattr(self._sock, "_closed", False))

    def _demand_there(self) -> None:
        if self._broken_off:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))


def proxied(command: str) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """A socket whose other end is the standard input and output of a ProxyCommand."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        ["/bin/sh", "-c", f"exec {command}"],  # as OpenSSH does: it is the user's own configuration
        stdin=theirs.fileno(),
        stdout=theirs.fileno(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    return ours, process
