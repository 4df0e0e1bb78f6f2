"""Getting a checkpoint from the web: a folder below an address, or a repository of the Hugging Face hub.

Runs on the controller or on the host. What has arrived whole and verified is kept in a folder of the state directory
and not fetched again; a file that was cut goes on where it was, if it is still the same one. The token comes in the
body of the call, and is sent to nobody but the server that was named.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import http.client
import os
import re
import shutil
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from opsctl.agent.core import durable
from opsctl.agent.core.http_request import LOOPBACK, MOST_SAID, handlers
from opsctl.agent.files.states import fingerprint
from opsctl.wire import limits
from opsctl.wire.protocol import AgentError, Context

if TYPE_CHECKING:
    from opsctl.wire.calls.checkpoint import Fetched

PIECE = 1 << 20
RESERVE = 64 << 20  # bytes left free on the disk
_LONGEST = 200  # bytes of a file's name, so that there is room for what stands before that of a partial one
UNUSED = 14 * 86400  # seconds after which what nobody asked for again is removed: releases are copies, and need it not
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*\Z")
TIMEOUT = 60.0  # seconds without a byte
_SIZE = re.compile(r"[0-9]{1,18}\Z")
SHA256, _GIT = re.compile(r"[0-9a-f]{64}\Z"), re.compile(r"[0-9a-f]{40}\Z")


def folder(call: Context, source: str, endpoint: str, revision: str = "main") -> Fetched:
    """Get `source`: an http(s) address of a folder, or ORG/NAME of the hub at `endpoint`.

    Body: the token, or nothing. Progress: {text, fraction}.
    Raises AgentError: not-found, permission, no-space, failed.
    """
    web = Web(call.body.decode() or None, source if "://" in source else endpoint)
    if "://" in source:
        where, found = source.rstrip("/"), _below(web, source.rstrip("/"))
        told = None
    else:
        if not _REPOSITORY.match(source):
            raise AgentError("invalid", "%r is neither ORG/NAME nor an address" % source)
        told, found = _listed(web, source, endpoint.rstrip("/"), revision)
        where = "%s/%s@%s" % (endpoint.rstrip("/"), source, told)
    path = durable.folder("fetched", hashlib.sha256(where.encode()).hexdigest()[:32])
    with _alone(path):
        fetched = _all(call, web, path, found)
    size = sum(os.stat(os.path.join(path, file.name)).st_size for file in found)
    removed = _prune(path)
    return {
        "path": path,
        "revision": told,
        "files": len(found),
        "size": size,
        "fetched": fetched,
        "removed": removed,
    }


def _listed(web: Web, source: str, endpoint: str, revision: str) -> Tuple[str, List[Remote]]:
    """The commit that `revision` names, and the files at the top of the repository."""
    quoted = urllib.parse.quote(revision, safe="")
    told = _json(web.text("%s/api/models/%s/revision/%s?blobs=true" % (endpoint, source, quoted)), source)
    commit, siblings = str(told.get("sha") or revision), told.get("siblings")
    if not isinstance(siblings, list) or not all(isinstance(each, dict) for each in siblings):
        raise AgentError("failed", "%s: the hub's answer lists no files" % source)
    if len(siblings) > limits.FILES:
        raise _too_many(source, len(siblings))
    found = []
    for each in siblings:
        name = str(each.get("rfilename", ""))
        if "/" in name or name.startswith("."):
            continue
        url = "%s/%s/resolve/%s/%s" % (endpoint, source, urllib.parse.quote(commit, safe=""), urllib.parse.quote(name))
        large = each["lfs"] if isinstance(each.get("lfs"), dict) else {}
        digest = digest_of(str(large.get("sha256") or large.get("oid") or each.get("blobId") or ""))
        size = large.get("size", each.get("size"))
        whole = digest and isinstance(size, int) and 0 <= size < 1 << 60
        found.append(Remote(_plain(name), url, size, digest, digest) if whole else _hub_file(web, _plain(name), url))
    if not found:
        raise AgentError("not-found", "%s: there are no files at its top" % source)
    return commit, found


def _hub_file(web: Web, name: str, url: str) -> Remote:
    """The hub's tag of a small file is the digest of its git blob."""
    found = web.head(name, url)
    return found._replace(digest=found.digest or digest_of(found.tag))


def _below(web: Web, base: str) -> List[Remote]:
    """config.json, and the weights: an index and its shards, or one file."""
    found = [web.head("config.json", base + "/config.json")]
    for weights in ("model.safetensors", "pytorch_model.bin"):
        index = weights + ".index.json"
        with contextlib.suppress(Missing):
            listed = web.head(index, "%s/%s" % (base, index))
            shards = _json(web.text(listed.url), index).get("weight_map")
            if not isinstance(shards, dict):
                raise AgentError("failed", "%s: no weight_map in it" % index)
            names = sorted({_plain(str(name)) for name in shards.values()})
            if len(names) > limits.FILES:
                raise _too_many(index, len(names))
            return [*found, listed, *(web.head(n, "%s/%s" % (base, urllib.parse.quote(n))) for n in names)]
        with contextlib.suppress(Missing):
            return [*found, web.head(weights, "%s/%s" % (base, weights))]
    raise AgentError("not-found", "%s: neither model.safetensors nor pytorch_model.bin, nor an index" % shown(base))


