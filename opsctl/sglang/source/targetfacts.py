"""What a source tree does with a model class as the target of EAGLE-3."""

from __future__ import annotations

import ast

from opsctl.sglang.patches.base import not_applicable
from opsctl.sglang.patches.capture import language_model
from opsctl.sglang.releases import Capture
from opsctl.sglang.source.fact import Fact, proved
from opsctl.sglang.source.symbols import ClassRef, Method, called_name, dotted, find_class, find_method
from opsctl.sglang.source.targets import ASKED_OF_TARGET, CAPTURE, read
from opsctl.sglang.source.tree import SourceTree


def capture(tree: SourceTree, target: str) -> Fact:
    """Whether the class has what the worker asks of a target, and through which inner class."""
    cls = _class(tree, target)
    missing = [m for m in ASKED_OF_TARGET if find_method(tree, cls, m) is None]
    if missing:
        return proved(
            tree, cls.module, cls.node, "missing", f"{target} lacks {', '.join(missing)}: the server will not start"
        )
    method = find_method(tree, cls, CAPTURE)
    assert method is not None
    effect = read(tree, cls)
    if effect.capture is Capture.NO_EFFECT:
        return proved(tree, method.module, method.node, "without effect", f"{target}: {effect.why}")
    through = _handed_to(method)
    owner = "" if method.owner.node is cls.node else f", inherited from {method.owner.name}"
    if not through:
        return proved(tree, method.module, method.node, "own", f"{target} captures hidden states itself{owner}")
    inner = language_model(tree, cls)
    names = " or ".join(c.name for c in inner.supporting) if inner else "a class that cannot be followed"
    return proved(
        tree, method.module, method.node, "delegated", f"{target} hands capture to self.{through}, {names}{owner}"
    )


def layer_id_rule(tree: SourceTree, target: str) -> Fact:
    """What a configured layer id means: SGLang captures before layer i, so the output of layer i - 1."""
    method = _capturing(tree, target)
    for node in ast.walk(method.node):
        if isinstance(node, ast.If) and "[0] == 1" in ast.unparse(node.test):
            says = "id + 1 if the first id is 1, otherwise the ids as they are written"
            return proved(tree, method.module, node, "+1 if first is 1", says)
    for node in ast.walk(method.node):
        if isinstance(node, ast.ListComp) and "+ 1" in ast.unparse(node.elt):
            return proved(
                tree, method.module, node, "+1", "id + 1: the configured ids name layers whose output is captured"
            )
    for node in ast.walk(method.node):
        if isinstance(node, ast.Assign) and "layers_to_capture" in dotted(node.targets[0]):
            return proved(tree, method.module, node, "as written", "the ids as they are written")
    raise not_applicable(
        f"{method.owner.name}.{CAPTURE} does not say what it does with the ids", method.module.path, method.line
    )


def aux_after_reduce(tree: SourceTree, target: str) -> Fact:
    """Whether hidden states are captured after the all-reduce; before it, if it is fused, they are partial sums."""
    method = _capturing(tree, target)
    module = method.module
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and any(k.arg == "captured_last_layer_outputs" for k in node.keywords):
            keyword = next(k.value for k in node.keywords if k.arg == "captured_last_layer_outputs")
            return proved(tree, module, keyword, "after", "captured by the layer, after its all-reduce")
    for node in ast.walk(module.tree):
        if not (isinstance(node, ast.Call) and called_name(node) == "append" and node.args):
            continue
        if "aux_hidden_states" in dotted(node.func) and isinstance(node.args[0], ast.BinOp):
            says = "captured between layers: partial sums if the all-reduce is fused"
            return proved(tree, module, node, "before", says)
    raise not_applicable(f"{module.path} does not show where hidden states are captured", module.path, method.line)


def _class(tree: SourceTree, target: str) -> ClassRef:
    for path in tree.classes.get(target, ()):
        found = find_class(tree, path, target)
        if found:
            return found[-1]
    raise not_applicable(f"this tree has no class {target}")


def _capturing(tree: SourceTree, target: str) -> Method:
    """The method that sets the layers to capture, followed through wrappers."""
    cls = _class(tree, target)
    for _ in range(4):
        method = find_method(tree, cls, CAPTURE)
        if method and not _handed_to(method):
            return method
        inner = language_model(tree, cls)
        if inner is None or not inner.supporting:
            break
        cls = inner.supporting[0]
    raise not_applicable(f"{target} leads to no class that captures hidden states", cls.module.path, cls.node.lineno)


def _handed_to(method: Method) -> str | None:
    """The attribute that the method hands the call to, None where it does the work itself."""
    for node in ast.walk(method.node):
        if isinstance(node, ast.Assign) and dotted(node.targets[0]).rpartition(".")[2] in _SETS:
            return None
    for node in ast.walk(method.node):
        target = dotted(node.func) if isinstance(node, ast.Call) else ""
        if target.startswith("self.") and target.endswith(f".{CAPTURE}"):
            return target.split(".")[1]
    return None


_SETS = ("capture_aux_hidden_states", "layers_to_capture")  # what a class that captures itself sets
