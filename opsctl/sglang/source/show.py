"""Parts of a source tree by name: a symbol, followed to the class that defines it, or lines of a file."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from opsctl.errors import Conflict, Place, UsageError
from opsctl.sglang.source.symbols import (
    ClassRef,
    Function,
    Module,
    NotPython,
    find_class,
    find_method,
    lineage,
    parse,
)
from opsctl.sglang.source.tree import Reader, SourceTree, load, unknown_class
from opsctl.text import did_you_mean

_LINES = re.compile(r"(?P<path>[^:]+\.py)(?::(?P<first>\d+)(?:-(?P<last>\d+))?)?")
_SYMBOL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?")
_WHOLE = 400  # lines of a file shown without a range


@dataclass(frozen=True, slots=True)
class Part:
    """Lines of a file, and how they were come by."""

    asked: str
    file: str
    first: int
    last: int
    text: str
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "asked": self.asked,
            "file": self.file,
            "first": self.first,
            "last": self.last,
            "note": self.note,
            "text": self.text,
        }


def show(reader: Reader, root: str, asked: Sequence[str]) -> tuple[Part, ...]:
    """The parts, in one round trip. Raises UsageError for what is not there."""
    paths = {text: match for text in asked if (match := _LINES.fullmatch(text))}
    for text in asked:
        if text not in paths and not _SYMBOL.fullmatch(text):
            raise UsageError(
                f"{text!r} is no symbol and no file",
                hint="write Class, Class.method, function, path.py:line or path.py:from-to",
            )
    names = [text.split(".")[0] for text in asked if text not in paths]
    files = [_inside(match["path"]) for match in paths.values()]
    tree = load(reader, root, names, files, everywhere=True)
    return tuple(_lines(tree, text, paths[text]) if text in paths else _symbol(tree, text) for text in asked)


def _lines(tree: SourceTree, text: str, match: re.Match[str]) -> Part:
    path = _inside(match["path"])
    data = tree.read(path)
    if data is None:
        raise UsageError(f"{tree.shown(path)} is not in this tree", where=tree.root)
    lines = data.decode("utf-8", "replace").split("\n")
    first = int(match["first"] or 1)
    last = int(match["last"] or match["first"] or _WHOLE)
    if first < 1 or last < first or first > len(lines):
        raise UsageError(f"{text}: the file has lines 1 to {len(lines)}", where=tree.root)
    last = min(last, len(lines))
    return Part(text, tree.shown(path), first, last, "\n".join(line.rstrip("\r") for line in lines[first - 1 : last]))


def _symbol(tree: SourceTree, text: str) -> Part:
    class_name, _, method_name = text.partition(".")
    try:
        for path in () if method_name else tree.classes.get(class_name, ()):
            module = parse(tree, path)
            if module and class_name in module.functions:
                return _part(tree, text, module, module.functions[class_name])
        cls = _class(tree, class_name)
        if not method_name:
            return _part(tree, text, cls.module, cls.node)
        method = find_method(tree, cls, method_name)
        if method is None:
            known = {n.name for c in lineage(tree, cls) for n in c.node.body if isinstance(n, ast.FunctionDef)}
            raise UsageError(
                f"{class_name} has no method {method_name}",
                where=Place(tree.shown(cls.module.path), cls.node.lineno),
                hint=did_you_mean(method_name, known),
            )
        note = ""
        if method.owner.node is not cls.node:
            file = tree.shown(method.module.path)
            note = f"defined in the parent {method.owner.name}, {file.rpartition('/')[2]}:{method.line}"
        return _part(tree, text, method.module, method.node, note)
    except NotPython as broken:
        raise Conflict(
            f"the file is not valid Python: {broken.message}", where=Place(tree.shown(broken.path), broken.line)
        ) from broken


def _class(tree: SourceTree, name: str) -> ClassRef:
    for path in tree.classes.get(name, ()):
        found = find_class(tree, path, name)
        if found:
            return found[-1]
    raise unknown_class(tree, name)


def _part(tree: SourceTree, text: str, module: Module, node: ast.ClassDef | Function, note: str = "") -> Part:
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    last = node.end_lineno or node.lineno
    return Part(text, tree.shown(module.path), first, last, module.snippet(first, last), note)


def _inside(path: str) -> str:
    """The path inside the package, however much of it the user wrote."""
    for prefix in ("python/sglang/", "sglang/"):
        if path.startswith(prefix):
            return path.removeprefix(prefix)
    return path
