"""Filters and tests of templates, beyond those that Jinja2 brings."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from opsctl.engine.unknown import Unknown
from opsctl.errors import UsageError
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
    "regex_replace": lambda value, pattern, replacement: re.sub(pattern, replacement, value),
    "regex_search": lambda value, pattern: found.group(0) if (found := re.search(pattern, value)) else "",
}
TESTS: dict[str, Callable[..., Any]] = {
    "match": lambda value, pattern: re.match(pattern, value) is not None,
    "search": lambda value, pattern: re.search(pattern, value) is not None,
    "changed": _ends("changed"),
    "failed": _ends("failed"),
    "skipped": _ends("skipped"),
    "succeeded": lambda result: not _ends("failed")(result),
}
