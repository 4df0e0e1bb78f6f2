"""SGLang versions, and from which one on it can do what a drafter may ask of it.

Read in the released packages 0.5.6.post2 to 0.5.23: models/llama_eagle3.py, models/kimi_k25_eagle3.py,
models/kimi_k25.py, models/deepseek_v2.py, model_loader/weight_utils.py, model_executor/*. Numbers are those of
sgl-project/sglang pull requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from opsctl.drafter.settings import MLA
from opsctl.errors import UsageError
from opsctl.sglang import releases
from opsctl.sglang.releases import Capture, Target, Version

__all__ = ["KNOWN", "Feature", "InTree", "Version", "parse_list"]


@dataclass(frozen=True, slots=True, eq=False)
class InTree(Version):
    """The version of a source tree, in which some things were read; they win over what the release can do.

    read: by feature. target: what its class for the target does; None where that was not read.
    """

    read: Mapping[Feature, bool] = field(default_factory=dict, repr=False)
    target: Target | None = None


# The rules of the draft model's classes were read from this release on; later ones by the generator, too.
OLDEST = Version(0, 5, 6, 2)
KNOWN = tuple(version for version in releases.known() if version >= OLDEST)


@dataclass(frozen=True, slots=True)
class Feature:
    """Something the server can do from a version on."""

    since: Version
    source: str

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, Version):
            return False
        since = version >= self.since
        return version.read.get(self, since) if isinstance(version, InTree) else since


def _since(version: str, source: str) -> Feature:
    return Feature(Version.parse(version), source)


def _reading(fact: str, said: str) -> Feature:
    """What the draft model's code of a release does, as `opsctl source facts` reads it."""
    return Feature(releases.first("draft", fact, said), fact)


DOMINO = _since("0.5.20", "dflash_utils.py is_domino")
LAYERS_0_NAMES = _reading("layer-names", "midlayer, layers.0")  # llama_eagle3.py legacy_name_map, #24663
MULTI_LAYER = _reading("draft-layers", "any")  # llama_eagle3.py self.layers, #24663
FREE_AUX_COUNT = _reading("fc-width", "configured")  # llama_eagle3.py num_aux_hidden_states, #24663
AUX_IDS_IN_GRAPHS = _reading("graph-layer-ids", "configured")  # set before graphs are captured, #22836
MLA_CLASS = Feature(releases.first("draft_classes", MLA), "kimi_k25_eagle3.py")
FC_NORM = _since("0.5.12", "llama_eagle3.py fc_norm, #24663")
FC_NORM_MLA = _since("0.5.13", "kimi_k25_eagle3.py fc_norm, #26506")
NORM_BEFORE_FC = _since("0.5.17", "llama_eagle3.py input_norm, #32334")
FC_SPLIT_MLA = _since("0.5.15", "kimi_k25_eagle3.py fc is a ColumnParallelLinear; before that, nn.Linear")
ZERO_BIAS = _since("0.5.9", "linear.py RowParallelLinear starts its bias at zero; before that, torch.empty")
IDS_AS_WRITTEN = _since("0.5.13", "deepseek_v2.py set_eagle3_layers_to_capture, #25454")
ROPE_PARAMETERS = _since("0.5.10", "llama.py reads rope_parameters first; transformers 5")
TRANSFORMERS_5 = _since("0.5.10", "transformers 5.3")
STRICT_CONFIG = _since("0.5.11", "transformers 5.6, whose config classes check their fields; 5.3 did not")
NULL_EAGLE_CONFIG = _since("0.5.15", "eagle_utils.py `or {}`; before that, None is asked for its keys")
MISSING_SHARD_RAISES = _since("0.5.17", "weight_utils.py filter_duplicate_safetensors_files, #32279")
LAYER_0_CAPTURE = _since("0.5.14", "deepseek_v2.py captures in the layer; before that, layer 0 has no residual to add")
KIMI_K2_CONFIG = _since("0.5.12", "hf_transformers/common.py registers kimi_k2")


# What most classes do; taken where a class is not known, which is said.
USUAL = Target(Capture.YES, ("2", "n // 2", "n - 3"), "+1")


def target(version: Version, name: str) -> Target | None:
    """What a target's class does on a version; None where neither a tree nor a release that was read tells it."""
    if isinstance(version, InTree) and version.target is not None:
        return version.target
    return releases.of(version).targets.get(name) if version in releases.known() else None


@cache
def algorithm_since(name: str) -> Version | None:
    """The first release that takes a value of --speculative-algorithm."""
    return next((version for version in releases.known() if name in releases.of(version).algorithms), None)


@cache
def drafts_since(name: str) -> Version | None:
    """The first release that has a class for a draft model, or for the layers of a whole model that draft."""
    every = ((version, releases.of(version)) for version in releases.known())
    return next((version for version, one in every if name in one.draft_classes or name in one.nextn), None)


@cache
def with_class(name: str) -> tuple[Version, ...]:
    """The releases that have a target class."""
    return tuple(version for version in releases.known() if name in releases.of(version).targets)


@cache
def capturing(name: str) -> Version | None:
    """The first release from which on every later one records with a class; None where the newest does not."""
    able = None
    for version in reversed(releases.known()):
        found = releases.of(version).targets.get(name)
        if found is None or found.capture is not Capture.YES:
            break
        able = version
    return able


def parse_list(text: str | None) -> tuple[Version, ...]:
    """Versions from `0.5.9,0.5.12`, in the order given; all known ones when there is no text."""
    if text is None:
        return KNOWN
    found = tuple(dict.fromkeys(Version.parse(part) for part in text.split(",") if part.strip()))
    if not found:
        raise UsageError("no SGLang version given", hint="write them like 0.5.9,0.5.12")
    return found
