"""The loader names what it did not load and what it did not use, instead of serving with it."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from opsctl.sglang.patches.base import IN_NONE, About, Standing, Status, called_from, conflict, first_raise, identifiers
from opsctl.sglang.patches.drafter import CLASS, Loader, loader, loading_calls, stacked_loop
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import assignments, called_name, dotted, find_method
from opsctl.sglang.source.tree import DRAFTER, SourceTree

_RECORDS = {"add", "append", "update", "extend", "discard", "remove", "pop", "setdefault"}

_CHECK = '''
def _check_loaded(self, params_dict, loaded_params, unused_tensors, stacked_params):
    """Raise if the checkpoint does not fit: its drafts would hardly ever be accepted."""
    if getattr(self, "_weights_complete", False):
        return  # a later update of some of the weights

    # The target provides the embedding if the hidden sizes agree, and the head of a
    # draft model without its own.
    config = self.config
    provided = ["k_scale", "v_scale", "input_scale"]  # have usable defaults
    if getattr(config, "target_hidden_size", config.hidden_size) == config.hidden_size:
        provided.append("embed_tokens.")
    if self.load_lm_head_from_target:
        provided.append("lm_head.")
    eagle_config = getattr(config, "eagle_config", None) or {}
    if not eagle_config.get("use_aux_hidden_state", True):
        provided.append("model.fc.")  # not used without auxiliary hidden states

    missing = []
    for name in params_dict:
        if (name, None) in loaded_params or any(part in name for part in provided):
            continue
        shards = [shard for part, _, shard in stacked_params if part in name]
        lacking = [shard for shard in shards if (name, shard) not in loaded_params]
        missing += [f"{name} ({shard})" for shard in lacking] if shards else [name]
    unused = [name for name in unused_tensors if "rotary_emb.inv_freq" not in name]
    if missing or unused:
        raise ValueError(
            "The draft model does not fit its checkpoint. Parameters that nothing was "
            f"loaded into: {', '.join(missing) or 'none'}. "
            f"Tensors that no parameter takes: {', '.join(unused) or 'none'}."
        )
    self._weights_complete = True
'''


class LoaderStrict:
    name = "eagle3-loader-strict"
    about = About(
        reason="a missing or misnamed tensor leaves a parameter uninitialised; the server runs, drafts are rejected",
        upstream=IN_NONE,
        precondition=f"{CLASS}.load_weights puts each tensor into params_dict[name] or skips it",
        end_state="load_weights ends with an error for parameters without a tensor and tensors without a parameter",
        proof="load_weights runs on stand-in tensors: complete checkpoints load (also without embedding, and without a "
        "head when draft_vocab_size is null); a missing, a misnamed and a surplus tensor are errors that name it",
        oldest="0.5.2",
    )

    def look(self, tree: SourceTree) -> Standing:
        found = loader(tree)
        rest = called_from(tree, found.method, found.rest)
        raised = first_raise(rest)
        if raised is None:
            _places(tree, found)
            return Standing(
                Status.NEEDED,
                DRAFTER,
                found.loop.lineno,
                "a guard: load_weights drops tensors it does not know and never counts parameters",
            )
        recorded = _recorded(found) & identifiers(found.rest)
        if len(recorded) >= 2:
            return Standing(
                Status.APPLIED,
                DRAFTER,
                raised.lineno,
                f"load_weights ends with a check of {', '.join(sorted(recorded))}",
            )
        raise conflict(
            DRAFTER,
            raised.lineno,
            "load_weights ends with another check; looked for one of parameters without a tensor and of unused tensors",
        )

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        found = loader(tree)
        table, stacked, calls, parameters = _places(tree, found)
        edits = [
            splice.after(
                table,
                """
                loaded_params = set()  # (parameter, shard or None)
                unused_tensors = []
                """,
            ),
            splice.before(found.module, found.loop.body[0], f"checkpoint_name = {found.name}"),
        ]
        for branch, call in calls:
            assert isinstance(branch.test, ast.Compare)
            shard = dotted(call.args[2]) if len(call.args) > 2 else "None"
            edits.append(splice.after(branch.body[-1], f"loaded_params.add(({dotted(branch.test.left)}, {shard}))"))
            if branch.orelse:
                edits.append(splice.before(found.module, branch.orelse[0], "unused_tensors.append(checkpoint_name)"))
            else:
                edits[-1] = _with_else(branch, edits[-1])
        mapping = ast.get_source_segment(found.module.text, stacked.iter)
        last = found.method.node.body[-1]
        edits.append(
            splice.after(
                last,
                f"""
                self._check_loaded(
                    {parameters}, loaded_params, unused_tensors, {mapping}
                )
                """,
            )
        )
        edits.append(splice.method_after(found.method.node, _CHECK))
        return {DRAFTER: splice.edited(tree.files[DRAFTER], edits)}


def _with_else(branch: ast.If, edit: splice.Edit) -> splice.Edit:
    code = splice.indented("else:\n    unused_tensors.append(checkpoint_name)", branch.col_offset)
    return splice.Edit(edit.start, edit.end, edit.text + code)


def _places(tree: SourceTree, found: Loader) -> tuple[ast.stmt, ast.For, list[tuple[ast.If, ast.Call]], str]:
    """What the rewrite hangs on: the table of parameters, the stacked loop, the loading calls and the table's name."""
    where = f"{CLASS}.load_weights"
    calls = loading_calls(found.loop, found.tensor)
    if not calls:
        raise conflict(
            DRAFTER, found.loop.lineno, f"{where}: looked for `if name in params:` around the loading call, found none"
        )
    unguarded = [
        n
        for n in ast.walk(found.loop)
        if isinstance(n, ast.Call)
        and len(n.args) >= 2
        and dotted(n.args[1]) == found.tensor
        and not any(n is call for _, call in calls)
    ]
    if unguarded:
        raise conflict(
            DRAFTER,
            unguarded[0].lineno,
            f"{where}: looked for every load under `if name in params:`, found one that is not",
        )
    stacked = stacked_loop(found.loop)
    if stacked is None:
        raise conflict(DRAFTER, found.loop.lineno, f"{where}: looked for the loop over stacked parameters, found none")
    parameters = dotted(_right(calls[0][0]))
    for statement in found.method.node.body:
        if isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == parameters:
            if not any(called_name(n) == "named_parameters" for n in ast.walk(statement.value)):
                break
            init = find_method(tree, found.method.owner, "__init__")
            if init is None or not any(a == "load_lm_head_from_target" for a, _, _ in assignments(init.node)):
                raise conflict(
                    DRAFTER,
                    found.method.owner.node.lineno,
                    f"looked for self.load_lm_head_from_target in {CLASS}, found none",
                )
            return statement, stacked, calls, parameters
    raise conflict(
        DRAFTER,
        found.method.line,
        f"{where}: looked for {parameters or 'a table'} = dict(self.named_parameters()), found none",
    )


def _right(branch: ast.If) -> ast.expr:
    assert isinstance(branch.test, ast.Compare)
    return branch.test.comparators[0]


def _recorded(found: Loader) -> set[str]:
    """Names of what the loop notes down."""
    names = set()
    for node in ast.walk(found.loop):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RECORDS:
            names.add(dotted(node.func.value).rpartition(".")[2])
        elif isinstance(node, ast.AugAssign):
            names.add(dotted(node.target).rpartition(".")[2])
        elif isinstance(node, ast.Assign | ast.Delete):
            names |= {dotted(t.value).rpartition(".")[2] for t in node.targets if isinstance(t, ast.Subscript)}
    return names - {""}
