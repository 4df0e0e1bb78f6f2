"""One question: this drafter, for this target, served this way. Everything a check may look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from opsctl.drafter import loader, vocab_map
from opsctl.drafter import versions as v
from opsctl.drafter.embedding import Likeness
from opsctl.drafter.folder import Folder, Sample, Tensor
from opsctl.drafter.kind import Recognised, recognise
from opsctl.drafter.settings import LLAMA, MLA, Settings
from opsctl.drafter.versions import Version
from opsctl.sglang.releases import Capture


@dataclass(frozen=True, slots=True)
class Serving:
    """How the server is started.

    Args:
        tp: tensor-parallel size. tp_known: whether anybody has said it; what an assumed one would do is only noted.
        context_length: None for the target's own.
        algorithm: `--speculative-algorithm`; None for the one that is right for the drafter.
        overwrite_longer: SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN is set.
        draft_quantization: `--speculative-draft-model-quantization`.
        draft_path: whether `--speculative-draft-model-path` is given.
        steps, topk, draft_tokens: `--speculative-num-steps` and its two companions; None when unknown.
    """

    tp: int = 8
    context_length: int | None = None
    algorithm: str | None = None
    overwrite_longer: bool = False
    draft_quantization: str | None = None
    draft_path: bool = True
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    tp_known: bool = True


@dataclass(frozen=True)
class Case:
    """What is judged. `target` is None when nothing is known of it: checks that need it are left out.

    embedding: how like the target's embedding the one that the draft model brings is; None when they were not compared.
    """

    folder: Folder
    target: Settings | None
    serving: Serving
    embedding: Likeness | None = None
    _loads: dict[Version, loader.Loaded] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def draft(self) -> Settings | None:
        return self.folder.settings

    @cached_property
    def text(self) -> Settings | None:
        """The target's text model."""
        return self.target.target_text if self.target else None

    @cached_property
    def recognised(self) -> Recognised:
        """The kind of the draft model, and what tells it."""
        return recognise(
            self.folder.raw_config,
            {name: tensor.shape for name, tensor in self.tensors.items()},
            self.target.raw if self.target else None,
            complete=not self.folder.oversized,
        )

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """What is loaded, by name; of several with one name the last, as in the server."""
        return {t.name: t for container in self.folder.loaded() for t in container.tensors}

    @cached_property
    def samples(self) -> dict[str, Sample]:
        return {name: s for container in self.folder.loaded() for name, s in container.samples.items()}

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Tensors that the index places in files that are not there, by the names the load knows them by."""
        missing = set(self.folder.missing_shards())
        names = (name for name, file in (self.folder.weight_map or {}).items() if file in missing)
        return tuple(map(converted_name, names) if self.folder.speculators else names)

    def class_known(self, version: Version) -> bool:
        """Whether this version has the drafter class the config names."""
        if self.draft is None:
            return False
        name = self.draft.architecture
        return name == LLAMA or (name == MLA and version in v.MLA_CLASS)

    def builds(self, version: Version) -> bool:
        """Whether the drafter class comes to load weights, so that shapes and names matter."""
        return self.class_known(version) or (self.draft is not None and not self.draft.mla and self.foreign)

    @property
    def foreign(self) -> bool:
        """Another producer's container: judged as it would be after conversion."""
        return self.folder.speculators or self.folder.pickled

    def load(self, version: Version) -> loader.Loaded:
        """The load on this version. Foreign names are taken as converted."""
        if version not in self._loads:
            assert self.draft is not None
            tensors = self.tensors.values()
            if self.folder.speculators:
                tensors = [t._replace(name=converted_name(t.name)) for t in tensors]  # type: ignore[assignment]
            self._loads[version] = loader.load(tensors, self.draft, version)
        return self._loads[version]

    @property
    def vocab(self) -> int:
        """Size of the target vocabulary: the target's, else what the drafter says."""
        if self.text is not None and self.text.vocab:
            return self.text.vocab
        return self.draft.vocab if self.draft else 0

    def table(self, tensor: Tensor | None) -> bytes | None:
        """The bytes of a mapping table, None when they were not gathered."""
        return None if tensor is None else self.folder.tables.get((tensor.file, tensor.name))

    @cached_property
    def d2t(self) -> Tensor | None:
        return self._mapping_tensor("d2t")

    @cached_property
    def t2d(self) -> Tensor | None:
        return self._mapping_tensor("t2d")

    def _mapping_tensor(self, kind: str) -> Tensor | None:
        mla = self.draft is not None and self.draft.mla
        return next((t for t in reversed(self.tensors.values()) if loader.mapping_name(t.name, mla) == kind), None)

    @cached_property
    def mapping(self) -> vocab_map.Decision | None:
        """What `d2t` is; None without one, or when it holds no integers in one dimension."""
        data = self.table(self.d2t)
        if self.d2t is None or data is None or len(self.d2t.shape) != 1 or not self.vocab:
            return None
        values = vocab_map.decode(data, self.d2t.dtype)
        if values is None:
            return None
        return vocab_map.decide(values, self.vocab, self.mask)

    @cached_property
    def mask(self) -> bytes | None:
        """`t2d` as one byte per target id, when it is a mask."""
        data = self.table(self.t2d)
        if self.t2d is None or data is None or len(self.t2d.shape) != 1:
            return None
        values = vocab_map.decode(data, self.t2d.dtype)
        return None if values is None else bytes(map(bool, values))

    def captured(self, version: Version) -> tuple[int, ...]:
        """Layers whose input the target records, in order of the request; () when the target is unknown."""
        text = self.text
        if text is None or self.draft is None:
            return ()
        found = v.target(version, self.target.architecture) if self.target else None
        rule = found if found is not None and found.default else v.USUAL
        return rule.layers(text.layers, self.draft.aux_ids)

    def records(self, version: Version) -> bool:
        """Whether the target's class records hidden states, as far as that was read."""
        found = v.target(version, self.target.architecture) if self.target else None
        if found is None or self.text is None:
            return False
        around = found.capture is Capture.DEPENDS and self.text.architecture in found.around
        return found.capture is Capture.YES or around

    def captures_last(self, version: Version) -> bool:
        """Whether the target can record what comes out of its last layer, as the input of one more."""
        found = v.target(version, self.target.architecture) if self.target else None
        return found is not None and found.ids == "+1 unless last is n"


def deepseek_like(text: Settings) -> bool:
    """Whether the target's text model is served by deepseek_v2.py, or by a class made from it."""
    return text.architecture.startswith(("Deepseek", "GlmMoeDsa", "Glm4MoeLite", "MistralLarge3")) or text.text(
        "model_type"
    ) in ("kimi_k2", "deepseek_v3", "deepseek_v2")


@lru_cache(maxsize=4096)
def converted_name(name: str) -> str:
    """A speculators name as SGLang wants it."""
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name
