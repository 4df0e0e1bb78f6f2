"""HTTP to a port on the host's loopback through the connection: no local port, nothing listening anywhere."""

from __future__ import annotations

import socket
import ssl
import typing
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import httpcore
import httpx

if TYPE_CHECKING:
    from paramiko import Channel

    from opsctl.remote.ssh import Link

TIMEOUT = httpx.Timeout(30.0, connect=10.0)

# httpx promises its own exceptions; this is the same correspondence that its own transport makes.
_ERRORS: dict[type[Exception], type[httpx.TransportError]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
}


def client(link: Link | None, port: int, name: str) -> httpx.Client:
    """A client for http://127.0.0.1:`port` of the host behind `link`; without one, of this machine."""
    base = f"http://127.0.0.1:{port}"
    if link is None:
        return httpx.Client(base_url=base, timeout=TIMEOUT, trust_env=False)
    return httpx.Client(base_url=base, timeout=TIMEOUT, trust_env=False, transport=TunnelTransport(link, name))


class TunnelTransport(httpx.BaseTransport):
    """httpx over direct-tcpip channels."""

    def __init__(self, link: Link, name: str) -> None:
        self._pool = httpcore.ConnectionPool(network_backend=_Tunnels(link, name), max_connections=16)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        asked = httpcore.Request(
            method=request.method,
            url=httpcore.URL(
                scheme=request.url.raw_scheme,
                host=request.url.raw_host,
                port=request.url.port,
                target=request.url.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            answer = self._pool.handle_request(asked)
        except Exception as error:
            raise _ours(error) from error
        assert isinstance(answer.stream, Iterable)
        return httpx.Response(
            status_code=answer.status,
            headers=answer.headers,
            stream=_Body(answer.stream),
            extensions=answer.extensions,
        )

    def close(self) -> None:
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Iterable[bytes]) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except Exception as error:
            raise _ours(error) from error

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


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
            return _ChannelStream(tunnel(self._link.transport, host, port, timeout or 30.0, self._name))
        except Unreachable as error:
            kind = httpcore.ConnectTimeout if isinstance(error.__cause__, socket.timeout) else httpcore.ConnectError
            raise kind(error.message) from error


class _ChannelStream(httpcore.NetworkStream):
    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        self._channel.settimeout(timeout)
        try:
            return self._channel.recv(max_bytes)
        except TimeoutError as error:
            raise httpcore.ReadTimeout("no answer in time") from error
        except (OSError, EOFError) as error:
            raise httpcore.ReadError(str(error)) from error

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._channel.settimeout(timeout)
        try:
            self._channel.sendall(buffer)
        except TimeoutError as error:
            raise httpcore.WriteTimeout("the host takes nothing more") from error
        except (OSError, EOFError) as error:
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


def _ours(error: Exception) -> Exception:
    for theirs, ours in _ERRORS.items():
        if isinstance(error, theirs):
            return ours(str(error))
    return error
