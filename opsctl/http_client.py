"""The controller's HTTP client: over the network, or through a connection to a host. It takes no more than it should.

A server may be broken, or hostile. Bytes and time are counted where they arrive, below everything that reads them: so
headers that drip, chunks without end and `100 Continue` for ever are as limited as a long answer. `wire/limits.py`
says how much is taken. Compressed answers are refused: nobody asks for them.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from opsctl.errors import RemoteError
from opsctl.wire import limits
from opsctl.wire.protocol import AgentError

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


def client(base_url: str, backend: httpcore.NetworkBackend | None = None, connections: int = 100) -> httpx.Client:
    """A client of the server at `base_url`; it follows no redirects and asks no proxy.

    A request may say how much of its answer is taken: extensions={"most": bytes, "seconds": seconds}.
    Reading raises RemoteError, kind `too-much` or `timeout`, beyond that, and `encoded` for a compressed answer.

    Args:
        backend: makes the connections; without one they go over the network.
        connections: at a time.
    """
    transport = _Transport(backend or httpcore.SyncBackend(), connections, tls=base_url.startswith("https:"))
    headers = {"accept-encoding": "identity"}
    return httpx.Client(base_url=base_url, headers=headers, timeout=TIMEOUT, trust_env=False, transport=transport)


class _Transport(httpx.BaseTransport):
    def __init__(self, backend: httpcore.NetworkBackend, connections: int, *, tls: bool) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=httpx.create_ssl_context(trust_env=False) if tls else None,
            network_backend=_Metered(backend),
            max_connections=connections,
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        where = f"{request.url.scheme}://{request.url.netloc.decode('ascii', 'replace')}"
        timeouts = dict(request.extensions.get("timeout", {}))
        timeouts["read"] = allowance = _Allowance(request, timeouts.get("read"))
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
            extensions={**request.extensions, "timeout": timeouts},
        )
        with _in_words(where):
            answer = self._pool.handle_request(asked)
        allowance.meter.content()
        assert isinstance(answer.stream, Iterable)
        body = _Body(answer.stream, allowance.meter, where)
        found = httpx.Response(
            status_code=answer.status, headers=answer.headers, stream=body, extensions=answer.extensions
        )
        encoding = found.headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("", "identity"):
            body.close()
            raise RemoteError(
                f"{request.url.path}: compressed ({encoding[:40]}), which nobody asked for: not read",
                kind="encoded",
                where=where,
            )
        return found

    def close(self) -> None:
        self._pool.close()


class _Allowance(float):
    """What may still come for one request: handed down as its read timeout, which httpcore gives to every read."""

    def __new__(cls, request: httpx.Request, gap: float | None) -> _Allowance:
        one = super().__new__(cls, gap or 0.0)
        asked = request.extensions
        seconds, most = asked.get("seconds", limits.SECONDS), asked.get("most", limits.ANSWER)
        one.meter = limits.Meter(request.url.path, most, seconds, gap)
        return one

    meter: limits.Meter


class _Metered(httpcore.NetworkBackend):
    def __init__(self, inner: httpcore.NetworkBackend) -> None:
        self._inner = inner

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: typing.Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.connect_tcp(host, port, timeout, local_address, socket_options))


class _Stream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not isinstance(timeout, _Allowance):
            return self._inner.read(max_bytes, timeout)
        data = self._inner.read(max_bytes, timeout.meter.wait())
        timeout.meter.took(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Iterable[bytes], meter: limits.Meter, where: str) -> None:
        self._stream, self._meter, self._where = stream, meter, where

    def __iter__(self) -> Iterator[bytes]:
        with _in_words(self._where):
            for piece in self._stream:
                self._meter.content(len(piece))
                yield piece

    def close(self) -> None:
        if hasattr(self._stream, "close"):
            self._stream.close()


@contextmanager
def _in_words(where: str) -> Iterator[None]:
    """Raise RemoteError for what the limits refuse, and httpx's exceptions for those of the transport."""
    try:
        yield
    except AgentError as error:
        raise RemoteError(error.message, kind=error.kind, where=where) from error
    except tuple(_ERRORS) as error:
        raise next(ours for theirs, ours in _ERRORS.items() if isinstance(error, theirs))(str(error)) from error
