"""Host keys: known hosts files and pins. File format: sshd(8), SSH_KNOWN_HOSTS FILE FORMAT."""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path


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
    """All lines of the files that exist."""
    found: list[Line] = []
    for file in files:
        path = Path(file)
        if path.is_file():
            found += parse(path.read_text(encoding="utf-8", errors="replace"))
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


def trust(file: str, name: str, key: HostKey, *, replace: bool = False) -> None:
    """Add a key to a known hosts file; with `replace` the plain lines of that host alone go first.

    Written under a lock and put in place whole, so that parallel runs do not lose each other's lines.
    """
    path = Path(file).expanduser()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(path.parent / f".{path.name}.opsctl-lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        old = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
        kept = [raw for raw in old.splitlines() if not (replace and _speaks_of(raw, name))]
        new = "\n".join([*kept, f"{name} {key}"]) + "\n"
        temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
        temporary.write_text(new, encoding="utf-8", errors="surrogateescape")
        temporary.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o600)
        temporary.replace(path.resolve())


def _speaks_of(raw: str, name: str) -> bool:
    return any(not line.marker and line.covers(name) for line in parse(raw))


def _pinned(key: HostKey, pin: str) -> bool:
    if pin.startswith("SHA256:"):
        return pin.rstrip("=") == key.fingerprint
    fields = pin.split()
    return len(fields) >= 2 and str(key) == " ".join(fields[:2])


def _hashed(entry: str, name: str) -> bool:
    try:
        _, _, salt, digest = entry.split("|")
        found = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(found, base64.b64decode(digest))
    except (ValueError, binascii.Error):
        return False


def _matches(pattern: str, name: str) -> bool:
    # Only * and ? are special there; brackets are part of `[host]:port`.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))
