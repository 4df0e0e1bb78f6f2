"""What a server tells of itself and answers, typed, for every version from 0.4.6 to 0.5.23."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from opsctl.sglang.probe.acceptance import ACCEPTED_NAMES, HISTOGRAM_NAMES, RATE_NAME, VERIFY_NAME

MOST_COUNT = 1 << 53  # of whole numbers: a float holds each of those below, and no server counts so far
COUNTS = ("completion_tokens", "prompt_tokens", VERIFY_NAME, *ACCEPTED_NAMES)
ROOTED = "/~"  # what a path begins with that means the same in every working folder


class InternalState(BaseModel):
    """What the scheduler of one data-parallel rank tells about itself."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    avg_spec_accept_length: float | None = Field(None, ge=0, le=MOST_COUNT)  # over the server's life, its own count


class ServerInfo(BaseModel):
    """The launch arguments as the server has them, and its state. Keys it holds in clear text are never read."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), allow_inf_nan=False)

    version: str | None = None
    model_path: str | None = None
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    tp_size: int = Field(1, ge=1, le=MOST_COUNT)
    context_length: int | None = Field(None, ge=1, le=MOST_COUNT)
    skip_tokenizer_init: bool = False
    enable_metrics: bool = False
    stream_interval: int | None = 1
    quantization: str | None = None
    attention_backend: str | None = None
    disable_cuda_graph: bool = False
    enable_flashinfer_allreduce_fusion: bool | None = None
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_draft_model_quantization: str | None = None
    speculative_draft_attention_backend: str | None = None
    speculative_num_steps: int | None = Field(None, ge=0, le=MOST_COUNT)
    speculative_eagle_topk: int | None = Field(None, ge=0, le=MOST_COUNT)
    speculative_num_draft_tokens: int | None = Field(None, ge=0, le=MOST_COUNT)
    avg_spec_accept_length: float | None = Field(None, ge=0, le=MOST_COUNT)  # 0.4.6 has the scheduler's state here
    internal_states: list[InternalState] = []

    @property
    def own_accept_length(self) -> float | None:
        """The server's own average acceptance length; it has none until its first decode log line."""
        told = [s.avg_spec_accept_length for s in self.internal_states] or [self.avg_spec_accept_length]
        known = [length for length in told if length]
        return sum(known) / len(known) if known else None


def placed(cwd: str | None, *told: str | None) -> str | None:
    """Of what names a model, the first that is a path wherever it is read, else the first: a hub's name, or relative.

    cwd: the working folder of the server that told it, where that is known.
    """
    said = [posixpath.normpath(posixpath.join(cwd, path)) if cwd and path[0] == "." else path for path in told if path]
    return next((path for path in said if path[0] in ROOTED), said[0] if said else None)


@dataclass(frozen=True, slots=True)
class Load:
    """Requests in the server, over all data-parallel ranks."""

    running: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Sampling:
    max_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of a streamed answer: seconds since the request was sent, and tokens generated until then."""

    at: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What one event of a stream tells.

    text, ids: of all of the answer, or of this piece of it.
    tokens: generated until then.
    """

    text: str
    ids: list[int]
    tokens: int
    meta: Mapping[str, Any]

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Piece:
        """Raises ValueError where a value is not of the kind that SGLang tells."""
        text, ids, meta = event.get("text") or "", event.get("output_ids") or [], event.get("meta_info") or {}
        if not isinstance(text, str):
            raise ValueError("`text` is no text")
        if not isinstance(ids, list) or not all(isinstance(n, int) for n in ids):
            raise ValueError("`output_ids` is no list of token ids")
        if not isinstance(meta, dict):
            raise ValueError("`meta_info` is no object")
        tokens, *_ = (count(meta, name) for name in COUNTS)
        for name in HISTOGRAM_NAMES:
            steps = meta.get(name) or []
            if not isinstance(steps, list):
                raise ValueError(f"`{name}` is no list")
            for value in steps:
                count({name: value}, name)
        rate = meta.get(RATE_NAME) or 0
        if not isinstance(rate, int | float) or not 0 <= rate < MOST_COUNT:
            raise ValueError(f"`{RATE_NAME}` is no rate: {rate!r:.100}")
        return cls(text, ids, tokens, meta)


def count(told: Mapping[str, Any], name: str) -> int:
    """A counter of a server, 0 where it is absent. Raises ValueError where it is none."""
    value = told.get(name) or 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < MOST_COUNT:
        raise ValueError(f"`{name}` is no count: {value!r:.100}")
    return value


@dataclass(frozen=True, slots=True)
class Answer:
    """One generated answer.

    meta: the last `meta_info`. output_ids: empty where this version does not tell token ids beside text.
    """

    text: str
    output_ids: tuple[int, ...]
    meta: Mapping[str, Any]
    chunks: tuple[Chunk, ...]
    seconds: float
