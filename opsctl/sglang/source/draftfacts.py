"""What a source tree does with the draft model's tensors, head, embedding, token table and captured layers."""

from __future__ import annotations

import ast

from opsctl.sglang.patches import ALL, Status, finding
from opsctl.sglang.patches.base import conflict, needed_module, not_applicable, walk
from opsctl.sglang.patches.drafter import CLASS, drafter_class, inner_model, layer_attribute, loader
from opsctl.sglang.source.fact import Fact, proved
from opsctl.sglang.source.symbols import Module, called_name, dotted, find_method, parse
from opsctl.sglang.source.tree import DRAFTER, METRICS, WORKERS, SourceTree

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
