"""HTTP requests made on the host, with the standard library."""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import IO, TYPE_CHECKING, Any, Dict, Iterator, Optional, Set, Tuple

from opsctl.agent.process.commands import unseal
from opsctl.wire import limits
from opsctl.wire.protocol import AgentError, Context, Reply

if TYPE_CHECKING:
    from opsctl.wire.calls.core import Answered

MOST_SAID = 200  # characters of what is no answer
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def request(
    call: Context,
    url: str,
    method: str = "GET",
    headers: Optional[Dict[str, str]] = None,
    timeout: float = 30.0,
    most: int = 1 << 20,
    sealed: int = 0,
    follow: bool = True,
) -> Reply[Answered]:
    """Make a request; any status is an answer. The reply's body is that of the answer, up to `most` bytes.

    `timeout`: seconds for all of it, redirects (which `follow` allows) included. Raises AgentError: timeout, too-much,
    invalid, failed.
    The first `sealed` bytes of the body are JSON {"headers": {...}} of secret ones, the rest is the request's content.
    """
    secret, content = unseal(call.body, sealed)
    if _origin(url)[0] not in ("http", "https"):
        raise AgentError("invalid", "not an http address: %s" % url)
    asked = urllib.request.Request(url, data=content or None, method=method)
    for name, value in dict(headers or {}, **secret.get("headers", {})).items():
        asked.add_header(name, value)
    began = time.monotonic()
    meter = limits.Meter(url, most, timeout)
    opener = _opener(url, _Redirects(set(secret.get("headers", {})), follow), meter)
    with _in_words(url, timeout):
        try:
            answer = opener.open(asked, timeout=timeout)
        except urllib.error.HTTPError as error:
            answer = error  # which is an answer too
        with answer:
            body = answer.read(most + 1)
    missing = getattr(answer, "length", None)
    if missing and len(body) <= most:
        raise AgentError(
            "failed", "%s: the answer broke off: %d bytes came, and %d did not" % (url, len(body), missing)
        )
    result: Answered = {
        "status": answer.status,
        "headers": {key.lower(): value for key, value in answer.headers.items()},
        "seconds": round(time.monotonic() - began, 3),
        "truncated": len(body) > most,
    }
    return Reply(result, body[:most])


def handlers(meter: limits.Meter) -> Tuple[urllib.request.BaseHandler, ...]:
    """Handlers for urllib that have `meter` count all that comes, of every answer on the way to the last."""

    class Answer(http.client.HTTPResponse):
        def __init__(self, sock: socket.socket, *args: Any, **more: Any) -> None:
            super().__init__(sock, *args, **more)
            self.fp = io.BufferedReader(_Metered(self.fp.detach(), sock, meter))

        def begin(self) -> None:
            super().begin()
            meter.content()

    class Plain(http.client.HTTPConnection):
        response_class = Answer

    class Encrypted(http.client.HTTPSConnection):
        response_class = Answer

    class ForPlain(urllib.request.HTTPHandler):
        def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Plain, req)

    class ForEncrypted(urllib.request.HTTPSHandler):
        def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
            return self.do_open(Encrypted, req)

    return ForPlain(), ForEncrypted()


class _Metered(io.RawIOBase):
    """What comes from a socket, counted below everything that reads it."""

    def __init__(self, inner: Any, sock: socket.socket, meter: limits.Meter) -> None:
        super().__init__()
        self._inner, self._sock, self._meter = inner, sock, meter

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> Optional[int]:
        self._sock.settimeout(self._meter.wait())
        count: Optional[int] = self._inner.readinto(into)
        self._meter.took(count or 0)
        return count

    def close(self) -> None:
        self._inner.close()
        super().close()


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and takes secret headers no further than the server they are for."""

    def __init__(self, secret: Set[str], follow: bool) -> None:
        self._secret, self._follow = {name.capitalize() for name in secret}, follow  # as Request files them

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Optional[urllib.request.Request]:
        if not self._follow:
            return None  # it is the answer
        if _origin(newurl)[0] not in ("http", "https"):
            raise AgentError("failed", "%s: it sends us to what is no http address: %r" % (req.full_url, newurl[:200]))
        onward = super().redirect_request(req, fp, code, msg, headers, newurl)
        if onward is not None and _origin(newurl) != _origin(req.full_url):
            for name in self._secret:
                onward.remove_header(name)
        return onward


def _opener(url: str, redirects: _Redirects, meter: limits.Meter) -> urllib.request.OpenerDirector:
    """Proxies of the environment are for other hosts; the loopback is never asked for through one."""
    near = urllib.parse.urlsplit(url).hostname in LOOPBACK
    proxies = urllib.request.ProxyHandler({}) if near else urllib.request.ProxyHandler()
    return urllib.request.build_opener(proxies, redirects, *handlers(meter))


@contextlib.contextmanager
def _in_words(url: str, timeout: float) -> Iterator[None]:
    """What can go wrong with a request, as AgentError."""
    try:
        yield
    except urllib.error.URLError as error:
        raise _failed(url, error.reason, timeout) from None
    except OSError as error:
        raise _failed(url, error, timeout) from None
    except http.client.InvalidURL as error:
        raise AgentError("invalid", "not an http address: %s: %s" % (url, error)) from None
    except (ValueError, http.client.HTTPException) as error:  # a chunk or a header that is none
        said = str(error) or type(error).__name__
        raise AgentError("failed", "%s: not a HTTP answer: %s" % (url, said[:MOST_SAID])) from None


def _origin(url: str) -> Tuple[str, Optional[str], Optional[int]]:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise AgentError("invalid", "not an http address: %s: %s" % (url, error)) from None


def _failed(url: str, reason: Any, timeout: float) -> AgentError:
    if isinstance(reason, (socket.timeout, TimeoutError)):
        return AgentError("timeout", "%s: no answer in %g s" % (url, timeout))
    said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return AgentError("failed", "%s: %s" % (url, said))


CALLS = {"request": request}
