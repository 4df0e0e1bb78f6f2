"""Does patched code do what its patch promises? Its functions are lifted out and run where the server runs.

They run in the interpreter of the tree's own host and never in the controller's: the code is the host's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files as package_files
from typing import Any

from opsctl.sglang.patches import Patch
from opsctl.sglang.patches.capture import Delegation, headless, language_model
from opsctl.sglang.patches.d2t_guard import D2tGuard
from opsctl.sglang.patches.drafter import CLASS, inner_model, layer_attribute
from opsctl.sglang.patches.fc_guard import FcGuard
from opsctl.sglang.patches.graph_ids import GraphLayerIds
from opsctl.sglang.patches.loader_names import LoaderNames
from opsctl.sglang.patches.loader_strict import LoaderStrict
from opsctl.sglang.source.symbols import ClassRef
from opsctl.sglang.source.targets import ASKED_OF_TARGET, SET
from opsctl.sglang.source.tree import DRAFTER, GRAPH_RUNNER, MODEL_RUNNER, SourceTree
from opsctl.wire.calls.source import Proved, source_prove
from opsctl.wire.protocol import Call, Reply


def request(tree: SourceTree, applied: Iterable[Patch], python: str = "") -> Call[list[Proved]] | None:
    """The call that proves patches on a tree that they have been applied to, with the interpreter `python`.

    None where there is nothing to run.
    """
    proofs = [proof for patch in applied if (proof := _proof(tree, patch))]
    if not proofs:
        return None
    paths = {path for proof in proofs for path in proof.get("paths", [proof.get("path")])}
    texts = {path: tree.files[path].decode("utf-8-sig") for path in paths if path in tree.files}
    code = [f"{tree.root}/{tree.prefix}/{path}" for path in texts]
    return source_prove(_script(), python, code, body=json.dumps({"files": texts, "proofs": proofs}).encode())


def failures(reply: Reply[list[Proved]]) -> tuple[str, ...]:
    """What did not behave as promised, from the answer to `request`."""
    return tuple(
        f"{answer['proof'].replace('_', ' ')}: {text}" for answer in reply.result for text in answer["failures"]
    )


def _proof(tree: SourceTree, patch: Patch) -> dict[str, Any] | None:
    if isinstance(patch, Delegation):
        cls = patch.class_in(tree)
        inner = language_model(tree, cls)
        if inner is None or not inner.supporting:
            return _own(tree, cls)
        methods = [m for m in (*patch.methods, *({SET} - {*patch.methods})) if cls.own(m)]
        return {
            "proof": "delegation",
            "path": cls.module.path,
            "class": cls.name,
            "inner": inner.attribute,
            "methods": [m for m in methods if patch.must_delegate or patch.delegates(cls, m)],
        }
    if isinstance(patch, GraphLayerIds):
        return {"proof": "graph_layer_ids", "paths": [p for p in (GRAPH_RUNNER, MODEL_RUNNER) if p in tree.files]}
    if isinstance(patch, FcGuard):
        return {"proof": "fc_guard", "path": DRAFTER, "class": inner_model(tree).name}
    names: dict[type, str] = {LoaderNames: "loader_names", LoaderStrict: "loader_strict", D2tGuard: "d2t_guard"}
    name = names.get(type(patch))
    if name is None:
        return None
    attribute, _ = layer_attribute(inner_model(tree))
    layer = "layers.0" if attribute == "layers" else attribute
    return {"proof": name, "path": DRAFTER, "class": CLASS, "layer": layer}


def _own(tree: SourceTree, cls: ClassRef) -> dict[str, Any] | None:
    """The proof for a wrapper that computes the logits itself."""
    found = headless(tree, cls)
    methods = [m for m in ASKED_OF_TARGET if cls.own(m)]
    if found is None or not methods:
        return None
    attribute = found.attribute
    return {"proof": "own_capture", "path": cls.module.path, "class": cls.name, "inner": attribute, "methods": methods}


@cache
def _script() -> str:
    return package_files(__package__).joinpath("standins.py").read_text()
