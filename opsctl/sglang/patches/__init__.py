"""The source patches: one file each, all of the shape of `base.Patch`."""

from opsctl.sglang.patches.base import About, Patch, Standing, Status, finding
from opsctl.sglang.patches.capture import KIMI_K25, eagle3_capture
from opsctl.sglang.patches.d2t_guard import D2tGuard
from opsctl.sglang.patches.fc_guard import FcGuard
from opsctl.sglang.patches.graph_ids import GraphLayerIds
from opsctl.sglang.patches.loader_names import LoaderNames
from opsctl.sglang.patches.loader_strict import LoaderStrict

__all__ = ["ALL", "KIMI_K25", "About", "Patch", "Standing", "Status", "eagle3_capture", "finding"]

# In the order in which they are applied.
ALL: tuple[Patch, ...] = (KIMI_K25, LoaderNames(), LoaderStrict(), D2tGuard(), FcGuard(), GraphLayerIds())
