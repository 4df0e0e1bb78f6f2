"""What a host is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from opsctl.modules.contract import Change, Module, ModuleArgs, Site
from opsctl.quantities import TimeLimit
from opsctl.wire.calls.core import facts_gather
from opsctl.wire.protocol import Call, Reply

Part = Literal["os", "kernel", "cpu", "memory", "disks", "numa", "gpu", "python", "cuda", "host", "user"]


class FactsArgs(ModuleArgs):
    parts: list[Part] | None = Field(None, description="Only these; all by default.")
    limit: TimeLimit = Field(5.0, description="Time for each part; those that take longer are named in `missing`.")


class Facts(Module[FactsArgs]):
    """Gather what is known of a host: system, kernel, CPU, memory, disks, NUMA, GPUs, Python, CUDA, boot.

    Parts are gathered side by side and each may fail by itself: a dead network mount or a hung nvidia-smi costs
    its own part only.
    """

    name = "facts"
    args = FactsArgs
    examples = """
- name: Memory and disks
  facts: {parts: [memory, disks]}
"""

    def observe(self, args: FactsArgs, site: Site) -> Sequence[Call[Any]]:
        return (facts_gather(None if args.parts is None else list(args.parts), args.limit),)

    def plan(self, args: FactsArgs, seen: Sequence[Reply[Any]], site: Site) -> Change | None:
        return None

    def result(
        self, args: FactsArgs, seen: Sequence[Reply[Any]], done: Sequence[Reply[Any]] | None, site: Site
    ) -> dict[str, Any]:
        return dict(seen[0].result)
