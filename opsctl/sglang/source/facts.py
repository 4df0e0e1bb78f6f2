"""What a source tree does with a draft model and its target: each fact with the file, and the lines that prove it.

`gather` is pure; what the draft model and the target meet in the tree is read from syntax, never from the version.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from opsctl.sglang import releases
from opsctl.sglang.diagnosis.evidence import Source, SourceFact
from opsctl.sglang.patches import ALL, Status, finding
from opsctl.sglang.patches.base import Settled, conflict, needed_module, not_applicable, walk
from opsctl.sglang.patches.capture import KIMI_K25, answer, eagle3_capture, language_model
from opsctl.sglang.patches.drafter import CLASS, drafter_class, inner_model, layer_attribute, loader
from opsctl.sglang.releases import Capture, Target
from opsctl.sglang.source.symbols import (
    Method,
    Module,
    NotPython,
    called_name,
    dotted,
    find_method,
    parse,
)
from opsctl.sglang.source.targets import ASKED_OF_TARGET, CAPTURE, read
from opsctl.sglang.source.tree import DRAFTER, METRICS, WORKERS, SourceTree

_LONGEST = 12  # lines of a snippet
_SETS = ("capture_aux_hidden_states", "layers_to_capture")  # what a class that captures itself sets


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


_PATCH = {patch.name: patch for patch in ALL}
_THERE = (Status.UPSTREAM, Status.APPLIED)


def d2t(tree: SourceTree) -> Fact:
    """Whether `d2t` is read as offsets or as target ids."""
    found = loader(tree)
    branch = found.branch("d2t")
    if branch is None:
        raise conflict(DRAFTER, found.loop.lineno, f"{CLASS}.load_weights does not read d2t")
    statement = next(
        (s for s in ast.walk(branch) if isinstance(s, ast.Assign) and "hot_token_id" in dotted(s.targets[0])), None
    )
    if statement is None:
        raise conflict(DRAFTER, branch.lineno, f"{CLASS}.load_weights does not make hot_token_id of d2t")
    if any(called_name(n) == "arange" for n in ast.walk(statement)):
        return proved(
            tree, found.module, statement, "offsets", "d2t holds offsets: target id = draft id + d2t[draft id]"
        )
    return proved(tree, found.module, statement, "absolute", "d2t is used as it is: it must hold target ids")


def t2d(tree: SourceTree) -> Fact:
    """Whether `t2d` is looked at."""
    found = loader(tree)
    branch = found.branch("t2d")
    if branch is None:
        return proved(tree, found.module, found.loop, "unknown", "t2d is a tensor like any other")
    skipped = all(isinstance(s, ast.Continue | ast.Pass) for s in branch.body)
    return proved(
        tree, found.module, branch, "ignored" if skipped else "read", "t2d is skipped" if skipped else "t2d is read"
    )


def d2t_checked(tree: SourceTree) -> Fact:
    """Whether a wrong `d2t` is noticed."""
    return _by_patch(tree, "eagle3-d2t-guard", "checked", "unchecked")


def layer_names(tree: SourceTree) -> Fact:
    """Which names of the draft layer the loader takes."""
    return _by_patch(tree, "eagle3-loader-names", "midlayer, layers.0", "midlayer")


def unused_tensors(tree: SourceTree) -> Fact:
    """What happens to tensors that no parameter takes, and to parameters without a tensor."""
    return _by_patch(tree, "eagle3-loader-strict", "error", "dropped")


def graph_layer_ids(tree: SourceTree) -> Fact:
    """Which layers are captured in CUDA graphs."""
    return _by_patch(tree, "eagle3-graph-layer-ids", "configured", "default")


def fc_test(tree: SourceTree) -> Fact:
    """What happens to features of the wrong width."""
    return _by_patch(tree, "eagle3-fc-guard", "error", "skipped")


def draft_layers(tree: SourceTree) -> Fact:
    """How many layers a draft model may have."""
    model = inner_model(tree)
    attribute, line = layer_attribute(model)
    many = attribute == "layers"
    says = "any number of layers" if many else "one layer, self.midlayer"
    return Fact("any" if many else "one", says, tree.shown(model.module.path), line, model.module.snippet(line))


def fc_width(tree: SourceTree) -> Fact:
    """How many captured states `fc` takes."""
    model = inner_model(tree)
    init = model.own("__init__")
    for statement in init.body if init else ():
        if isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == "self.fc":
            names = {dotted(n) for n in ast.walk(statement.value)}
            if "self.num_aux_hidden_states" in names:
                return proved(
                    tree,
                    model.module,
                    statement,
                    "configured",
                    "one hidden state per configured layer id, three by default",
                )
            return proved(tree, model.module, statement, "3", "three hidden states, whatever is configured")
    raise conflict(DRAFTER, model.node.lineno, f"looked for self.fc in {model.name}.__init__, found none")


def lm_head(tree: SourceTree) -> Fact:
    """When the head is borrowed from the target."""
    cls = drafter_class(tree)
    init = cls.own("__init__")
    for node in ast.walk(init) if init else ():
        if isinstance(node, ast.If) and "draft_vocab_size" in ast.unparse(node.test):
            for inner in node.body:
                if isinstance(inner, ast.Assign) and dotted(inner.targets[0]) == "self.load_lm_head_from_target":
                    says = "draft_vocab_size null: the target's head; a number: the checkpoint must have lm_head.weight"
                    return proved(tree, cls.module, node, "borrowed if null", says)
    return Fact("own", "the checkpoint must have lm_head.weight", tree.shown(DRAFTER), cls.node.lineno)


def head_sharing(tree: SourceTree) -> Fact:
    """Whether the worker leaves a draft model's own head alone."""
    module, call, kept = _sharing(tree)
    says = "an own head is kept (set_embed); only a borrowed one is set (set_embed_and_head)"
    if not kept:
        says = "the target's head replaces that of every EAGLE-3 draft model (set_embed_and_head)"
    return proved(tree, module, call, "own head kept" if kept else "target's head", says)


