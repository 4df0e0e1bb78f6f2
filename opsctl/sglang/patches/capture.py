"""A wrapper class hands the calls of the speculative worker to its language model, or answers them itself.

The worker asks the target for `set_eagle3_layers_to_capture` and `get_embed_and_head` after the weights are loaded
(model_runner.py, eagle_worker*.py); a vision-language wrapper without them ends the server with an AttributeError.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace

from opsctl.sglang.patches.base import (
    About,
    Settled,
    Standing,
    Status,
    conflict,
    finding,
    needed_module,
    not_applicable,
    origin,
)
from opsctl.sglang.releases import Capture, Target, Version
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import (
    ClassRef,
    Function,
    Method,
    assignments,
    dotted,
    find_class,
    find_method,
    lineage,
    resolve,
    walk,
)
from opsctl.sglang.source.targets import ASKED_OF_TARGET, CAPTURE, GET, SET, built, forward_nodes, read, unpacks
from opsctl.sglang.source.tree import KIMI, SourceTree

_CODE = {
    CAPTURE: "def set_eagle3_layers_to_capture(self, layer_ids=None):\n"
    "    self.{inner}.set_eagle3_layers_to_capture(layer_ids)",
    GET: "def get_embed_and_head(self):\n    return self.{inner}.get_embed_and_head()",
    SET: "def set_embed_and_head(self, embed, head):\n    self.{inner}.set_embed_and_head(embed, head)",
}
# For a wrapper that computes the logits itself, around a model that records layers and has no methods for it.
_OWN_CODE = {
    CAPTURE: "def set_eagle3_layers_to_capture(self, layer_ids=None):\n"
    "    count = len(self.{inner}.layers)\n"
    "    wanted = [2, count // 2, count - 3] if layer_ids is None else [i + 1 for i in layer_ids]\n"
    "    self.{inner}.layers_to_capture = wanted",
    GET: "def get_embed_and_head(self):\n    return self.{inner}.embed_tokens.weight, self.lm_head.weight",
}
_TAKE = """aux_hidden_states = None
if isinstance({hidden}, tuple):
    {hidden}, aux_hidden_states = {hidden}
