"""The places in llama_eagle3.py that the drafter patches are about, found by what they do."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from opsctl.sglang.patches.base import conflict, needed_module, strings, walk
from opsctl.sglang.source.symbols import (
    ClassRef,
    Method,
    Module,
    assignments,
    called_name,
    dotted,
    find_class,
    find_method,
    resolve,
)
from opsctl.sglang.source.tree import DRAFTER, SourceTree

CLASS = "LlamaForCausalLMEagle3"


@dataclass(frozen=True, slots=True)
class Loader:
    """`LlamaForCausalLMEagle3.load_weights` and its loop over the checkpoint: `for name, tensor in weights`."""

    method: Method
    loop: ast.For
    name: str
    tensor: str

    @property
    def module(self) -> Module:
        return self.method.module

    @property
    def rest(self) -> list[ast.stmt]:
        """The statements after the loop."""
        body = self.method.node.body
        return body[body.index(self.loop) + 1 :]

    def branch(self, word: str) -> ast.If | None:
        """The `if "word" in name:` of the loop."""
        for node in ast.walk(self.loop):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.In):
                left, right = node.test.left, node.test.comparators[0]
                if isinstance(left, ast.Constant) and left.value == word and dotted(right) == self.name:
                    return node
        return None


def drafter_class(tree: SourceTree) -> ClassRef:
    """The one definition of the draft model. Raises Settled where there is none, or more than one."""
    module = needed_module(tree, DRAFTER)
    found = find_class(tree, DRAFTER, CLASS)
    if not found:
        raise conflict(
            DRAFTER, 1, f"looked for class {CLASS}, found {', '.join(c.name for c in module.classes) or 'no class'}"
        )
    if len(found) > 1:
        lines = ", ".join(str(c.node.lineno) for c in found)
        raise conflict(
            DRAFTER, found[1].node.lineno, f"looked for one class {CLASS}, found {len(found)} (lines {lines})"
        )
    return found[0]


def loader(tree: SourceTree) -> Loader:
    """The draft model's loader. Raises Settled where it is not a loop over (name, tensor) pairs."""
    cls = drafter_class(tree)
    node = cls.own("load_weights")
    if node is None:
        inherited = find_method(tree, cls, "load_weights")
        seen = f"the one of {inherited.owner.name}, {inherited.module.path}:{inherited.line}" if inherited else "none"
        raise conflict(DRAFTER, cls.node.lineno, f"looked for a load_weights of {CLASS} itself, found {seen}")
    for statement in node.body:
        if isinstance(statement, ast.For) and isinstance(statement.target, ast.Tuple):
            names = [dotted(e) for e in statement.target.elts]
            if len(names) == 2 and all(names):
                return Loader(Method(cls, node), statement, names[0], names[1])
    raise conflict(DRAFTER, node.lineno, f"{CLASS}.load_weights: looked for a loop over (name, tensor), found none")


def inner_model(tree: SourceTree) -> ClassRef:
    """The class of the draft model's `self.model`."""
    cls = drafter_class(tree)
    init = find_method(tree, cls, "__init__")
    for _, value, _line in assignments(init.node, "model") if init else ():
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            found = resolve(tree, cls.module, value.func.id)
            if found:
                return found
    raise conflict(
        DRAFTER, cls.node.lineno, f"looked for the class of {CLASS}'s self.model, found no self.model = Class(...)"
    )


def layer_attribute(model: ClassRef) -> tuple[str, int]:
    """What the model calls its decoder: `midlayer` (one layer, before 0.5.12) or `layers`, and the line."""
    init = model.own("__init__")
    found = {attribute: line for attribute, _, line in assignments(init)} if init else {}
    for attribute in ("midlayer", "layers"):
        if attribute in found:
            return attribute, found[attribute]
    raise conflict(
        model.module.path, model.node.lineno, f"looked for {model.name}'s self.midlayer or self.layers, found neither"
    )


def loading_calls(loop: ast.For, tensor: str) -> list[tuple[ast.If, ast.Call]]:
    """Each `if param in params:` of the loop with the call in it that puts the tensor into the parameter."""
    found = []
    for node in ast.walk(loop):
        if not (
            isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.In)
        ):
            continue
        if not isinstance(node.test.left, ast.Name):
            continue
        for statement in node.body:
            if isinstance(statement, ast.Expr) and called_name(statement.value):
                call = statement.value
                assert isinstance(call, ast.Call)
                if any(dotted(a) == tensor for a in call.args):
                    found.append((node, call))
    return found


def mentions(nodes: list[ast.AST], *words: str) -> list[ast.Constant]:
    """The text constants in code that contain one of the words."""
    return [c for c in strings(nodes) if any(w in str(c.value) for w in words)]


def stacked_loop(loop: ast.For) -> ast.For | None:
    """The inner loop over the stacked parameters: (part of the parameter's name, part of the tensor's name, shard)."""
    for node in walk(loop.body):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple) and len(node.target.elts) == 3:
            return node
    return None
