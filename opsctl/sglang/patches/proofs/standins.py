# Sent to the host's own Python, 3.8 or later.
# ruff: noqa: UP031, B905, RUF005
# mypy: disable-error-code="no-untyped-def,no-untyped-call,attr-defined,assignment,arg-type,var-annotated"
"""Runs functions lifted out of patched source, on stand-ins for tensors and modules. Standard library only.

Sent to the interpreter that serves. Standard input: {"files": {path: text}, "proofs": [{"proof": name, ...}]}.
Standard output: [{"proof": name, "failures": [text]}].
"""

import __future__

import ast
import json
import sys
from types import SimpleNamespace

HIDDEN, AUX, VOCAB, DRAFT_VOCAB = 4, 3, 64, 8


class Tensor:
    """Whole numbers with a dtype: what a loader looks at."""

    def __init__(self, values, dtype="torch.int64"):
        self.values, self.dtype, self.shape = list(values), dtype, (len(values),)

    def tolist(self):
        return list(self.values)

    def __add__(self, other):
        return Tensor([a + b for a, b in zip(self.values, other.values)], self.dtype)


class Features:
    """Rows of features: only the shape counts."""

    def __init__(self, rows, width):
        self.shape = (rows, width)


class Parameter:
    def __init__(self):
        self.loaded = []

    def weight_loader(self, parameter, tensor, shard=None):
        parameter.loaded.append((shard, tensor))


def lift(text, class_name, methods, names):
    """A class with just these methods of the one in `text`: no base, no decorators, annotations unread."""
    tree = ast.parse(text)
    found = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == class_name]
    if not found:
        raise LookupError("no class " + class_name)
    node = found[-1]
    node.bases, node.keywords, node.decorator_list = [], [], []
    node.body = [n for n in node.body if isinstance(n, ast.FunctionDef) and (methods is None or n.name in methods)]
    for function in node.body:
        function.decorator_list = []
    module = ast.Module(body=[node], type_ignores=[])
    code = compile(module, class_name, "exec", __future__.annotations.compiler_flag)
    namespace = dict(names)
    exec(code, namespace)
    return namespace[class_name]


def torch_names():
    torch = SimpleNamespace(arange=lambda n, **_: Tensor(range(n)), int64="torch.int64")
    return {
        "torch": torch,
        "default_weight_loader": Parameter().weight_loader,
        "logger": SimpleNamespace(warning=print),
    }


def parameters(layer):
    names = ["model.embed_tokens.weight", "model.fc.weight", "model.norm.weight", "lm_head.weight"]
    parts = ["self_attn.qkv_proj", "self_attn.o_proj", "mlp.gate_up_proj", "mlp.down_proj"]
    parts += ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    return {name: Parameter() for name in names + ["model.%s.%s.weight" % (layer, p) for p in parts]}


def checkpoint(layer, prefix=""):
    parts = ["self_attn.%s_proj" % p for p in "qkvo"] + ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    parts += ["input_layernorm", "hidden_norm", "post_attention_layernorm"]
    names = ["%s.%s" % (layer, p) for p in parts] + ["fc", "norm"]
    tensors = [(prefix + n + ".weight", Tensor([i])) for i, n in enumerate(names)]
    return tensors + [("lm_head.weight", Tensor([99]))]


class Drafter:
    """The lifted loader with the attributes it uses."""

    def __init__(self, files, proof, **config):
        cls = lift(files[proof["path"]], proof["class"], None, torch_names())
        self.model = cls.__new__(cls)
        own = {"hidden_size": HIDDEN, "vocab_size": VOCAB, "draft_vocab_size": DRAFT_VOCAB, "eagle_config": None}
        own.update(config)
        self.model.config = SimpleNamespace(**own)
        self.model.load_lm_head_from_target = own["draft_vocab_size"] is None
        self.model.hot_token_id = None
        self.model.model = SimpleNamespace(has_fc=False)
        self.params = parameters(proof["layer"])
        self.model.named_parameters = lambda *_, **__: list(self.params.items())

    def load(self, tensors):
        """The message of the error, None where the tensors load."""
        try:
            self.model.load_weights(iter(tensors))
        except (ValueError, AssertionError) as error:
            return str(error)
        return None

    def filled(self):
        return {n: sorted((str(s), t.values) for s, t in p.loaded) for n, p in self.params.items() if p.loaded}


