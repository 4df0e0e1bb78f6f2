"""What a source tree does with a draft model: each fact with the file, the line and the lines that prove it.

`gather` is pure; what the draft model and the target meet in the tree is read from syntax, never from the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from opsctl.sglang.diagnosis.evidence import Source, SourceFact
from opsctl.sglang.patches.base import Settled
from opsctl.sglang.patches.capture import KIMI_K25, answer, eagle3_capture
from opsctl.sglang.releases import Capture, Target
from opsctl.sglang.source import draftfacts, targetfacts
from opsctl.sglang.source.fact import Fact
from opsctl.sglang.source.symbols import NotPython
from opsctl.sglang.source.tree import SourceTree

# Name -> how it is read. The order is that of the report.
_DRAFT: dict[str, Callable[[SourceTree], Fact]] = {
    "d2t": draftfacts.d2t,
    "t2d": draftfacts.t2d,
    "d2t-checked": draftfacts.d2t_checked,
    "layer-names": draftfacts.layer_names,
    "unused-tensors": draftfacts.unused_tensors,
    "draft-layers": draftfacts.draft_layers,
    "fc-width": draftfacts.fc_width,
    "fc-test": draftfacts.fc_test,
    "lm-head": draftfacts.lm_head,
    "head-sharing": draftfacts.head_sharing,
    "embedding-sharing": draftfacts.embedding_sharing,
    "hot-token-id": draftfacts.hot_token_id,
    "graph-layer-ids": draftfacts.graph_layer_ids,
    "accept-rate": draftfacts.accept_rate,
}
_TARGET: dict[str, Callable[[SourceTree, str], Fact]] = {
    "capture": targetfacts.capture,
    "layer-id-rule": targetfacts.layer_id_rule,
    "aux-after-reduce": targetfacts.aux_after_reduce,
}
DEFAULT_TARGETS = (KIMI_K25.class_name,)


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts of a tree. `targets`: model class -> its facts. `effects`: -> what it does."""

    tree: SourceTree
    draft: dict[str, Fact]
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
            checkout=self.tree.root if self.tree.commit else None,
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "tree": self.tree.root,
            "commit": self.tree.commit,
            "dirty": list(self.tree.dirty),
            "version": str(self.tree.version) or None,
            "facts": [{"name": name, **fact.to_json()} for name, fact in self.draft.items()],
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
