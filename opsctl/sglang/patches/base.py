"""What a patch is: a desired end state of the source, recognised and brought about by syntax."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from opsctl.sglang import releases
from opsctl.sglang.releases import Version
from opsctl.sglang.source import symbols
from opsctl.sglang.source.symbols import Function, Method, Module, NotPython, find_method, parse
from opsctl.sglang.source.tree import SourceTree


class Status(StrEnum):
    UPSTREAM = "upstream"  # this version has the end state
    APPLIED = "applied"  # the end state is there and upstream did not put it there
    NEEDED = "needed"
    CONFLICT = "conflict"  # the place is not as the patch knows it; nothing is touched
    NOT_APPLICABLE = "not-applicable"  # there is nothing in this tree that the patch is about


@dataclass(frozen=True, slots=True)
class Standing:
    """How a tree stands to a patch: the status, the place it was read at, and why."""

    status: Status
    path: str | None
    line: int | None
    reason: str


class Settled(Exception):
    """The answer is known before the end of the look."""

    def __init__(self, finding: Standing) -> None:
        super().__init__(finding.reason)
        self.finding = finding


IN_NONE = f"in no version up to {releases.known()[-1]}"


@dataclass(frozen=True, slots=True)
class About:
    """What a patch tells of itself: `opsctl patch list` and `show`."""

    reason: str
    upstream: str  # which versions have the end state
    precondition: str
    end_state: str
    proof: str
    oldest: str = "any"  # the first release whose source it knows; in older ones it has nothing to say


class Patch(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def about(self) -> About: ...

    def look(self, tree: SourceTree) -> Standing:
        """How the tree stands to the end state. May raise Settled or NotPython."""

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        """New contents of the files to change, for a tree where `look` says needed. May raise Settled."""


def conflict(path: str, line: int | None, reason: str) -> Settled:
    return Settled(Standing(Status.CONFLICT, path, line, reason))


def not_applicable(reason: str, path: str | None = None, line: int | None = None) -> Settled:
    return Settled(Standing(Status.NOT_APPLICABLE, path, line, reason))


def finding(patch: Patch, tree: SourceTree) -> Standing:
    """`patch.look`, with every way out of it turned into a Standing."""
    try:
        found = patch.look(tree)
    except Settled as settled:
        found = settled.finding
    except NotPython as broken:
        return Standing(
            Status.CONFLICT,
            broken.path,
            broken.line,
            f"the file is not valid Python, before any patch: {broken.message}",
        )
    oldest, release = Version.told(patch.about.oldest), tree.version.exact
    if found.status in (Status.NEEDED, Status.CONFLICT) and oldest and release and release < oldest:
        return replace(found, status=Status.NOT_APPLICABLE, reason=f"is for SGLang {oldest} and later: {found.reason}")
    return found


def origin(tree: SourceTree, since: Version) -> Status:
    """Whose the end state is that a tree has and upstream has `since`: in an older tree it was put there later."""
    floor = tree.version.floor
    return Status.APPLIED if floor is not None and floor < since else Status.UPSTREAM


def needed_module(tree: SourceTree, path: str) -> Module:
    """The parsed file. Raises Settled where the tree does not have it."""
    module = parse(tree, path)
    if module is None:
        raise not_applicable(f"this tree has no {tree.shown(path)}")
    return module


def reachable(tree: SourceTree, method: Method, depth: int = 2) -> list[ast.AST]:
    """The method's own node and those of the methods and functions of its module that it calls."""
    return [method.node, *_callees(tree, method, method.node.body, depth)]


def called_from(tree: SourceTree, method: Method, body: Iterable[ast.stmt], depth: int = 2) -> list[ast.AST]:
    """Some statements of a method, and what they call."""
    statements = list(body)
    return [*statements, *_callees(tree, method, statements, depth)]


def walk(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        yield from symbols.walk(node)


def strings(nodes: Iterable[ast.AST]) -> list[ast.Constant]:
    """The text constants in code, docstrings left out."""
    nodes = list(nodes)
    prose = {id(n.value) for n in walk(nodes) if isinstance(n, ast.Expr)}
    return [n for n in walk(nodes) if isinstance(n, ast.Constant) and isinstance(n.value, str) and id(n) not in prose]


def identifiers(nodes: Iterable[ast.AST]) -> set[str]:
    """Every name and attribute that code mentions."""
    return {n.id if isinstance(n, ast.Name) else n.attr for n in walk(nodes) if isinstance(n, ast.Name | ast.Attribute)}


def first_raise(nodes: Iterable[ast.AST]) -> ast.stmt | None:
    """The first `raise` or `assert`."""
    found = [n for n in walk(nodes) if isinstance(n, ast.Raise | ast.Assert)]
    return min(found, key=lambda n: n.lineno) if found else None


def _callees(tree: SourceTree, method: Method, body: Iterable[ast.AST], depth: int) -> list[ast.AST]:
    if depth == 0:
        return []
    found: dict[int, tuple[Method | None, Function]] = {}
    for node in walk(body):
        if not isinstance(node, ast.Call):
            continue
        target = node.func
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
            callee = find_method(tree, method.owner, target.attr)
            if callee and callee.module is method.module:
                found[id(callee.node)] = (callee, callee.node)
        elif isinstance(target, ast.Name) and target.id in method.module.functions:
            function = method.module.functions[target.id]
            found[id(function)] = (None, function)
    result: list[ast.AST] = []
    for callee, function in found.values():
        result.append(function)
        if callee and callee.node is not method.node:
            result += _callees(tree, callee, function.body, depth - 1)
    return result