def prove_loader_names(files, proof):
    wanted = None
    for layer, prefix in (("midlayer", ""), ("layers.0", ""), ("layers.0", "model."), ("midlayer", "model.")):
        drafter = Drafter(files, proof)
        message = drafter.load(checkpoint(layer, prefix))
        filled = drafter.filled()
        if message or len(filled) != len(drafter.params) - 1:  # all but the embedding, which the checkpoint lacks
            yield "%s%s.* does not fill the draft layer: %s" % (prefix, layer, message or ", ".join(filled))
        elif wanted is not None and filled != wanted:
            yield "%s%s.* fills other parameters than midlayer.*" % (prefix, layer)
        wanted = wanted or filled


def prove_loader_strict(files, proof):
    layer = proof["layer"]
    whole = checkpoint(layer)
    d2t = ("d2t", Tensor([0, 0, 1, 1, 5, 5, 9, 9]))
    t2d = ("t2d", Tensor([1] * VOCAB, "torch.bool"))
    sound = {
        "a complete checkpoint": (whole + [d2t, t2d], {}),
        "one with an embedding": (whole + [("embed_tokens.weight", Tensor([7]))], {}),
        "one without a head and draft_vocab_size null": (whole[:-1], {"draft_vocab_size": None}),
        "one without fc for a draft model without auxiliary states": (
            [t for t in whole if "fc." not in t[0]],
            {"eagle_config": {"use_aux_hidden_state": False}},
        ),
    }
    for what, (tensors, config) in sound.items():
        message = Drafter(files, proof, **config).load(tensors)
        if message:
            yield "%s does not load: %s" % (what, message)
    broken = {
        "no head": (whole[:-1], "lm_head.weight", {}),
        "no v_proj": ([t for t in whole if "v_proj" not in t[0]], "qkv_proj", {}),
        "a surplus tensor": (whole + [("%s.self_attn.q_norm.weight" % layer, Tensor([1]))], "q_norm", {}),
        "a misnamed tensor": ([(n.replace("hidden_norm", "hidden_nrm"), t) for n, t in whole], "hidden_nrm", {}),
        "no embedding of its own though the hidden sizes differ": (
            whole,
            "embed_tokens",
            {"target_hidden_size": 2 * HIDDEN},
        ),
    }
    for what, (tensors, named, config) in broken.items():
        message = Drafter(files, proof, **config).load(tensors)
        if message is None or named not in message:
            yield "%s is not an error that names %s: %s" % (what, named, message)
    drafter = Drafter(files, proof)
    if drafter.load(whole) or drafter.load(whole[:2]):
        yield "a later update of some weights does not load"


def prove_d2t_guard(files, proof):
    sound = {
        "offsets": [0, 0, 1, 1, 5, 5, 9, 9],
        "offsets in another order": [9, 9, 9, -3, -3, -3, 0, 0],
        "offsets that could be ids": [0, 3, 6, 9, 12, 15, 18, 21],
    }
    for what, table in sound.items():
        drafter = Drafter(files, proof)
        message = drafter.load(checkpoint(proof["layer"]) + [("d2t", Tensor(table))])
        if message or drafter.model.hot_token_id.tolist() != [i + v for i, v in enumerate(table)]:
            yield "%s do not load: %s" % (what, message)
    absolute = [2, 9, 17, 21, 30, 44, 50, 63]
    broken = {
        "not integer": Tensor([0.0] * DRAFT_VOCAB, "torch.float32"),
        "length": Tensor([0] * (DRAFT_VOCAB - 1)),
        "vocabulary": Tensor([0, 0, 1, 1, 5, 5, 9, VOCAB]),
        "repeats": Tensor([0, 0, -1, 0, 0, 0, 0, 0]),
        "absolute": Tensor(absolute),
    }
    for word, table in broken.items():
        message = Drafter(files, proof).load([("d2t", table)] + checkpoint(proof["layer"]))
        if message is None or word not in message:
            yield "%s is not an error that says %r: %s" % (table.tolist(), word, message)


