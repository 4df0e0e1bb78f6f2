"""Asking web servers for files. A token is sent to nobody but the server that was named."""

from __future__ import annotations

import http.client
import re
import urllib.error
import urllib.parse
import urllib.request
from typing import Any, Dict, NamedTuple, Optional, Tuple

from opsctl.agent.core.http_request import handlers
from opsctl.wire import limits
from opsctl.wire.protocol import AgentError

TIMEOUT = 60.0  # seconds without a byte
_MOST_SAID = 200  # characters of what a server says is wrong
_SIZE = re.compile(r"[0-9]{1,18}\Z")
SHA256, _GIT = re.compile(r"[0-9a-f]{64}\Z"), re.compile(r"[0-9a-f]{40}\Z")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Remote(NamedTuple):
    """One file to get. `digest`: SHA-256 (64 hex digits) or that of a git blob (40), "" where the server tells none."""

    name: str
    url: str
    size: Optional[int]
    digest: str
    tag: str  # changes with the content, "" where the server tells none


class Missing(AgentError):
    """The server has no such file."""


class Web:
    """Asks with a token, or without.

    Args:
        home: an address of the server that the token is for.

    Raises AgentError from everything: invalid, not-found (Missing), permission, failed.
    """

    def __init__(self, token: Optional[str], home: str) -> None:
        _demand_web(home)
        parts = urllib.parse.urlsplit(home)
        if token and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise AgentError("invalid", "the token would travel in the clear to %s: use https" % parts.hostname)
        self._token, self._home = token, _server(home)

    def open(
        self,
        url: str,
        method: str = "GET",
        headers: Optional[Dict[str, str]] = None,
        most: int = 0,
        seconds: float = limits.SECONDS,
    ) -> Any:
        """The answer, to be read and closed.

        Args:
            most: bytes of its content that are taken, in at most `seconds`; beyond it reading raises AgentError.
        """
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "opsctl", **(headers or {})})
        if self._token and _server(url) == self._home:
            request.add_unredirected_header("Authorization", "Bearer " + self._token)
        try:
            meter = limits.Meter(shown(url), most, seconds, TIMEOUT)
            opener = urllib.request.build_opener(_SameServer(), *handlers(meter))
            return opener.open(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            error.close()  # it is an answer too
            if error.code in (301, 302, 303, 307, 308) and method == "HEAD":
                raise _Elsewhere(error.headers) from None
            raise _refused(error, url) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise _cut(url, getattr(error, "reason", error)) from None

    def text(self, url: str) -> bytes:
        """All of a short answer."""
        with self.open(url, most=limits.LISTING) as answer:
            try:
                data = bytes(answer.read(limits.LISTING + 1))
            except (OSError, ValueError, http.client.HTTPException) as error:
                raise _cut(url, error) from None
        if len(data) > limits.LISTING:
            raise limits.too_much(shown(url), limits.LISTING)
        return data

    def head(self, name: str, url: str) -> Remote:
        """What the server says of a file. The hub's first answer says it; the place it sends us to knows less."""
        at = url
        for _ in range(limits.REDIRECTS):
            try:
                with self.open(at, "HEAD", headers={"Accept-Encoding": "identity"}) as answer:
                    told = answer.headers
                    break
            except _Elsewhere as error:
                told = error.headers
                if told.get("X-Linked-Etag"):
                    break
                at = _joined(at, str(told.get("Location")))
        else:
            raise AgentError("failed", "%s: it sends us on and on" % shown(url))
        linked = told.get("X-Linked-Etag") or ""
        size = told.get("X-Linked-Size") or told.get("Content-Length")
        tag = linked or told.get("ETag") or ""
        return Remote(name, url, int(size) if size and _SIZE.match(size) else None, digest_of(linked), tag)


def digest_of(tag: str) -> str:
    """The digest that an ETag is, as in Remote; "" if it is none."""
    bare = tag.strip('"')
    return bare if SHA256.match(bare) or _GIT.match(bare) else ""


def shown(url: str) -> str:
    """An address without what may be secret in it: user, password, query."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


class _SameServer(urllib.request.HTTPRedirectHandler):
    """The token goes on to an address of the same server only, as a download may be sent elsewhere."""

    max_redirections = limits.REDIRECTS

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if req.get_method() == "HEAD":
            return None  # the answer itself is wanted
        _demand_web(newurl)
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        if new is not None and token and _server(newurl) == _server(req.full_url):
            new.add_unredirected_header("Authorization", token)
        return new


class _Elsewhere(Exception):
    """The answer to HEAD is a redirection; its headers."""

    def __init__(self, headers: Any) -> None:
        super().__init__("elsewhere")
        self.headers = headers


def _refused(error: urllib.error.HTTPError, url: str) -> AgentError:
    if error.code in (401, 403):
        return AgentError("permission", "%s: %d, access is refused" % (shown(url), error.code), token=True)
    if error.code == 404:
        return Missing("not-found", "%s: 404, there is no such thing" % shown(url))
    return AgentError("failed", "%s: %d %s" % (shown(url), error.code, str(error.reason)[:_MOST_SAID]))


def _cut(url: str, error: Any) -> AgentError:
    said = str(error) or type(error).__name__
    return AgentError("failed", "%s: %s" % (shown(url), said[:_MOST_SAID]))


def _joined(base: str, onward: str) -> str:
    """Where a redirection leads. Raises AgentError where that is no address of the web."""
    try:
        at = urllib.parse.urljoin(base, onward)
        urllib.parse.urlsplit(at)
    except ValueError:
        raise AgentError("invalid", "%s: it sends us to what is no address: %r" % (shown(base), onward[:200])) from None
    _demand_web(at)
    return at


def _demand_web(url: str) -> None:
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise AgentError("invalid", "not an http or https address: %r" % shown(url))


def _server(url: str) -> Tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc
