"""The loader takes `layers.0.*` as the draft layer, whatever it calls that layer itself."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from opsctl.sglang.patches.base import About, Standing, Status, conflict, origin, reachable
from opsctl.sglang.patches.drafter import CLASS, Loader, inner_model, layer_attribute, loader, mentions
from opsctl.sglang.releases.version import Version
from opsctl.sglang.source import splice
from opsctl.sglang.source.symbols import dotted
from opsctl.sglang.source.tree import DRAFTER, SourceTree


class LoaderNames:
    name = "eagle3-loader-names"
    about = About(
        reason="tensors named layers.0.* are skipped without a word; the layer stays uninitialised, little is accepted",
        upstream="since 0.5.12",
        precondition=f"{CLASS} has a load_weights of its own that loops over (name, tensor)",
        end_state="load_weights takes layers.0.*, with or without a model. prefix, as the draft layer",
        proof="load_weights runs on stand-in tensors: layers.0.*, model.layers.0.*, midlayer.* fill the same",
        oldest="0.4.9",
    )

    def look(self, tree: SourceTree) -> Standing:
        found = loader(tree)
        attribute, where = layer_attribute(inner_model(tree))
        code = [*reachable(tree, found.method), *_tables(found)]
        old, new = mentions(code, "midlayer"), mentions(code, "layers.0", r"layers\.0")
        if attribute == "layers":
            if old:
                reason = "the layer is layers.0 here, and midlayer names are mapped to it"
                return Standing(origin(tree, Version(0, 5, 12)), DRAFTER, old[0].lineno, reason)
            raise conflict(DRAFTER, where, "the layer is layers.0 here, and no name with midlayer is mapped to it")
        if old and new:
            return Standing(Status.APPLIED, DRAFTER, new[0].lineno, "names with layers.0 are mapped to midlayer")
        if new:
            raise conflict(
                DRAFTER,
                new[0].lineno,
                f"looked for layers.0 mapped to midlayer, found {str(new[0].value)!r} used otherwise",
            )
        return Standing(
            Status.NEEDED, DRAFTER, found.loop.lineno, "load_weights knows midlayer.* only and skips layers.0.* unseen"
        )

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        found = loader(tree)
        code = f"""
            # Some checkpoints call the only layer layers.0.
            {found.name} = {found.name}.replace("layers.0.", "midlayer.")
        """
        return {DRAFTER: splice.edited(tree.files[DRAFTER], [splice.before(found.module, found.loop.body[0], code)])}


def _tables(found: Loader) -> list[ast.AST]:
    """Tables of the module or class that the loader refers to by name."""
    words = {
        dotted(n).rpartition(".")[2] for n in ast.walk(found.method.node) if isinstance(n, ast.Name | ast.Attribute)
    }
    level = [*found.module.tree.body, *found.method.owner.node.body]
    return [
        n
        for n in level
        if isinstance(n, ast.Assign | ast.AnnAssign)
        and any(dotted(t) in words for t in (n.targets if isinstance(n, ast.Assign) else [n.target]))
    ]