def prove_fc_guard(files, proof):
    names = {"torch": SimpleNamespace(cat=lambda parts, dim=0: parts[0])}
    cls = lift(files[proof["path"]], proof["class"], None, names)

    def run(width, rows=2, decode=False, has_fc=True):
        model, used = cls.__new__(cls), []

        def fc(features):
            used.append(features.shape[-1])
            return Features(features.shape[0], HIDDEN)

        fc.in_features = AUX * HIDDEN
        layer = lambda positions, embeds, hidden, batch, residual: (hidden, hidden)  # noqa: E731
        for name, value in {
            "fc": fc,
            "has_fc": has_fc,
            "input_norm": None,
            "fc_norm": None,
            "num_aux_hidden_states": AUX,
            "is_mrope_enabled": False,
            "midlayer": layer,
            "layers": [layer],
            "norm": lambda hidden, residual: (hidden, residual),
            "norm_output": False,
        }.items():
            setattr(model, name, value)
        mode = SimpleNamespace(
            is_decode_or_idle=lambda: decode,
            is_extend=lambda *_, **__: not decode,
            is_draft_extend=lambda *_, **__: False,
            is_draft_extend_v2=lambda: False,
        )
        batch = SimpleNamespace(
            forward_mode=mode,
            contains_mm_inputs=lambda: False,
            mm_input_embeds=None,
            spec_info=SimpleNamespace(hidden_states=Features(rows, width)),
        )
        try:
            model.forward(None, None, batch, Features(rows, HIDDEN))
        except ValueError as error:
            return str(error)
        return used

    if run(AUX * HIDDEN) != [AUX * HIDDEN]:
        yield "captured features do not go through fc"
    for what, found in (
        ("the draft model's own states while drafting", run(HIDDEN, decode=True)),
        ("an empty batch", run(HIDDEN, rows=0)),
        ("a checkpoint without fc", run(HIDDEN, has_fc=False)),
    ):
        if found != []:
            yield "%s do not pass: %s" % (what, found)
    message = run(HIDDEN)
    if not isinstance(message, str) or "EAGLE3" not in message or "use_aux_hidden_state" not in message:
        yield "features that were not captured do not raise an error that names the causes: %s" % (message,)


def prove_delegation(files, proof):
    calls = []

    class Inner:
        def __getattr__(self, name):
            def call(*args, **kwargs):
                calls.append((name, args + tuple(kwargs.values())))
                return name

            return call

    cls = lift(files[proof["path"]], proof["class"], proof["methods"], {})
    model = cls.__new__(cls)
    setattr(model, proof["inner"], Inner())
    given = {"set_eagle3_layers_to_capture": ([1, 2, 3],), "get_embed_and_head": (), "set_embed_and_head": ("e", "h")}
    for name in proof["methods"]:
        answer = getattr(model, name)(*given[name])
        if calls[-1:] != [(name, given[name])] or (name == "get_embed_and_head" and answer != name):
            yield "%s does not hand %s to self.%s: %s" % (name, given[name], proof["inner"], calls[-1:])


def prove_own_capture(files, proof):
    cls = lift(files[proof["path"]], proof["class"], proof["methods"], {})
    model = cls.__new__(cls)
    inner = SimpleNamespace(layers=list(range(40)), layers_to_capture=[], embed_tokens=SimpleNamespace(weight="e"))
    setattr(model, proof["inner"], inner)
    model.lm_head = SimpleNamespace(weight="h")
    for ids, wanted in ((None, [2, 20, 37]), ([1, 19, 36], [2, 20, 37])):
        if "set_eagle3_layers_to_capture" in proof["methods"]:
            model.set_eagle3_layers_to_capture(ids)
            if inner.layers_to_capture != wanted:
                yield "layer ids %s of 40 layers become %s instead of %s" % (ids, inner.layers_to_capture, wanted)
    if "get_embed_and_head" in proof["methods"] and model.get_embed_and_head() != ("e", "h"):
        yield "get_embed_and_head gives %s" % (model.get_embed_and_head(),)


def prove_graph_layer_ids(files, proof):
    ids = [1, 29, 57]
    for path in proof["paths"]:
        for node in ast.walk(ast.parse(files[path])):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
                continue
            if getattr(node.value.func, "attr", None) != "set_eagle3_layers_to_capture":
                continue
            got = []
            model = SimpleNamespace(set_eagle3_layers_to_capture=lambda layer_ids=None, got=got: got.append(layer_ids))
            runner = SimpleNamespace(model=model, eagle_aux_hidden_state_layer_ids=ids)
            names = {"self": SimpleNamespace(model=model, model_runner=runner, eagle_aux_hidden_state_layer_ids=ids)}
            exec(compile(ast.Module(body=[node], type_ignores=[]), path, "exec"), names)
            if got != [ids]:
                yield "%s:%d captures %s instead of the configured layers" % (path, node.lineno, got)


def main():
    asked = json.load(sys.stdin)
    answers = []
    for proof in asked["proofs"]:
        run = globals()["prove_" + proof["proof"]]
        try:
            failures = list(run(asked["files"], proof))
        except Exception as error:  # noqa: BLE001  whatever the patched code does is the finding
            failures = ["%s: %s" % (type(error).__name__, error)]
        answers.append({"proof": proof["proof"], "failures": failures})
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
