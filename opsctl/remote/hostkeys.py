"""Host keys: known hosts files and pins. File format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import fnmatch
import hashlib
import hmac
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replaced
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from opsctl.errors import Place, UsageError


@dataclass(frozen=True, slots=True)
class HostKey:
    """A server's public key: its type (`ssh-ed25519`) and its bytes."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """As OpenSSH prints it: SHA256:..."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    def __str__(self) -> str:
        return f"{self.type} {base64.b64encode(self.blob).decode()}"


class Verdict(Enum):
    KNOWN = "known"
    UNKNOWN = "unknown"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a known hosts file."""

    marker: str  # "", "@revoked", "@cert-authority"
    names: str
    key: HostKey

    def covers(self, name: str) -> bool:
        """Whether the line speaks of `name` (`host` or `[host]:port`)."""
        if self.names.startswith("|1|"):
            return _hashed(self.names, name)
        wanted = name.lower()
        patterns = self.names.lower().split(",")
        if any(p.startswith("!") and _matches(p[1:], wanted) for p in patterns):
            return False
        return any(_matches(p, wanted) for p in patterns if not p.startswith("!"))


def parse(text: str) -> Iterator[Line]:
    """The usable lines of a known hosts file; comments and what is not understood are left out, as OpenSSH does."""
    for raw in text.splitlines():
        fields = raw.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#"):
            continue
        try:
            blob = base64.b64decode(fields[2], validate=True)
        except (binascii.Error, ValueError):
            continue
        yield Line(marker, fields[0], HostKey(fields[1], blob))


def lines(files: Iterable[str]) -> list[Line]:
    """All lines of the files that exist. Raises UsageError for one that cannot be read."""
    found: list[Line] = []
    for file in files:
        path = Path(file)
        try:
            if path.is_file():
                found += parse(path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise UsageError(f"known hosts file {file} cannot be read: {error.strerror}") from error
    return found


def judge(key: HostKey, name: str, known: Iterable[Line], pin: str | None = None) -> Verdict:
    """What to think of the key that the server `name` shows. A pin alone decides, but for revoked keys."""
    mine = [line for line in known if line.covers(name)]
    if any(line.marker == "@revoked" and line.key == key for line in known):
        return Verdict.REVOKED
    if pin:
        return Verdict.KNOWN if _pinned(key, pin) else Verdict.CHANGED
    plain = [line.key for line in mine if not line.marker]
    if key in plain:
        return Verdict.KNOWN
    return Verdict.CHANGED if plain else Verdict.UNKNOWN


def preferred(name: str, known: Iterable[Line], pin: str | None) -> list[str]:
    """Key types to ask the server for first: those that are known of it."""
    if pin and not pin.startswith("SHA256:"):
        return [pin.split()[0]]
    return list(dict.fromkeys(line.key.type for line in known if not line.marker and line.covers(name)))


def remember(file: str | None, name: str, key: HostKey) -> None:
    """Add a key to a known hosts file, unless it is there, and leave all else of the file as it is.

    It is written in place and under a lock: links, owner and mode stay, and parallel runs lose no line of each other.
    Raises UsageError where the file keeps nothing (None, /dev/null, no plain file) or cannot be written.
    """
    with _locked(file, name) as stream:
        old = stream.read()
        if not any(line.key == key and not line.marker and line.covers(name) for line in _parsed(old)):
            gap = b"\n" if old and not old.endswith(b"\n") else b""
            stream.write(gap + f"{name} {key}\n".encode())


def replace(files: Sequence[str], name: str, key: HostKey) -> list[str]:
    """Take the other keys of a host out of known hosts files and add this one to the first. Gives the changed files.

    Other names of a line stay, as do lines of authorities and revoked keys. As in `ssh-keygen -R`, FILE.old keeps what
    a file was. Raises UsageError, before any change, where one cannot be written or a line speaks of other hosts too.
    """
    with contextlib.ExitStack() as stack:
        there: list[str | None] = [*files[:1], *(file for file in files[1:] if Path(file).is_file())]
        changes = []
        for file in there or [None]:
            stream = stack.enter_context(_locked(file, name))
            old = stream.read()
            changes.append((str(file), stream, old, _without(old, str(file), name, key)))
        changed = [(file, stream, old, new) for file, stream, old, new in changes if new != old]
        for file, stream, old, new in changed:
            with open(f"{file}.old", "wb", opener=_private) as backup:
                backup.write(old)
            stream.seek(0)
            stream.truncate()
            stream.write(new)
    remember(files[0], name, key)
    return [file for file, *_ in changed]


@contextlib.contextmanager
def _locked(file: str | None, name: str) -> Iterator[BinaryIO]:
    """A known hosts file under a lock, at its beginning; what is written to it goes to its end. Raises UsageError."""
    hint = (
        f"name a file that can be written (`known_hosts` of the host, or UserKnownHostsFile), or pin {name}: `host_key`"
    )
    if file is None:
        raise UsageError(f"the key of {name} is kept nowhere: UserKnownHostsFile is none", hint=hint)
    path = Path(file)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        while True:
            with open(path, "a+b", opener=_nonblocking) as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    raise UsageError(f"the key of {name} is not kept: {file} is no file", hint=hint)
                fcntl.flock(stream, fcntl.LOCK_EX)
                if not os.path.samestat(os.fstat(stream.fileno()), os.stat(path)):
                    continue  # ssh-keygen has put another one in its place meanwhile
                stream.seek(0)
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
                return
    except OSError as error:
        raise UsageError(f"the key of {name} is not kept in {file}: {error.strerror or error}", hint=hint) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o600)


def _parsed(data: bytes) -> Iterator[Line]:
    return parse(data.decode("utf-8", "replace"))


def _without(old: bytes, file: str, name: str, key: HostKey) -> bytes:
    """A known hosts file without what it says of a host, but for `key`."""
    kept = []
    for number, raw in enumerate(old.splitlines(keepends=True), 1):
        line = next(_parsed(raw), None)
        if line is None or line.marker or line.key == key or not line.covers(name):
            kept.append(raw)
            continue
        others = [pattern for pattern in line.names.split(",") if pattern.lower() != name.lower()]
        if line.names.startswith("|1|") or not others:
            continue
        names = ",".join(others)
        if replaced(line, names=names).covers(name):
            raise UsageError(
                f"{line.names} speaks of other hosts than {name} too, and is left",
                where=Place(file, number),
                hint="take the line out, or exclude the host in it (!NAME)",
            )
        kept.append(raw.replace(line.names.encode(), names.encode(), 1))
    return b"".join(kept)


def _pinned(key: HostKey, pin: str) -> bool:
    if pin.startswith("SHA256:"):
        return pin.rstrip("=") == key.fingerprint
    fields = pin.split()
    return len(fields) >= 2 and str(key) == " ".join(fields[:2])


def _hashed(entry: str, name: str) -> bool:
    try:
        _, _, salt, digest = entry.split("|")
        found = hmac.new(base64.b64decode(salt), name.lower().encode(), hashlib.sha1).digest()
        return hmac.compare_digest(found, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False


def _matches(pattern: str, name: str) -> bool:
    # Only * and ? are special there; brackets are part of `[host]:port`.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