"""
_PASSED = {CAPTURE: 1, GET: 0, SET: 2}  # arguments to hand on


@dataclass(frozen=True, slots=True)
class Inner:
    """The attribute of a wrapper that holds its language model, and the classes that it may be built from."""

    attribute: str
    line: int
    supporting: tuple[ClassRef, ...]
    lacking: tuple[ClassRef, ...]


@dataclass(frozen=True, slots=True)
class Headless:
    """A model that records layers and has no head: the wrapper's forward computes the logits.

    taken: the statement of the wrapper's forward that gets the hidden states. logits: its call of the logits processor.
    """

    attribute: str
    model: ClassRef
    forward: Method
    taken: ast.Assign
    logits: ast.Call


@dataclass(frozen=True, slots=True)
class Delegation:
    """`class_name` answers the worker's questions through its language model."""

    name: str
    class_name: str
    about: About
    methods: tuple[str, ...]  # the end state: each of these is there
    path: str | None = None  # where the class must be; None: wherever the tree defines it
    since: Version | None = None  # first release with the end state
    must_delegate: bool = False  # an own implementation is not the end state

    def look(self, tree: SourceTree) -> Standing:
        cls = self.class_in(tree)
        missing = [m for m in self.methods if not self._answers(tree, cls, m)]
        shown = self.class_name
        if not missing:
            method = find_method(tree, cls, self.methods[0])
            assert method is not None
            effect = read(tree, cls)
            if effect.capture is Capture.NO_EFFECT:
                reason = (
                    f"{shown} has {', '.join(self.methods)}, but {effect.why}: EAGLE-3 cannot use it as a target here"
                )
                raise not_applicable(reason, method.module.path, method.line)
            return Standing(
                self._origin(tree, cls), method.module.path, method.line, f"{shown} has {', '.join(self.methods)}"
            )
        inner = language_model(tree, cls)
        if (own := headless(tree, cls)) is not None:
            reason = f"{shown} lacks {', '.join(missing)}; its self.{own.attribute}, a {own.model.name}, records layers"
            return Standing(Status.NEEDED, cls.module.path, cls.node.lineno, reason)
        if inner is None or not inner.supporting:
            raise not_applicable(
                _why_not(shown, missing, inner), cls.module.path, inner.line if inner else cls.node.lineno
            )
        _through_forward(tree, cls, inner)
        reason = f"{shown} lacks {', '.join(missing)}; its self.{inner.attribute} has them: {_names(inner.supporting)}"
        if inner.lacking:
            reason += f" (but not {_names(inner.lacking)})"
        return Standing(Status.NEEDED, cls.module.path, cls.node.lineno, reason)

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        cls = self.class_in(tree)
        if (own := headless(tree, cls)) is not None:
            return _own_methods(tree, cls, own)
        inner = language_model(tree, cls)
        assert inner is not None
        wanted = [m for m in _CODE if find_method(tree, cls, m) is None]
        wanted = [m for m in wanted if any(find_method(tree, c, m) for c in inner.supporting)]
        last = cls.node.body[-1]
        code = "\n\n".join(_CODE[m].format(inner=inner.attribute) for m in wanted)
        return {cls.module.path: splice.edited(tree.files[cls.module.path], [splice.method_after(last, code)])}

    def class_in(self, tree: SourceTree) -> ClassRef:
        """The one definition of the class. Raises Settled where there is none, or more than one."""
        if self.path:
            needed_module(tree, self.path)
        paths = (self.path,) if self.path else tree.classes.get(self.class_name, ())
        found = [c for path in paths for c in find_class(tree, path, self.class_name)]
        if not found:
            raise not_applicable(f"this tree has no class {self.class_name}", self.path)
        if len({c.module.path for c in found}) > 1:
            found = [c for c in found if c.name in c.module.entries] or found
        if len(found) > 1:
            places = ", ".join(f"{tree.shown(c.module.path)}:{c.node.lineno}" for c in found)
            raise conflict(
                found[0].module.path,
                found[0].node.lineno,
                f"looked for one class {self.class_name}, found {len(found)}: {places}",
            )
        return found[0]

    def delegates(self, cls: ClassRef, name: str) -> bool:
        """Whether the class's own method hands the call on."""
        method = cls.own(name)
        return method is not None and _hands_on(method, name)

    def _answers(self, tree: SourceTree, cls: ClassRef, name: str) -> bool:
        """Whether the class has the method. Raises Settled where it has one that cannot be what the worker needs."""
        method = find_method(tree, cls, name)
        if method is None:
            return False
        if isinstance(method.node, ast.AsyncFunctionDef):
            raise _different(method, "a plain method", "an async one")
        if _takes(method.node, _PASSED[name]) is False:
            raise _different(method, f"a method that can be called with {_arguments(name)}", "other parameters")
        if _hands_on(method.node, name):
            return True
        if self.must_delegate:
            raise _different(method, "a call of the same method of the language model", "none")
        if _is_stub(method.node):
            raise _different(method, "an implementation", "none")
        return True

    def _origin(self, tree: SourceTree, cls: ClassRef) -> Status:
        path = cls.module.path
        committed = tree.committed(path)
        if committed is not None and committed != tree.read(path):
            before = finding(self, replace(tree.having({path: committed}), heads={}))
            if before.status not in (Status.UPSTREAM, Status.APPLIED):
                return Status.APPLIED
        if self.since is not None:
            return origin(tree, self.since)
        # Classes come and go between releases, so no table says when each got the methods. What upstream
        # writes here carries types, checks or its own logic; a bare one-line delegation is ours.
        method = find_method(tree, cls, CAPTURE)
        ours = method is not None and method.owner.node is cls.node and (_is_plain(method) or _is_own_code(method))
        return Status.APPLIED if ours else Status.UPSTREAM


def language_model(tree: SourceTree, cls: ClassRef) -> Inner | None:
    """What a wrapper builds its language model from; None where nothing in its `__init__` can be followed."""
    init = find_method(tree, cls, "__init__")
    if init is None:
        return None
    built: dict[str, tuple[int, list[ClassRef]]] = {}
    for attribute, value, line in assignments(init.node):
        for node in walk(value):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                made = resolve(tree, init.module, node.func.id, before=init.owner.node.lineno)
                if made:
                    built.setdefault(attribute, (line, []))[1].append(made)
    best: Inner | None = None
    for attribute, (line, classes) in built.items():
        supporting = tuple(c for c in _unique(classes) if all(find_method(tree, c, m) for m in ASKED_OF_TARGET))
        lacking = tuple(c for c in _unique(classes) if c not in supporting)
        inner = Inner(attribute, line, supporting, lacking)
        if (supporting and (best is None or not best.supporting)) or (
            best is None and attribute in ("language_model", "llm", "model", "thinker")
        ):
            best = inner
    return best


