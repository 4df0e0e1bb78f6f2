"""Filters and tests of templates, beyond those that Jinja2 brings."""

from __future__ import annotations

import json
import posixpath
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from opsctl.engine.unknown import Unknown
from opsctl.errors import UsageError
from opsctl.patterns import compiled
from opsctl.text import one_line


def _ends(key: str) -> Callable[[Any], bool]:
    def test(result: Any) -> bool:
        if isinstance(result, Unknown):
            str(result)  # raises Undecided
        if not isinstance(result, Mapping) or key not in result:
            raise UsageError(f"`is {key}` asks for the registered result of a task, got {one_line(repr(result), 40)}")
        return bool(result[key])

    return test


FILTERS: dict[str, Callable[..., Any]] = {
    "basename": posixpath.basename,
    "dirname": posixpath.dirname,
    "quote": lambda value: shlex.quote(str(value)),
    "to_json": lambda value, indent=None: json.dumps(value, indent=indent, ensure_ascii=False),
    "from_json": json.loads,
    "regex_replace": lambda value, pattern, replacement: compiled(pattern).sub(replacement, value),
    "regex_search": lambda value, pattern: found.group(0) if (found := compiled(pattern).search(value)) else "",
}
PATTERNS = ("regex_replace", "regex_search", "match", "search")  # filters and tests that take one first
TESTS: dict[str, Callable[..., Any]] = {
    "match": lambda value, pattern: compiled(pattern).match(value) is not None,
    "search": lambda value, pattern: compiled(pattern).search(value) is not None,
    "changed": _ends("changed"),
    "failed": _ends("failed"),
    "skipped": _ends("skipped"),
    "succeeded": lambda result: not _ends("failed")(result),
}