def embedding_sharing(tree: SourceTree) -> Fact:
    """What `set_embed` does, followed from the worker to the class that defines it."""
    worker, call, _ = _sharing(tree)
    method = find_method(tree, drafter_class(tree), "set_embed")
    if method is None:
        raise not_applicable(f"{CLASS} has no set_embed", DRAFTER, drafter_class(tree).node.lineno)
    early = next(
        (n for n in method.node.body if isinstance(n, ast.If) and "target_hidden_size" in ast.unparse(n.test)), None
    )
    where = f"called in {tree.shown(worker.path)}:{call.lineno}, defined by {method.owner.name}"
    if early:
        says = f"the target's embedding is used unless target_hidden_size differs from hidden_size ({where})"
        return proved(tree, method.module, method.node, "shared if same size", says)
    return proved(tree, method.module, method.node, "shared", f"the target's embedding is always used ({where})")


def hot_token_id(tree: SourceTree) -> Fact:
    """Whether drafted ids are mapped to target ids."""
    for path in WORKERS:
        module = parse(tree, path)
        for node in ast.walk(module.tree) if module else ():
            if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript)):
                continue
            if dotted(node.value.value) == "self.hot_token_id" and "topk_index" in dotted(node.targets[0]):
                assert module is not None
                return proved(tree, module, node, "mapped", "drafted ids become target ids through hot_token_id")
    raise not_applicable("no worker of this tree maps drafted ids through hot_token_id")


def accept_rate(tree: SourceTree) -> Fact:
    """What the log of this tree calls the accept rate."""
    for path in METRICS:
        module = parse(tree, path)
        for node in ast.walk(module.tree) if module else ():
            if not (isinstance(node, ast.Assign) and dotted(node.targets[0]) == "spec_accept_rate"):
                continue
            if isinstance(node.value, ast.Constant):
                continue
            assert module is not None
            text = ast.unparse(node.value)
            if "draft" in text.partition("/")[0]:
                says = (
                    "accepted drafts / (verify steps * (draft tokens - 1)): 0 for a draft model that is never accepted"
                )
                return proved(tree, module, node, "drafts only", says)
            says = (
                "accepted tokens with the bonus token / (verify steps * draft tokens): 1/draft tokens if never accepted"
            )
            return proved(tree, module, node, "with bonus token", says)
    raise not_applicable("this tree logs no accept rate")


