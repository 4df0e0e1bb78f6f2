"""Classes and methods of a source tree, found by syntax, followed through imports and bases."""

from __future__ import annotations

import ast
import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from opsctl.sglang.source.tree import SourceTree

Function = ast.FunctionDef | ast.AsyncFunctionDef


class NotPython(Exception):
    """A file that does not parse: `line` and what Python says."""

    def __init__(self, path: str, line: int, message: str) -> None:
        super().__init__(message)
        self.path, self.line, self.message = path, line, message


@dataclass(frozen=True)
class Module:
    """A parsed file. Line numbers count from 1, as in `ast`."""

    path: str
    text: str
    tree: ast.Module

    @cached_property
    def lines(self) -> list[str]:
        """The lines without their ends. Only \\n ends a line here; a \\r before it belongs to the end."""
        return [line.removesuffix("\r") for line in self.text.split("\n")]

    @cached_property
    def classes(self) -> tuple[ast.ClassDef, ...]:
        """Every class of the module's own level, also inside `if` and `try`."""
        return tuple(node for node in _top_level(self.tree.body) if isinstance(node, ast.ClassDef))

    @cached_property
    def functions(self) -> dict[str, Function]:
        return {n.name: n for n in _top_level(self.tree.body) if isinstance(n, Function)}

    @cached_property
    def entries(self) -> frozenset[str]:
        """The classes that the module registers: `EntryClass = [...]`."""
        values = [n.value for n in self.tree.body if isinstance(n, ast.Assign) and dotted(n.targets[0]) == "EntryClass"]
        return frozenset(n.id for value in values for n in ast.walk(value) if isinstance(n, ast.Name))

    @cached_property
    def imports(self) -> dict[str, tuple[str, str]]:
        """Name here -> (module file without suffix, name there), for what comes from the package."""
        found: dict[str, tuple[str, str]] = {}
        for node in _statements(self.tree):
            if isinstance(node, ast.ImportFrom):
                module = _module_path(node, self.path)
                if module:
                    found.update({a.asname or a.name: (module, a.name) for a in node.names})
        return found

    def snippet(self, first: int, last: int | None = None) -> str:
        return "\n".join(self.lines[first - 1 : last or first])


@dataclass(frozen=True, slots=True)
class ClassRef:
    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name

    def own(self, method: str) -> Function | None:
        """The method that this class itself defines; of two definitions the last, as in Python."""
        found = [n for n in _top_level(self.node.body) if isinstance(n, Function) and n.name == method]
        return found[-1] if found else None


@dataclass(frozen=True, slots=True)
class Method:
    """A method and the class that defines it."""

    owner: ClassRef
    node: Function

    @property
    def module(self) -> Module:
        return self.owner.module

    @property
    def line(self) -> int:
        return self.node.lineno


_BLOCKS = ("body", "handlers", "orelse", "finalbody", "cases")  # where statements hold others

_cache: dict[tuple[str, bytes], Module | NotPython] = {}


def parse(tree: SourceTree, path: str) -> Module | None:
    """The parsed file, None if the tree has none. Raises NotPython."""
    data = tree.read(path)
    return None if data is None else parse_bytes(path, data)


def parse_bytes(path: str, data: bytes) -> Module:
    """Parse a file, once per content. Raises NotPython."""
    key = (path, hashlib.sha256(data).digest())
    found = _cache.get(key)
    if found is None:
        found = _cache[key] = _parse(path, data)
    if isinstance(found, NotPython):
        raise found
    return found


def find_class(tree: SourceTree, path: str, name: str) -> list[ClassRef]:
    """Every definition of class `name` in a file."""
    module = parse(tree, path)
    return [ClassRef(module, c) for c in module.classes if c.name == name] if module else []


def resolve(tree: SourceTree, module: Module, name: str, before: int | None = None, depth: int = 8) -> ClassRef | None:
    """The class that `name` means in `module`, at line `before`: a class may have the name of the import it extends.

    Raises NotPython for a file on the way.
    """
    here = [c for c in module.classes if c.name == name and (before is None or c.lineno < before)]
    if here:
        return ClassRef(module, here[-1])
    source = module.imports.get(name)
    if source is None or depth == 0:
        return None
    for path in (f"{source[0]}.py", f"{source[0]}/__init__.py"):
        there = parse(tree, path)
        if there and (found := resolve(tree, there, source[1], depth=depth - 1)):
            return found
    return None


