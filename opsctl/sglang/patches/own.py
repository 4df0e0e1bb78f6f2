"""A user's own patch: methods that a class, or functions that a module, is to have."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from opsctl.sglang.patches.base import About, Standing, Status, conflict, needed_module, not_applicable
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import ClassRef, Function, Module, find_class
from opsctl.sglang.source.tree import SourceTree


@dataclass(frozen=True, slots=True)
class Wanted:
    """A function as it is to be, and as it must be now if it is there. Compared without comments and layout."""

    code: str
    instead_of: str | None = None

    @property
    def name(self) -> str:
        return function_in(self.code).name


@dataclass(frozen=True, slots=True)
class EndState:
    """`class_name` of the file, or the module where that is None, has the wanted functions."""

    name: str
    reason: str
    path: str  # inside the package: srt/models/llama.py
    class_name: str | None
    wanted: tuple[Wanted, ...]

    @property
    def about(self) -> About:
        owner = self.class_name or self.path
        names = ", ".join(w.name for w in self.wanted)
        return About(
            reason=self.reason,
            upstream="not told: the project's own patch",
            precondition=f"{self.path} is there{f' and defines {self.class_name} once' if self.class_name else ''}",
            end_state=f"{owner} has {names} as written in the patch",
            proof="the file parses, and the functions are found in it as written",
        )

    def look(self, tree: SourceTree) -> Standing:
        module = needed_module(tree, self.path)
        owner = self._owner(tree)
        missing = []
        for wanted in self.wanted:
            found = _find(module, owner, wanted.name)
            if found is None and wanted.instead_of is None:
                missing.append((owner.node.lineno if owner else 1, f"{wanted.name} is not there"))
            elif found is None:
                line = owner.node.lineno if owner else 1
                raise conflict(self.path, line, f"looked for {wanted.name} to replace, found none")
            elif _same(found, wanted.code):
                continue
            elif wanted.instead_of is not None and _same(found, wanted.instead_of):
                missing.append((found.lineno, f"{wanted.name} is as it was before the patch"))
            else:
                expected = (
                    "as before or after the patch" if wanted.instead_of is not None else "none, or one as in the patch"
                )
                raise conflict(self.path, found.lineno, f"{wanted.name}: looked for {expected}, found another one")
        if not missing:
            first = _find(module, owner, self.wanted[0].name)
            return Standing(
                Status.APPLIED, self.path, first.lineno if first else None, "every function is as in the patch"
            )
        return Standing(Status.NEEDED, self.path, missing[0][0], "; ".join(text for _, text in missing))

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        module = needed_module(tree, self.path)
        owner = self._owner(tree)
        edits = []
        for wanted in self.wanted:
            found = _find(module, owner, wanted.name)
            if found is None:
                last = owner.node.body[-1] if owner else module.tree.body[-1]
                edits.append(splice.method_after(last, wanted.code))
            elif not _same(found, wanted.code):
                first = min([found.lineno, *(d.lineno for d in found.decorator_list)])
                text = splice.indented(wanted.code, found.col_offset)
                edits.append(splice.Edit((first, 0), ((found.end_lineno or first) + 1, 0), text))
        return {self.path: splice.edited(tree.files[self.path], edits)}

    def _owner(self, tree: SourceTree) -> ClassRef | None:
        if self.class_name is None:
            return None
        found = find_class(tree, self.path, self.class_name)
        if not found:
            raise not_applicable(f"{tree.shown(self.path)} has no class {self.class_name}", self.path)
        if len(found) > 1:
            raise conflict(
                self.path, found[1].node.lineno, f"looked for one class {self.class_name}, found {len(found)}"
            )
        return found[0]


def function_in(code: str) -> Function:
    """The one function that the text defines. Raises SyntaxError if it is something else."""
    body = ast.parse(textwrap.dedent(code)).body
    if len(body) != 1 or not isinstance(body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        raise SyntaxError("expected one function")
    return body[0]


def _find(module: Module, owner: ClassRef | None, name: str) -> Function | None:
    return owner.own(name) if owner else module.functions.get(name)


def _same(function: Function, code: str) -> bool:
    return ast.dump(function) == ast.dump(function_in(code))
