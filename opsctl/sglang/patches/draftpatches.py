"""Which of the draft model's patches a host needs, from the draft model that it serves. Pure.

The loader's names are needed only for a checkpoint that has such names. The guards make an error of what no checkpoint
should have; they are offered for every draft model that their class loads. A host without a draft model is taken to
get one: nothing is left out for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opsctl.sglang.patches import Patch
from opsctl.sglang.patches.drafter import CLASS
from opsctl.sglang.patches.patchset import LeftOut
from opsctl.wire.calls.source import DraftNames

NAMES = "eagle3-loader-names"
ABOUT_DRAFTER = (NAMES, "eagle3-loader-strict", "eagle3-d2t-guard", "eagle3-fc-guard")
_READ_AS = {"Eagle3Speculator": CLASS}  # what the configuration of speculators is turned into
_BY_NUMBER = re.compile(r"(^|\.)layers\.0\.")


@dataclass(frozen=True, slots=True)
class Drafter:
    """The draft model of a host. layers: names of its layers' tensors, None where they cannot be read."""

    path: str
    architectures: tuple[str, ...]
    layers: tuple[str, ...] | None


def received(told: DraftNames | None) -> Drafter | None:
    """The draft model that the host tells of."""
    if told is None:
        return None
    layers = None if told["layers"] is None else tuple(told["layers"])
    return Drafter(told["path"], tuple(told["architectures"]), layers)


def for_drafter(patches: Sequence[Patch], drafter: Drafter | None) -> tuple[Patch, ...]:
    """The patches, those that this draft model does not need told to be so."""
    why = {name: _why_not(name, drafter) for name in ABOUT_DRAFTER} if drafter else {}
    return tuple(LeftOut(patch, reason) if (reason := why.get(patch.name)) else patch for patch in patches)


def _why_not(name: str, drafter: Drafter) -> str | None:
    classes = [_READ_AS.get(one, one) for one in drafter.architectures]
    if classes and CLASS not in classes:
        return f"the draft model of this host, {drafter.path}, is a {classes[0]}, which another loader loads"
    if name == NAMES and drafter.layers is not None and not any(map(_BY_NUMBER.search, drafter.layers)):
        return f"the draft model of this host, {drafter.path}, has no tensor called layers.0.*"
    return None
