"""One thing that a source tree does, with its proof."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Any

from opsctl.sglang.source.symbols import Module
from opsctl.sglang.source.tree import SourceTree

_LONGEST = 12  # lines of a snippet


@dataclass(frozen=True, slots=True)
class Fact:
    """value: a word of a small set, None where it cannot be told. says: a sentence. file: relative to the root."""

    value: str | None
    says: str
    file: str | None = None
    line: int | None = None
    snippet: str = ""

    @property
    def place(self) -> str:
        """`file:line`, as far as known."""
        return ":".join(str(part) for part in (self.file, self.line) if part is not None)

    def to_json(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "file": self.file,
            "line": self.line,
            "snippet": self.snippet,
            "reason": self.says,
        }


def proved(tree: SourceTree, module: Module, node: ast.stmt | ast.expr, value: str, says: str) -> Fact:
    """A fact proved by the lines of a node."""
    last = min(node.end_lineno or node.lineno, node.lineno + _LONGEST - 1)
    return Fact(value, says, tree.shown(module.path), node.lineno, module.snippet(node.lineno, last))
