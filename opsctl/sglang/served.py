"""What a server tells of itself and answers, typed, for every version from 0.4.6 to 0.5.23."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

ROOTED = "/~"  # what a path begins with that means the same in every working folder


class InternalState(BaseModel):
    """What the scheduler of one data-parallel rank tells about itself."""

    model_config = ConfigDict(extra="ignore")

    avg_spec_accept_length: float | None = None  # over the server's life, its own count


class ServerInfo(BaseModel):
    """The launch arguments as the server has them, and its state. Keys it holds in clear text are never read."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())

    version: str | None = None
    model_path: str | None = None
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    tp_size: int = 1
    context_length: int | None = None
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
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    avg_spec_accept_length: float | None = None  # 0.4.6 has the scheduler's state here
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
class Answer:
    """One generated answer.

    meta: the last `meta_info`. output_ids: empty where this version does not tell token ids beside text.
    """

    text: str
    output_ids: tuple[int, ...]
    meta: Mapping[str, Any]
    chunks: tuple[Chunk, ...]
    seconds: float
