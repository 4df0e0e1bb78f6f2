"""Masks secrets in whatever this process writes or shows: those it was told, in every form, and what looks like one.

Whoever makes text out of what may hold a secret lets it pass here before it is cut, wrapped or written. What was told
stays in memory. On a host the agent is told by its controller, and a supervisor by its agent.
"""

from __future__ import annotations

import importlib
import json
import threading
from typing import Any, Callable, FrozenSet, Iterable, Set

MASK = "***"
_SHORTEST = 4  # characters of a text that could be one
_values: Set[str] = set()
_known: Any = None  # a secret_values.Known; None: there is nothing to look for, or it is still to be compiled
_guard = threading.Lock()


def learn(values: Iterable[str]) -> None:
    """Have these values masked from now on."""
    global _known
    with _guard:
        new = {value for value in values if len(value) >= _SHORTEST} - _values
        if new:
            _values.update(new)
            _known = None


def learnt() -> FrozenSet[str]:
    """The values that are masked."""
    with _guard:
        return frozenset(_values)


def known(text: str) -> str:
    """`text` with the values masked that were learnt."""
    global _known
    with _guard:
        if not _values:
            return text
        if _known is None:
            _known = _module("secret_values").Known(_values)
        finder = _known
    return str(finder.in_text(text, MASK))


def text(text: str) -> str:
    """`text` with those masked, and what has the shape or the name of a secret."""
    return str(_module("redact").Redactor(keep_prompts=True).text(known(text)))


def data(value: Any, mask: Callable[[str], str] = text) -> Any:
    """JSON data with every text in it masked. With `text`, also what stands under the name of a secret."""
    if isinstance(value, str):
        return mask(value) if len(value) >= _SHORTEST else value
    if isinstance(value, dict):
        return {data(k, mask): MASK if mask is text and _named(k, v) else data(v, mask) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [data(v, mask) for v in value]
    return value


def raw(body: bytes) -> bytes:
    """The same for bytes that may be text."""
    return text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape") if body else body


def json_bytes(value: Any) -> bytes:
    """JSON data, masked, as it is written."""
    return json.dumps(data(value), separators=(",", ":")).encode()


def _named(key: Any, value: Any) -> bool:
    if not (isinstance(key, str) and isinstance(value, str)) or value == MASK:
        return False
    return bool(_module("secret_names").holds_secret(key, value))


def _module(name: str) -> Any:
    """A module beside this one, imported when first used: what only looks at a host need not be sent any of it."""
    return importlib.import_module("opsctl.wire." + name)