def headless(tree: SourceTree, cls: ClassRef) -> Headless | None:
    """The model without a head that a wrapper is built around, if it records layers; None where it is not so."""
    forward = find_method(tree, cls, "forward")
    if forward is None:
        return None
    calls = [n for n in walk(forward.node) if isinstance(n, ast.Call) and dotted(n.func) == "self.logits_processor"]
    if len(calls) != 1 or len(calls[0].args) < 2:
        return None
    hidden = dotted(calls[0].args[1])
    for attribute in ("model", "language_model"):
        found = built(tree, cls, attribute)
        taken = [
            n
            for n in walk(forward.node)
            if isinstance(n, ast.Assign)
            and hidden == dotted(n.targets[0])
            and isinstance(n.value, ast.Call)
            and any(dotted(part) == f"self.{attribute}" for part in walk(n.value))
        ]
        if len(found) == 1 and len(taken) == 1 and _records(tree, found[0]):
            return Headless(attribute, found[0], forward, taken[0], calls[0])
    return None


def _records(tree: SourceTree, model: ClassRef) -> bool:
    """Whether a model picks layers by layers_to_capture as it runs and gives the states back beside its own.

    It has to start with the attribute, and to have an embedding, which the draft model shares.
    """
    inits = [init for owner in lineage(tree, model) if (init := owner.own("__init__")) is not None]
    starts = {attribute for init in inits for attribute, _, _ in assignments(init)}
    nodes = list(forward_nodes(tree, model))
    picks = any(
        isinstance(n, ast.Compare) and [dotted(c) for c in n.comparators] == ["self.layers_to_capture"] for n in nodes
    )
    gives = any(
        isinstance(n, ast.Return) and isinstance(n.value, ast.Tuple) and "aux" in dotted(n.value.elts[-1])
        for n in nodes
    )
    return picks and gives and {"layers_to_capture", "embed_tokens"} <= starts


def _own_methods(tree: SourceTree, cls: ClassRef, own: Headless) -> Mapping[str, bytes]:
    """The methods that the wrapper lacks, and its forward handing on what was recorded."""
    wanted = [m for m in _OWN_CODE if find_method(tree, cls, m) is None]
    code = "\n\n".join(_OWN_CODE[m].format(inner=own.attribute) for m in wanted)
    edits = {cls.module.path: [splice.method_after(cls.node.body[-1], code)]}
    if not unpacks(tree, cls):
        last = [*own.logits.args, *(k.value for k in own.logits.keywords)][-1]
        end = (last.end_lineno or last.lineno, last.end_col_offset or 0)
        alone = not own.forward.module.lines[last.lineno - 1][: last.col_offset].strip()
        gap = f"\n{' ' * last.col_offset}" if alone else " "
        edits.setdefault(own.forward.module.path, []).extend(
            [
                splice.after(own.taken, _TAKE.format(hidden=dotted(own.taken.targets[0]))),
                splice.Edit(end, end, f",{gap}aux_hidden_states=aux_hidden_states"),
            ]
        )
    return {path: splice.edited(tree.files[path], found) for path, found in edits.items()}


def _through_forward(tree: SourceTree, cls: ClassRef, inner: Inner) -> None:
    """Raise Settled unless the wrapper's forward goes through the language model's, which unpacks what was captured."""
    forward = find_method(tree, cls, "forward")
    if forward is None:
        return
    target = f"self.{inner.attribute}"
    for node in walk(forward.node):
        if isinstance(node, ast.Call):
            handed = [*node.args, *(k.value for k in node.keywords)]
            if dotted(node.func) == target or any(dotted(a) == target for a in handed):
                return
    raise not_applicable(
        f"{cls.name}.forward does not go through {target}: captured states would not reach the logits processor",
        forward.module.path,
        forward.line,
    )


def _why_not(shown: str, missing: list[str], inner: Inner | None) -> str:
    lacks = f"{shown} lacks {', '.join(missing)}"
    if inner is None:
        return (
            f"{lacks}, and no language model that it builds could be followed: EAGLE-3 cannot use it as a target here"
        )
    return (
        f"{lacks}, and so does its self.{inner.attribute}, a {_names(inner.lacking)}: "
        "EAGLE-3 cannot use it as a target in this version"
    )


def _different(method: Method, wanted: str, found: str) -> Settled:
    return conflict(
        method.module.path, method.line, f"{method.owner.name}.{method.node.name}: looked for {wanted}, found {found}"
    )


def _hands_on(function: Function, name: str) -> bool:
    """Whether the function calls `name` of an attribute of self with its own arguments, and returns the answer."""
    arguments = function.args
    own = [a.arg for a in (*arguments.posonlyargs, *arguments.args)[1:]]
    aliases = _names_for_attributes(function)
    for node in walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name):
            continue
        if not _of_self(node.func.value, aliases):
            continue
        starred = any(isinstance(a, ast.Starred) for a in node.args)
        given = [dotted(a) for a in node.args] + [dotted(k.value) for k in node.keywords]
        enough = starred or [g for g in given if g in own][: _PASSED[name]] == own[: _PASSED[name]]
        returned = any(r.value and node in walk(r.value) for r in walk(function) if isinstance(r, ast.Return))
        if enough and (returned or name != GET):
            return True
    return False


