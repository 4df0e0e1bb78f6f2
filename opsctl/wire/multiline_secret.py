"""A secret that stands on the line after its name: JSON and YAML in many lines, a shell's continued command.

    "api_key":              HF_TOKEN: >-            --api-key \\
        "abc123..."           abc123...                 abc123...
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

from opsctl.wire.secret_names import KEY, harmless

_ENDS = (b":", b"\\", b"|", b">", b"-", b"+", b"[")  # the last sign of a line that announces a value
# Nothing but the name, behind what a log may put before it: prose that ends with "token:" announces nothing.
_ANNOUNCED = re.compile(
    rb"(?i)(?P<before>^|.{0,200}?(?:[\]|:>,{] ?|\s(?=--)|\bexport ))(?P<indent>[ \t]*)[\"'\\,{-]*"
    + KEY
    + rb"\\*[\"']?\s{0,4}(?::\s{0,4}(?:[|>][+-]?|(?P<list>\[))?|(?:=|:=|=>|:)?\s{0,4}\\)\s*$"
)
_VALUE = re.compile(
    rb"\s*(?:- )?b?(?P<q>\\*[\"']?)(?P<value>(?<=[\"'])[^\"'\\]{4,}|[^\s\"'\\,;{}\[\]()]{4,})(?P=q)\s*[,;\\]?\s*$"
)
_DIGIT = re.compile(rb"\d")


class Hanging:
    """Remembers from line to line whether a value is still to come."""

    def __init__(self) -> None:
        self._key: Optional[bytes] = None
        self._before = b""
        self._list = False

    def forget(self) -> None:
        self._key = None

    def value_in(self, line: bytes) -> Optional[Tuple[int, int]]:
        """Where a secret stands that the lines before have announced; takes note of what this line announces."""
        bare = line.strip()
        if not bare:
            return None
        key = self._key
        found = self._value(line) if key is not None else None
        if not (self._list and found):
            self._key = None
            if bare.endswith(_ENDS):
                self._note(line)
        if key is None or found is None or found[0].startswith(b"[REDACTED/") or harmless(key, found[0]):
            return None
        return found[1]

    def _value(self, line: bytes) -> Optional[Tuple[bytes, Tuple[int, int]]]:
        size = len(self._before)
        if _DIGIT.sub(b"0", line[:size]) != _DIGIT.sub(b"0", self._before):  # the clock may have gone on
            size = 0
        found = _VALUE.match(line, size)
        return (found.group("value"), found.span("value")) if found else None

    def _note(self, line: bytes) -> None:
        found = _ANNOUNCED.match(line)
        if found:
            self._key, self._before = found.group("key"), found.group("before")
            self._list = found.group("list") is not None
