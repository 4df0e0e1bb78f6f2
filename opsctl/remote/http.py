"""HTTP to a port on the host's loopback through the connection: no local port, nothing listening anywhere."""

from __future__ import annotations

import math
import socket
import ssl
import time
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpcore

from opsctl import http_client

if TYPE_CHECKING:
    import httpx
    from paramiko import Channel

    from opsctl.remote.ssh import Link


TICK = 0.5  # seconds between two looks whether a wait is to end


def client(link: Link | None, port: int, name: str, check: Callable[[], None] | None = None) -> httpx.Client:
    """A client for http://127.0.0.1:`port` of the host behind `link`; without one, of this machine.

    check: called now and then while one waits, which it ends by raising.
    """
    backend: httpcore.NetworkBackend = _Tunnels(link, name) if link else httpcore.SyncBackend()
    return http_client.client(f"http://127.0.0.1:{port}", _Checked(backend, check) if check else backend)


class _Checked(httpcore.NetworkBackend):
    """Connections whose waits end when `check` raises."""

    def __init__(self, inner: httpcore.NetworkBackend, check: Callable[[], None]) -> None:
        self._inner, self._check = inner, check

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: typing.Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        self._check()
        return _CheckedStream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options), self._check)


class _CheckedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, check: Callable[[], None]) -> None:
        self._inner, self._check = inner, check

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        end = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._check()
            try:
                return self._inner.read(max_bytes, max(0.01, min(TICK, end - time.monotonic())))
            except httpcore.ReadTimeout:
                if time.monotonic() >= end:
                    raise

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._check()
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Tunnels(httpcore.NetworkBackend):
    def __init__(self, link: Link, name: str) -> None:
        self._link, self._name = link, name

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: typing.Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        from opsctl.errors import Unreachable
        from opsctl.remote.ssh import tunnel

        try:
            channel = tunnel(self._link.transport, host, port, timeout or 30.0, self._name)
            return _ChannelStream(channel, self._link, self._name)
        except Unreachable as error:
            _demand_there(self._link, self._name)
            kind = httpcore.ConnectTimeout if isinstance(error.__cause__, socket.timeout) else httpcore.ConnectError
            raise kind(error.message) from error


class _ChannelStream(httpcore.NetworkStream):
    """A channel to a port of the host. What ends it may be the server there, or the connection to the host: Lost."""

    def __init__(self, channel: Channel, link: Link, name: str) -> None:
        self._channel, self._link, self._name = channel, link, name

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._channel.settimeout(timeout)
        try:
            data = self._channel.recv(max_bytes)
        except TimeoutError as error:
            _demand_there(self._link, self._name)
            raise httpcore.ReadTimeout("no answer in time") from error
        except (OSError, EOFError) as error:
            _demand_there(self._link, self._name)
            raise httpcore.ReadError(str(error)) from error
        if not data:
            _demand_there(self._link, self._name)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._channel.settimeout(timeout)
        try:
            self._channel.sendall(buffer)
        except TimeoutError as error:
            _demand_there(self._link, self._name)
            raise httpcore.WriteTimeout("the host takes nothing more") from error
        except (OSError, EOFError) as error:
            _demand_there(self._link, self._name)
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._channel.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        raise httpcore.UnsupportedProtocol("only plain HTTP goes through the connection: it is encrypted already")

    def get_extra_info(self, info: str) -> Any:
        # httpcore asks before it uses an idle connection again: readable then means the server has closed it.
        return self._channel.closed or self._channel.eof_received if info == "is_readable" else None


def _demand_there(link: Link, name: str) -> None:
    """Raise Lost where the connection itself has ended, or the host has fallen silent: that is no server's doing."""
    from opsctl.errors import Lost
    from opsctl.remote.agent_client import LOST_AFTER

    silent = time.monotonic() - link.socket.heard  # an agent that is there answers our heartbeat
    ended = link.socket.ended or not link.transport.is_active()
    if ended or silent > LOST_AFTER:
        why = "it ended" if ended else f"no sign of life for {silent:.0f} s"
        raise Lost(
            f"lost the connection: {why}", where=name, hint="what was asked through it may still go on; try again"
        )
