"""A patch that a host does not need, for a reason that is not in its source tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opsctl.sglang.patches.base import About, Finding, Patch, Status, finding
from opsctl.sglang.source.tree import SourceTree


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`patch`, which is not for this host; what the tree has already is told all the same."""

    patch: Patch
    reason: str

    @property
    def name(self) -> str:
        return self.patch.name

    @property
    def about(self) -> About:
        return self.patch.about

    def look(self, tree: SourceTree) -> Finding:
        found = finding(self.patch, tree)
        if found.status in (Status.NEEDED, Status.CONFLICT):
            return replace(found, status=Status.NOT_APPLICABLE, reason=self.reason)
        return found

    def rewrite(self, tree: SourceTree) -> Mapping[str, bytes]:
        return {}
