"""Names and values that both ends work out alike."""

from __future__ import annotations

import hashlib
import json
from typing import Dict


def environment_digest(env: Dict[str, str]) -> str:
    """One value for an environment, to compare without showing it."""
    return hashlib.sha256(json.dumps(env, sort_keys=True).encode()).hexdigest()


def temporary_name(name: str, seed: str) -> str:
    """The name of something temporary that belongs to `name`, hidden beside it."""
    kept = _bytes(name)[:200].decode("utf-8", "surrogateescape")  # names are limited in bytes
    return ".%s.opsctl-%s" % (kept, hashlib.sha256(_bytes(seed)).hexdigest()[:12])


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
