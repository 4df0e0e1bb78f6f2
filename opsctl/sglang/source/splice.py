"""Edits of a file's text at places found by syntax. Everything else stays as it is, byte for byte."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

from opsctl.sglang.source.symbols import Module


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace text from (line, column) to (line, column): lines from 1, columns in UTF-8 bytes, as in `ast`."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


def before(module: Module, node: ast.stmt, code: str) -> Edit:
    """Insert statements before a statement and the comment that belongs to it, at its indentation."""
    place = (first_line(module, node), 0)
    return Edit(place, place, indented(code, node.col_offset))


def first_line(module: Module, node: ast.stmt) -> int:
    """The line on which a statement begins, with the comment right above it."""
    line = node.lineno
    indent = " " * node.col_offset
    while line > 1 and module.lines[line - 2].startswith(f"{indent}#"):
        line -= 1
    return line


def after(node: ast.stmt, code: str) -> Edit:
    """Insert statements after a statement, at its indentation."""
    place = ((node.end_lineno or node.lineno) + 1, 0)
    return Edit(place, place, indented(code, node.col_offset))


def method_after(node: ast.stmt, code: str) -> Edit:
    """Insert methods after a member of a class, with an empty line between."""
    edit = after(node, code)
    return Edit(edit.start, edit.end, "\n" + edit.text)


def indented(code: str, columns: int) -> str:
    """`code` with its own indentation taken off and `columns` spaces put on; ends with a line end."""
    lines = textwrap.dedent(code).strip().split("\n")
    return "".join(f"{' ' * columns}{line}".rstrip() + "\n" for line in lines)


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """The file's bytes after `edits`, which must not overlap. New lines end as those around them do."""
    bom = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
    raw = data[len(bom) :]
    crlf = b"\r\n" in raw and raw.count(b"\r\n") * 2 > raw.count(b"\n")
    starts = [0]
    for line in raw.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)

    def offset(place: tuple[int, int]) -> int:
        line, column = place
        return min(starts[min(line - 1, len(starts) - 1)] + column, len(raw))

    # From the end, so that offsets stay true; of edits at one place the first comes first.
    for edit in reversed(sorted(edits, key=lambda e: e.start)):  # noqa: C413  reverse=True would keep ties in order
        text = edit.text.replace("\n", "\r\n") if crlf else edit.text
        first, last = offset(edit.start), offset(edit.end)
        new = text.encode()
        if first == len(raw) and raw and not raw.endswith(b"\n"):
            new = (b"\r\n" if crlf else b"\n") + new
        raw = raw[:first] + new + raw[last:]
    return bom + raw
