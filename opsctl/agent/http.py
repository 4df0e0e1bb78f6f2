"""HTTP requests made on the host, with the standard library."""

from __future__ import annotations

import http.client
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import IO, Any, Dict, Optional, Set, Tuple

from opsctl.agent.proc import unseal
from opsctl.agent.protocol import AgentError, Context, Reply

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def request(
    call: Context,
    url: str,
    method: str = "GET",
    headers: Optional[Dict[str, str]] = None,
    timeout: float = 30.0,
    most: int = 1 << 20,
    sealed: int = 0,
) -> Reply:
    """Make a request; any status is an answer. The reply's body is that of the answer, up to `most` bytes.

    The first `sealed` bytes of the body are JSON {"headers": {...}} of secret ones, the rest is the request's content.
    """
    secret, content = unseal(call.body, sealed)
    if _origin(url)[0] not in ("http", "https"):
        raise AgentError("invalid", "not an http address: %s" % url)
    asked = urllib.request.Request(url, data=content or None, method=method)
    for name, value in dict(headers or {}, **secret.get("headers", {})).items():
        asked.add_header(name, value)
    began = time.monotonic()
    try:
        answer = _opener(url, set(secret.get("headers", {}))).open(asked, timeout=timeout)
    except urllib.error.HTTPError as error:
        answer = error
    except urllib.error.URLError as error:
        raise _failed(url, error.reason, timeout) from None
    except OSError as error:
        raise _failed(url, error, timeout) from None
    except http.client.InvalidURL as error:
        raise AgentError("invalid", "not an http address: %s: %s" % (url, error)) from None
    except http.client.HTTPException as error:
        raise _no_answer(url, error) from None
    try:
        with answer:
            body = answer.read(most + 1)
    except OSError as error:
        raise _failed(url, error, timeout) from None
    except (ValueError, http.client.HTTPException) as error:  # a chunk or a header that is none
        raise _no_answer(url, error) from None
    result = {
        "status": answer.status,
        "headers": {key.lower(): value for key, value in answer.headers.items()},
        "seconds": round(time.monotonic() - began, 3),
        "truncated": len(body) > most,
    }
    return Reply(result, body[:most])


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and takes secret headers no further than the server they are for."""

    def __init__(self, secret: Set[str]) -> None:
        self._secret = {name.capitalize() for name in secret}  # as Request files them

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Optional[urllib.request.Request]:
        onward = super().redirect_request(req, fp, code, msg, headers, newurl)
        if onward is not None and _origin(newurl) != _origin(req.full_url):
            for name in self._secret:
                onward.remove_header(name)
        return onward


def _opener(url: str, secret: Set[str]) -> urllib.request.OpenerDirector:
    """Proxies of the environment are for other hosts; the loopback is never asked for through one."""
    near = urllib.parse.urlsplit(url).hostname in LOOPBACK
    proxies = urllib.request.ProxyHandler({}) if near else urllib.request.ProxyHandler()
    return urllib.request.build_opener(proxies, _Redirects(secret))


def _origin(url: str) -> Tuple[str, Optional[str], Optional[int]]:
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme, parts.hostname, parts.port
    except ValueError as error:
        raise AgentError("invalid", "not an http address: %s: %s" % (url, error)) from None


def _no_answer(url: str, error: Exception) -> AgentError:
    return AgentError("failed", "%s: not a HTTP answer: %s" % (url, error or type(error).__name__))


def _failed(url: str, reason: Any, timeout: float) -> AgentError:
    if isinstance(reason, (socket.timeout, TimeoutError)):
        return AgentError("timeout", "%s: no answer in %g s" % (url, timeout))
    said = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return AgentError("failed", "%s: %s" % (url, said))


CALLS = {"request": request}
