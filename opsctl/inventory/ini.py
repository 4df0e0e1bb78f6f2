"""Ansible's INI inventories, line by line: what `ansible-doc -t inventory ini` says they are."""

from __future__ import annotations

import ast
import re
import shlex
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from opsctl.errors import Place, UsageError
from opsctl.text import did_you_mean, one_line

_SECTION = re.compile(r"\[([^:\]\s]+)(?::(\w+))?\]\s*(?:#.*)?\Z")
_NAME = re.compile(r"([^:\]\s]+)\s*(?:#.*)?\Z")
_KINDS = ("hosts", "children", "vars")


@dataclass(frozen=True, slots=True)
class Line:
    """One thing said of a group.

    Attributes:
        kind: `group`: there is one; `hosts`, `children`: `name` is of it; `vars`: it has these variables.
        values: variables of the host, or of the group.
    """

    kind: str
    group: str
    place: Place
    name: str = ""
    values: dict[str, Any] = field(default_factory=dict)


def lines(text: str, file: str) -> Iterator[Line | UsageError]:
    """What each line says, or what is wrong with it. Hosts before any section are of the group `ungrouped`."""
    group, kind = "ungrouped", "hosts"  # no kind: what follows is of a section that is none
    for number, raw in enumerate(text.splitlines(), 1):
        line, place = raw.strip(), Place(file, number, len(raw) - len(raw.lstrip()) + 1)
        if not line or line[0] in "#;":
            continue
        try:
            if section := _SECTION.match(line):
                group, kind = section[1], ""
                kind = _kind(section, place)
                yield Line("vars" if kind == "vars" else "group", group, place)
            elif line[0] == "[" and line[-1] == "]":
                kind = ""
                raise UsageError(
                    f"{one_line(line, 60)} is no section",
                    where=place,
                    hint="write [GROUP], [GROUP:children] or [GROUP:vars], without spaces",
                )
            elif kind:
                yield _line(kind, group, line, place)
        except UsageError as error:
            yield error


def _kind(section: re.Match[str], place: Place) -> str:
    """What the lines of a section are; nothing where its own kind is unknown."""
    kind = section[2] or "hosts"
    if kind not in _KINDS:
        raise UsageError(f"[{section[1]}:{kind}] is no kind of section", where=place, hint=did_you_mean(kind, _KINDS))
    return kind


def _line(kind: str, group: str, line: str, place: Place) -> Line:
    if kind == "children":
        found = _NAME.match(line)
        if not found:
            raise UsageError("expected the name of one group", where=place)
        return Line("children", group, place, found[1])
    if kind == "vars":
        name, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"[{group}:vars] has variables, expected NAME=VALUE", where=place)
        return Line("vars", group, place, values={name.strip(): _value(value.strip())})
    try:
        name, *words = shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"the quotes of this line do not fit: {error}", where=place) from None
    values = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(
                f"the {words.index(word) + 2}. word of the line is no NAME=VALUE",
                where=place,
                hint="no spaces around =; put quotes around a value with spaces",
            )
        values[key] = _value(value)
    return Line("hosts", group, place, name, values)


def _value(text: str) -> Any:
    """A Python literal where `text` is one, else the text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return _plain(ast.literal_eval(text))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return value.decode()
        case list() | tuple() | set():
            return [_plain(one) for one in value]
        case dict():
            return {str(key): _plain(one) for key, one in value.items()}
        case None | bool() | int() | float() | str():
            return value
    return "..." if value is ... else str(value)