def _names_for_attributes(function: Function) -> set[str]:
    """Local names that stand for an attribute of self: `lm = self.language_model`."""
    names: set[str] = set()
    for node in walk(function):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _of_self(value, names):
                names.add(name)
    return names


def _of_self(expression: ast.expr, names: set[str]) -> bool:
    """Whether an expression is an attribute of self, or of one; written out, by getattr, or by a local name."""
    match expression:
        case ast.Attribute(value=ast.Name(id="self")):
            return True
        case ast.Attribute(value=inner):
            return _of_self(inner, names)
        case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="self"), ast.Constant(), *_]):
            return True
        case ast.Name(id=name):
            return name in names
    return False


def _takes(function: Function, count: int) -> bool:
    """Whether the method can be called with `count` arguments; for the layer ids, also with none."""
    arguments = function.args
    positional = len(arguments.posonlyargs) + len(arguments.args) - 1
    required = positional - len(arguments.defaults)
    most = 99 if arguments.vararg else positional
    least = 0 if count == 1 else count
    return required <= least and count <= most


def _is_stub(function: Function) -> bool:
    code = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    return all(isinstance(n, ast.Pass | ast.Raise) for n in code)


def _is_plain(method: Method) -> bool:
    body = method.node.body
    typed = method.node.returns or any(a.annotation for a in method.node.args.args)
    return len(body) == 1 and not typed and _hands_on(method.node, method.node.name)


def _is_own_code(method: Method) -> bool:
    code = (_OWN_CODE[CAPTURE].format(inner=attribute) for attribute in ("model", "language_model"))
    return any(ast.unparse(method.node) == ast.unparse(ast.parse(text)) for text in code)


def _arguments(name: str) -> str:
    return {CAPTURE: "(layer_ids) and ()", GET: "()", SET: "(embed, head)"}[name]


def _names(classes: tuple[ClassRef, ...]) -> str:
    return " or ".join(c.name for c in classes)


def _unique(classes: list[ClassRef]) -> list[ClassRef]:
    return list({(c.module.path, c.node.lineno): c for c in classes}.values())


_PROOF = "the methods of the patched class run, and the language model receives each call with its arguments"

KIMI_K25 = Delegation(
    name="kimi-k25-eagle3",
    class_name="KimiK25ForConditionalGeneration",
    about=About(
        reason="without it the server ends with an AttributeError after the target has loaded (sglang PR 19689)",
        upstream="since 0.5.10",
        precondition="the class is there (since 0.5.9) and its language model supports capture",
        end_state="KimiK25ForConditionalGeneration hands set_eagle3_layers_to_capture(layer_ids=None), "
        "get_embed_and_head() and set_embed_and_head(embed, head) to self.language_model",
        proof=_PROOF,
    ),
    methods=(CAPTURE, GET, SET),
    path=KIMI,
    since=Version(0, 5, 10),
    must_delegate=True,
)


def eagle3_capture(class_name: str) -> Delegation:
    """The same end state for any wrapper class of the tree."""
    return Delegation(
        name=f"eagle3-capture {class_name}",
        class_name=class_name,
        about=About(
            reason="a vision-language wrapper that does not pass the worker's calls on cannot be an EAGLE-3 target",
            upstream="differs by class; read from the tree",
            precondition="the class builds a language model, found in its source, that supports capture, or a model "
            "that records layers without methods for it",
            end_state=f"{class_name} answers {CAPTURE} and {GET}, itself or through its language model",
            proof=_PROOF,
        ),
        methods=ASKED_OF_TARGET,
    )


def answer(tree: SourceTree, cls: ClassRef) -> Target:
    """What the class does as a target of EAGLE-3, and what it does once the patch that there is for it is made."""
    found = read(tree, cls)
    if found.capture in (Capture.YES, Capture.DEPENDS, Capture.UNKNOWN):
        return found
    patch = replace(eagle3_capture(cls.name), path=cls.module.path)
    if finding(patch, tree).status is not Status.NEEDED:
        return found
    after = tree.having(patch.rewrite(tree))
    again = [read(after, c) for c in find_class(after, cls.module.path, cls.name)]
    if len(again) != 1 or again[0].capture not in (Capture.YES, Capture.DEPENDS):
        return found
    return replace(again[0], capture=Capture.PATCH, why=found.why)