def dp_draft_extend(tree: SourceTree) -> Fact:
    """How many tokens the draft model's pass over what was accepted announces to the other ranks of DP attention."""
    module = needed_module(tree, WORKERS[1])
    for function in ast.walk(module.tree):
        if not (isinstance(function, ast.FunctionDef) and function.name == "_draft_extend_for_decode"):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.keyword) and node.arg == "num_tokens_for_logprob_per_batch":
                one = isinstance(node.value, ast.Constant) and node.value.value == 1
                says = "one token of each sequence" if one else "every token of each sequence"
                return proved(tree, module, node.value, "one" if one else "all", f"announced: {says}")
        return proved(tree, module, function, "all", "it announces no number of its own")
    raise not_applicable(f"{module.path} has no _draft_extend_for_decode", module.path)


def layer_quantization(tree: SourceTree, target: str) -> Fact:
    """Whether the target's own layer that drafts is built with the quantisation that its checkpoint says."""
    name = releases.drafting_class(target)
    if name is None:
        raise not_applicable(f"{target} has no layer of its own that drafts")
    cls = eagle3_capture(name).class_in(tree)
    init = find_method(tree, cls, "__init__")
    if init is None:
        raise not_applicable(f"{name} has no __init__", cls.module.path, cls.node.lineno)
    known = {dotted(n.targets[0]): n.value for n in ast.walk(init.node) if isinstance(n, ast.Assign)}
    for node in ast.walk(init.node):
        if not (isinstance(node, ast.Assign) and dotted(node.targets[0]) == "quant_config"):
            continue
        match node.value:
            case ast.IfExp(test=test, orelse=ast.Constant(value=None)):
                asked = ast.unparse(known.get(dotted(test), test))
                if "speculative_draft_model_quantization" in asked and "quant_config" not in asked:
                    says = f"{name} is built without it unless --speculative-draft-model-quantization is given"
                    return proved(tree, init.module, node, "dropped", says)
    return proved(tree, init.module, init.node, "kept", f"{name} is built with it")


def _by_patch(tree: SourceTree, name: str, there: str, lacking: str) -> Fact:
    """A fact that is the end state of a patch."""
    found = finding(_PATCH[name], tree)
    file = tree.shown(found.path) if found.path else None
    value = {Status.NEEDED: lacking, **dict.fromkeys(_THERE, there)}.get(found.status)
    module = None
    if found.path and found.line and value:
        module = parse(tree, found.path)
    snippet = module.snippet(found.line, found.line + 2) if module and found.line else ""
    return Fact(value, found.reason, file, found.line, snippet)


def _sharing(tree: SourceTree) -> tuple[Module, ast.Call, bool]:
    """Where the worker hands the target's embedding on, and whether a draft model's own head is left alone."""
    for path in WORKERS:
        module = parse(tree, path)
        for node in ast.walk(module.tree) if module else ():
            if isinstance(node, ast.If) and "is_eagle3" in ast.unparse(node.test):
                calls = {called_name(n): n for n in walk(node.body) if isinstance(n, ast.Call)}
                assert module is not None
                if "set_embed" in calls:
                    return module, calls["set_embed"], True
                if "set_embed_and_head" in calls:
                    return module, calls["set_embed_and_head"], False
    needed_module(tree, WORKERS[1])
    raise not_applicable("no worker of this tree shares the target's embedding with an EAGLE-3 draft model")


def capture(tree: SourceTree, target: str) -> Fact:
    """Whether the class has what the worker asks of a target, and through which inner class."""
    cls = eagle3_capture(target).class_in(tree)
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


def _capturing(tree: SourceTree, target: str) -> Method:
    """The method that sets the layers to capture, followed through wrappers."""
    cls = eagle3_capture(target).class_in(tree)
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


