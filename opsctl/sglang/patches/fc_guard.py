"""Features that `fc` cannot take raise an error, instead of passing it by."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from opsctl.sglang.patches.base import IN_NONE, About, Standing, Status, called_from, conflict, first_raise, identifiers
from opsctl.sglang.patches.drafter import inner_model, loader
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import ClassRef, Method, dotted
from opsctl.sglang.source.tree import DRAFTER, SourceTree

# While drafting (decode) the features are the draft model's own, of its hidden size, and rightly pass fc by.
_GUARD = """
if (
    self.has_fc
    and not forward_batch.forward_mode.is_decode_or_idle()
    and hidden_states.shape[0] > 0
    and hidden_states.shape[-1] != self.fc.in_features
):
    raise ValueError(
        f"The draft model's fc takes {self.fc.in_features} features, the target gave "
        f"{hidden_states.shape[-1]}: its auxiliary hidden states are not captured. "
        "Likely causes: --speculative-algorithm EAGLE instead of EAGLE3, "
        "use_aux_hidden_state: false in the draft model's eagle_config, or a target "
        "that does not capture them."
    )
"""


class FcGuard:
    name = "eagle3-fc-guard"
    about = About(
        reason="features that were not captured have the hidden size, so fc is skipped and nothing accepted or logged",
        upstream=IN_NONE,
        precondition="the draft model's forward applies self.fc to spec_info.hidden_states if the width differs",
        end_state="forward raises if features from the target are not of fc's input width and the checkpoint has an fc",
        proof="forward runs on stand-ins: the right width goes through fc, the draft model's own states while drafting "
        "and an empty batch pass, the wrong width raises with the likely causes",
        oldest="0.4.9",
    )

    def look(self, tree: SourceTree) -> Standing:
        forward, _, use = _places(tree)
        before_use = [s for s in forward.node.body if s.lineno <= use.lineno]
        raised = first_raise(called_from(tree, forward, before_use))
        if raised is not None:
            guards = [s for s in before_use if first_raise([s])] or before_use
            if {"fc", "in_features", "hidden_size_in", "num_aux_hidden_states"} & identifiers(guards):
                return Standing(
                    Status.APPLIED, DRAFTER, raised.lineno, "forward checks the width of the features before fc"
                )
            if any(
                "shape" in identifiers([g]) and "hidden_states" in identifiers([g]) for g in guards if first_raise([g])
            ):
                raise conflict(
                    DRAFTER,
                    raised.lineno,
                    "forward raises already; looked for a comparison with fc's input width, found another",
                )
        return Standing(
            Status.NEEDED,
            DRAFTER,
            use.lineno,
            "a guard: features of the hidden size pass fc by unseen",
        )

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        _forward, statement, _use = _places(tree)
        found = loader(tree)
        built = _fc(inner_model(tree))
        edits = [
            splice.after(
                built,
                """
                # Set when the checkpoint has one: not all draft models do.
                self.has_fc = False
                """,
            ),
            splice.after(statement, _GUARD),
            splice.before(
                found.module,
                found.loop.body[0],
                f"""
                if {found.name}.endswith("fc.weight"):
                    self.model.has_fc = True
                """,
            ),
        ]
        return {DRAFTER: splice.edited(tree.files[DRAFTER], edits)}


def _places(tree: SourceTree) -> tuple[Method, ast.stmt, ast.stmt]:
    """The forward, its statement that takes the features from spec_info, and the one that applies fc."""
    model = inner_model(tree)
    node = model.own("forward")
    if node is None:
        raise conflict(DRAFTER, model.node.lineno, f"looked for {model.name}.forward, found none")
    taken = use = None
    for statement in node.body:
        for inner in ast.walk(statement):
            if (
                isinstance(inner, ast.Attribute)
                and dotted(inner) == "forward_batch.spec_info.hidden_states"
                and taken is None
            ):
                taken = statement
            if isinstance(inner, ast.Call) and dotted(inner.func) == "self.fc" and use is None:
                use = statement
    where = f"{model.name}.forward"
    if use is None:
        raise conflict(DRAFTER, node.lineno, f"{where}: looked for a call of self.fc, found none")
    if not (
        isinstance(taken, ast.Assign) and dotted(taken.targets[0]) == "hidden_states" and taken.lineno < use.lineno
    ):
        raise conflict(
            DRAFTER,
            node.lineno,
            f"{where}: looked for hidden_states = forward_batch.spec_info.hidden_states before fc, found none",
        )
    _fc(model)
    return Method(model, node), taken, use


def _fc(model: ClassRef) -> ast.stmt:
    init = model.own("__init__")
    for statement in init.body if init else ():
        if isinstance(statement, ast.Assign) and dotted(statement.targets[0]) == "self.fc":
            return statement
    raise conflict(DRAFTER, model.node.lineno, f"looked for self.fc = ... in {model.name}.__init__, found none")