def _all(call: Context, web: Web, path: str, found: List[Remote]) -> int:
    known = durable.read_json(os.path.join(path, ".known")) or {}
    todo = [file for file in found if not _is_there(path, file, known)]
    wanted = {".lock", ".known", *(file.name for file in found), *(_partial(file) for file in todo)}
    for entry in os.listdir(path):
        if entry not in wanted:
            os.unlink(os.path.join(path, entry))
    total, done = sum(file.size or 0 for file in todo), 0
    info = os.statvfs(path)
    if total + RESERVE > info.f_bavail * info.f_frsize:
        free = info.f_bavail * info.f_frsize
        raise AgentError("no-space", "%s: %d bytes are to come, %d are free" % (path, total, free), path=path)
    for file in todo:
        for came in _one(call, web, path, file):
            done += came
            call.progress({"text": "fetching " + file.name, "fraction": min(1.0, done / total) if total else 0.0})
        known[file.name] = [file.tag, fingerprint(os.path.join(path, file.name))]
        durable.write(os.path.join(path, ".known"), durable.json_bytes(known))
    return done


def _one(call: Context, web: Web, path: str, file: Remote) -> Iterator[int]:
    """Get one file, telling of each piece how long it is."""
    partial = os.path.join(path, _partial(file))
    fd = os.open(partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        have = os.fstat(fd).st_size if file.tag else 0
        headers = {"Accept-Encoding": "identity"}
        if have > 0 and (file.size is None or have < file.size):
            headers["Range"] = "bytes=%d-" % have
        if file.size is None or have != file.size or not have:
            most, seconds = _allowed(path, file)
            with web.open(file.url, headers=headers, most=most, seconds=seconds) as answer:
                have = have if answer.status == 206 else 0
                os.ftruncate(fd, have)
                os.lseek(fd, have, os.SEEK_SET)
                while True:
                    data = _more(answer, file)
                    if not data:
                        break
                    if call.cancelled():
                        raise AgentError("failed", "cancelled")
                    durable.write_all(fd, data)
                    have += len(data)
                    if have > most:
                        os.ftruncate(fd, 0)
                        raise AgentError("failed", "%s: more than %d bytes came: not read further" % (file.name, most))
                    yield len(data)
        size = os.fstat(fd).st_size
        if file.size is not None and size != file.size:
            if size > file.size:
                os.unlink(partial)
            raise AgentError("failed", "%s: %d bytes came, of %d" % (file.name, size, file.size), path=partial)
        if file.digest and _hashed(fd, size, file.digest) != file.digest:
            os.unlink(partial)
            raise AgentError("failed", "%s is not what the server said it was: its digest differs" % file.name)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(partial, os.path.join(path, file.name))


def _allowed(path: str, file: Remote) -> Tuple[int, float]:
    """Bytes of a file that are taken (as many as were told, else what the disk has room for), and seconds for them."""
    info = os.statvfs(path)
    most = max(0, info.f_bavail * info.f_frsize - RESERVE) if file.size is None else file.size
    return most, limits.GENERATION + most / limits.RATE


def _partial(file: Remote) -> str:
    """A file on its way; one of another content has another name."""
    return ".part-%s-%s" % (hashlib.sha256(file.tag.encode()).hexdigest()[:16], file.name)


def _more(answer: Any, file: Remote) -> bytes:
    try:
        return bytes(answer.read(PIECE))
    except (OSError, http.client.HTTPException) as error:
        raise AgentError("failed", "%s: the download was cut (%s); run it again" % (file.name, error)) from None


def _hashed(fd: int, size: int, like: str) -> str:
    whole = hashlib.sha256() if SHA256.match(like) else hashlib.sha1(b"blob %d\0" % size)
    at = 0
    while at < size:
        data = os.pread(fd, PIECE, at)
        whole.update(data)
        at += len(data)
    return whole.hexdigest()


def _is_there(path: str, file: Remote, known: Dict[str, Any]) -> bool:
    """A file that was verified when it came and is as it was then."""
    return bool(file.tag) and known.get(file.name) == [file.tag, fingerprint(os.path.join(path, file.name))]


def _prune(kept: str) -> List[str]:
    """Remove the folders beside `kept` that nobody has asked for in a long time, nor asks for now."""
    top, removed = os.path.dirname(kept), []
    for entry in sorted(os.listdir(top)):
        path = os.path.join(top, entry)
        with contextlib.suppress(OSError):  # somebody else removes it, or it is none of ours
            if path == kept or os.stat(os.path.join(path, ".lock")).st_mtime > time.time() - UNUSED:
                continue
            fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path)
                removed.append(path)
            finally:
                os.close(fd)
    return removed


@contextlib.contextmanager
def _alone(path: str) -> Iterator[None]:
    """One at a time: whoever comes second finds everything there."""
    fd = os.open(os.path.join(path, ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        os.utime(fd)  # when it was last asked for
        yield
    finally:
        os.close(fd)


def _json(data: bytes, what: str) -> Dict[str, Any]:
    try:
        value = limits.read_json(data)
    except ValueError as error:
        raise AgentError("failed", "%s: %s" % (what, error)) from None
    if not isinstance(value, dict):
        raise AgentError("failed", "%s: not a JSON object" % what)
    return value


def _too_many(what: str, count: int) -> AgentError:
    return AgentError("too-much", "%s: it names %d files, and %d are the most taken" % (what, count, limits.FILES))


def _plain(name: str) -> str:
    if not name.isprintable() or "/" in name or name.startswith(".") or not 0 < len(name.encode()) <= _LONGEST:
        raise AgentError("invalid", "not a plain file name: %r" % name[:_LONGEST])
    return name


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
        if token and parts.scheme == "http" and parts.hostname not in LOOPBACK:
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
    return AgentError("failed", "%s: %d %s" % (shown(url), error.code, str(error.reason)[:MOST_SAID]))


def _cut(url: str, error: Any) -> AgentError:
    said = str(error) or type(error).__name__
    return AgentError("failed", "%s: %s" % (shown(url), said[:MOST_SAID]))


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


CALLS = {"folder": folder}