# Name -> how it is read. The order is that of the report.
_DRAFT: dict[str, Callable[[SourceTree], Fact]] = {
    "d2t": d2t,
    "t2d": t2d,
    "d2t-checked": d2t_checked,
    "layer-names": layer_names,
    "unused-tensors": unused_tensors,
    "draft-layers": draft_layers,
    "fc-width": fc_width,
    "fc-test": fc_test,
    "lm-head": lm_head,
    "head-sharing": head_sharing,
    "embedding-sharing": embedding_sharing,
    "hot-token-id": hot_token_id,
    "graph-layer-ids": graph_layer_ids,
    "accept-rate": accept_rate,
}
_TARGET: dict[str, Callable[[SourceTree, str], Fact]] = {
    "capture": capture,
    "layer-id-rule": layer_id_rule,
    "aux-after-reduce": aux_after_reduce,
    "layer-quantization": layer_quantization,
}
# Of the worker, whatever the draft model is.
_WORKER: dict[str, Callable[[SourceTree], Fact]] = {"dp-draft-extend": dp_draft_extend}
DEFAULT_TARGETS = (KIMI_K25.class_name,)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of a tree. `targets`: model class -> its facts. `effects`: -> what it does."""

    tree: SourceTree
    draft: dict[str, Fact]
    worker: dict[str, Fact]
    targets: dict[str, dict[str, Fact]]
    effects: dict[str, Target]

    def evidence(self, target: str | None = None) -> Source:
        """The facts as `diagnose` weighs them: each is true in the sound case."""
        own = self.targets.get(target or DEFAULT_TARGETS[0], {})

        def holds(fact: Fact | None, *sound: str) -> SourceFact:
            if fact is None or fact.value is None:
                return SourceFact(None, detail=fact.says if fact else "")
            return SourceFact(fact.value in sound, fact.place, fact.says)

        return Source(
            target_methods=holds(own.get("capture"), "own", "delegated"),
            d2t_offsets=holds(self.draft["d2t"], "offsets"),
            hot_ids=holds(self.draft["hot-token-id"], "mapped"),
            own_head=holds(self.draft["head-sharing"], "own head kept"),
            takes_layers0=holds(self.draft["layer-names"], "midlayer, layers.0"),
            ids_in_graphs=holds(self.draft["graph-layer-ids"], "configured"),
            aux_complete=holds(own.get("aux-after-reduce"), "after"),
            layer_quantized=holds(own.get("layer-quantization"), "kept"),
            dp_whole=holds(self.worker["dp-draft-extend"], "all"),
            checkout=self.tree.root if self.tree.commit else None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "tree": self.tree.root,
            "commit": self.tree.commit,
            "dirty": list(self.tree.dirty),
            "version": str(self.tree.version) or None,
            "facts": [{"name": name, **fact.to_json()} for name, fact in (self.draft | self.worker).items()],
            "targets": [
                {"class": target, "facts": [{"name": name, **fact.to_json()} for name, fact in facts.items()]}
                for target, facts in self.targets.items()
            ],
        }


def gather(tree: SourceTree, targets: Iterable[str] = DEFAULT_TARGETS) -> Facts:
    """Read every fact. What cannot be told has value None and says why."""
    names = tuple(targets)
    return Facts(
        tree,
        {name: _told(tree, partial(read, tree)) for name, read in _DRAFT.items()},
        {name: _told(tree, partial(read, tree)) for name, read in _WORKER.items()},
        {t: {name: _told(tree, partial(read, tree, t)) for name, read in _TARGET.items()} for t in names},
        {t: _effect(tree, t) for t in names},
    )


def _effect(tree: SourceTree, target: str) -> Target:
    try:
        return answer(tree, eagle3_capture(target).class_in(tree))
    except Settled as settled:
        return Target(Capture.UNKNOWN, why=settled.finding.reason)
    except NotPython as broken:
        return Target(Capture.UNKNOWN, why=f"{broken.path}:{broken.line} is not valid Python: {broken.message}")


def _told(tree: SourceTree, read: Callable[[], Fact]) -> Fact:
    try:
        return read()
    except Settled as settled:
        found = settled.finding
        return Fact(None, found.reason, tree.shown(found.path) if found.path else None, found.line)
    except NotPython as broken:
        return Fact(None, f"the file is not valid Python: {broken.message}", tree.shown(broken.path), broken.line)