def lineage(tree: SourceTree, cls: ClassRef) -> Iterator[ClassRef]:
    """The class and those of its bases that the tree defines, nearest first."""
    seen: set[tuple[str, int]] = set()
    todo = [cls]
    while todo:
        current = todo.pop(0)
        key = (current.module.path, current.node.lineno)
        if key in seen:
            continue
        seen.add(key)
        yield current
        for base in current.node.bases:
            name = base.id if isinstance(base, ast.Name) else base.attr if isinstance(base, ast.Attribute) else None
            found = resolve(tree, current.module, name, before=current.node.lineno) if name else None
            if found:
                todo.append(found)


def find_method(tree: SourceTree, cls: ClassRef, name: str) -> Method | None:
    """The method as an instance of `cls` has it: its own or the nearest base's."""
    for owner in lineage(tree, cls):
        node = owner.own(name)
        if node:
            return Method(owner, node)
    return None


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """`ast.walk`, in half its time."""
    todo = deque([node])
    while todo:
        node = todo.popleft()
        for name in node._fields:
            value = getattr(node, name, None)
            if isinstance(value, list):
                todo.extend([part for part in value if isinstance(part, ast.AST)])
            elif isinstance(value, ast.AST):
                todo.append(value)
        yield node


def mentioning(module: Module, word: str) -> Iterator[ast.AST]:
    """Every node of the statements that mention `word`; the rest of a long file is passed over."""
    lines = [number for number, line in enumerate(module.lines, 1) if word in line]
    todo: list[ast.stmt] = list(module.tree.body)
    while todo:
        statement = todo.pop()
        if not any(statement.lineno <= line <= (statement.end_lineno or line) for line in lines):
            continue
        if isinstance(statement, ast.ClassDef):
            todo += statement.body
        else:
            yield from walk(statement)


def assignments(function: Function, attribute: str | None = None) -> Iterator[tuple[str, ast.expr, int]]:
    """(attribute, value, line) of each `self.attribute = value` in a function."""
    for node in walk(function):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if (
                node.value is not None
                and isinstance(target, ast.Attribute)
                and isinstance(target.value, ast.Name)
                and target.value.id == "self"
                and attribute in (None, target.attr)
            ):
                yield target.attr, node.value, node.lineno


def called_name(node: ast.AST) -> str | None:
    """`f` of a call `f(...)`, `m` of a call `a.b.m(...)`."""
    if not isinstance(node, ast.Call):
        return None
    return dotted(node.func).rpartition(".")[2] or None


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or an attribute, empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _parse(path: str, data: bytes) -> Module | NotPython:
    try:
        text = data.decode("utf-8-sig")
        return Module(path, text, ast.parse(text, filename=path))
    except SyntaxError as error:
        return NotPython(path, error.lineno or 1, error.msg)
    except (UnicodeDecodeError, ValueError) as error:
        return NotPython(path, 1, str(error))
    except (RecursionError, MemoryError):
        return NotPython(path, 1, "nested too deeply to be parsed")


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """`node` and every statement inside, expressions left out: most of a file is those. In `ast.walk`'s order."""
    todo = deque([node])
    while todo:
        node = todo.popleft()
        yield node
        for name in _BLOCKS:
            todo.extend(getattr(node, name, ()))


def _top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "handlers", "orelse", "finalbody"):
                for part in getattr(node, field, []):
                    yield from _top_level(part.body if isinstance(part, ast.ExceptHandler) else [part])
        else:
            yield node


def _module_path(node: ast.ImportFrom, path: str) -> str | None:
    parts = (node.module or "").split(".") if node.module else []
    if node.level:
        return "/".join([*path.split("/")[: -node.level], *parts])
    return "/".join(parts[1:]) if parts[:1] == ["sglang"] and len(parts) > 1 else None
