"""SGLang versions, and from which one on it can do what a drafter may ask of it.

Read in the released packages 0.5.6.post2 to 0.5.23: models/llama_eagle3.py, models/kimi_k25_eagle3.py,
models/kimi_k25.py, models/deepseek_v2.py, model_loader/weight_utils.py, model_executor/*. Numbers are those of
sgl-project/sglang pull requests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import total_ordering

from opsctl.errors import UsageError

_TEXT = re.compile(
    r"v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:[.-]?(post|rc|a|b|dev)(\d{1,9}))?(?:\.dev\d+)?(?:\+[\w.]+)?", re.ASCII
)


@total_ordering
@dataclass(frozen=True, slots=True)
class Version:
    """An SGLang version. Post releases come after their release; a pre-release counts as the release it leads to.

    `read`: what was read in a source tree near this version, by feature; it wins over what the release can do.
    """

    release: tuple[int, int, int]
    post: int = 0
    text: str = ""
    read: Mapping[Feature, bool] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def parse(cls, text: str) -> Version:
        found = _TEXT.fullmatch(text.strip())
        if not found:
            raise UsageError(f"{text!r} is not an SGLang version", hint="write it like 0.5.9 or 0.5.10.post1")
        major, minor, micro, kind, number = found.groups()
        return cls((int(major), int(minor), int(micro)), int(number) if kind == "post" else 0, text.strip())

    def having(self, read: Mapping[Feature, bool]) -> Version:
        """This version as a tree has it in which these features were looked for."""
        return replace(self, read=dict(read))

    def __lt__(self, other: Version) -> bool:
        return (self.release, self.post) < (other.release, other.post)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and (self.release, self.post) == (other.release, other.post)

    def __hash__(self) -> int:
        return hash((self.release, self.post))

    def __str__(self) -> str:
        return self.text or ".".join(map(str, self.release)) + (f".post{self.post}" if self.post else "")


_READ = (
    *("0.5.6.post2", "0.5.7", "0.5.8", "0.5.8.post1", "0.5.9", "0.5.10", "0.5.10.post1", "0.5.11", "0.5.12"),
    *("0.5.13", "0.5.14", "0.5.15", "0.5.16", "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"),
)
KNOWN = tuple(Version.parse(text) for text in _READ)


@dataclass(frozen=True, slots=True)
class Feature:
    """Something the server can do from a version on."""

    since: Version
    source: str

    def __contains__(self, version: object) -> bool:
        if not isinstance(version, Version):
            return False
        return version.read.get(self, version >= self.since)


def _since(version: str, source: str) -> Feature:
    return Feature(Version.parse(version), source)


# Algorithms: speculative/spec_info.py, and dflash_utils.py for Domino.
EAGLE = _since("0.4.6", "SpeculativeAlgorithm.EAGLE, of which NEXTN is another name")
EAGLE3 = _since("0.4.6", "SpeculativeAlgorithm.EAGLE3")
STANDALONE = _since("0.5.2", "SpeculativeAlgorithm.STANDALONE")
DFLASH = _since("0.5.11", "SpeculativeAlgorithm.DFLASH")
DSPARK = _since("0.5.16", "SpeculativeAlgorithm.DSPARK")
DOMINO = _since("0.5.20", "dflash_utils.py is_domino")
LAYERS_0_NAMES = _since("0.5.12", "llama_eagle3.py legacy_name_map, #24663")
MULTI_LAYER = _since("0.5.12", "llama_eagle3.py self.layers, #24663")
MLA_CLASS = _since("0.5.12", "kimi_k25_eagle3.py")
FREE_AUX_COUNT = _since("0.5.12", "llama_eagle3.py num_aux_hidden_states, #24663")
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
CAPTURE = _since("0.0.0", "set_eagle3_layers_to_capture of the target's class, wherever it was read")
LAYER_0_CAPTURE = _since("0.5.14", "deepseek_v2.py captures in the layer; before that, layer 0 has no residual to add")
LAST_LAYER_CAPTURE = _since("0.5.17", "gpt_oss.py set_eagle3_layers_to_capture, #32334")
KIMI_K2_CONFIG = _since("0.5.12", "hf_transformers/common.py registers kimi_k2")
KIMI_K25_FILE = _since("0.5.9", "kimi_k25.py")
KIMI_K25_CAPTURE = _since("0.5.10", "kimi_k25.py set_eagle3_layers_to_capture, #19689")
AUX_IDS_IN_GRAPHS = _since("0.5.11", "init_aux_hidden_state_capture before graph capture, #22836")


def parse_list(text: str | None) -> tuple[Version, ...]:
    """Versions from `0.5.9,0.5.12`, in the order given; all known ones when there is no text."""
    if text is None:
        return KNOWN
    found = tuple(dict.fromkeys(Version.parse(part) for part in text.split(",") if part.strip()))
    if not found:
        raise UsageError("no SGLang version given", hint="write them like 0.5.9,0.5.12")
    return found
