"""What a server tells of itself and answers, its /metrics too, typed, for every version from 0.4.6 to 0.5.23."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Mapping
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
    enable_dp_attention: bool | None = None
    disable_overlap_schedule: bool | None = None
    disable_radix_cache: bool | None = None
    decode_log_interval: int | None = Field(None, ge=1, le=MOST_COUNT)
    mamba_scheduler_strategy: str | None = None  # 0.5.7 to 0.5.13.post1
    mamba_radix_cache_strategy: str | None = None  # since 0.5.14
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


PREFIX = "sglang:"
_MOST_SAMPLES = 65_536  # of one figure: one for each rank of each engine


@dataclass(frozen=True, slots=True)
class Metrics:
    """None where this version, or this moment, has no such figure.

    accept_length, accept_rate: of the last decode log interval (default 40 cycles), not of the server's life.
    generated_tokens, verify_steps: counted since the start; their growth over a probe tells whether others were served.
    """

    accept_length: float | None
    accept_rate: float | None
    generated_tokens: float | None
    verify_steps: float | None  # 0.5.18 and later


def read_metrics(page: str) -> Metrics:
    """The figures of a page in the Prometheus text format; a page cut short gives those that came before the cut.

    Raises ValueError where one of them is negative, infinite or, where it is counted, no number.
    """
    lengths, rates = _values(page, "spec_accept_length"), _values(page, "spec_accept_rate")
    return Metrics(
        _mean(lengths) or None,  # 0 until the first decode log interval has passed
        _mean(rates),
        _total(page, "generation_tokens_total"),
        _total(page, "spec_verify_calls_total"),
    )


def _mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]  # NaN: there was nothing to take a mean of
    return sum(known) / len(known) if known else None


def _total(page: str, name: str) -> float | None:
    values = _values(page, name)
    if any(value != value for value in values):
        raise ValueError(f"{PREFIX}{name} is counted, and is NaN")
    return sum(values) if values else None


def _values(page: str, name: str) -> list[float]:
    values = [value for found, value in _samples(page, PREFIX + name) if found == PREFIX + name]
    for value in values:
        if value < 0 or math.isinf(value):
            raise ValueError(f"{PREFIX}{name} cannot be {value:g}")
    return values


def _samples(page: str, name: str) -> Iterable[tuple[str, float]]:
    """The samples of one figure. The parser is slow, so it gets only their lines."""
    from prometheus_client.parser import text_string_to_metric_families

    lines = [line for line in page.splitlines() if line.startswith(name)]
    if len(lines) > _MOST_SAMPLES:
        raise ValueError(f"{name} is there {len(lines)} times")
    for line in lines:
        try:
            found = [(s.name, s.value) for f in text_string_to_metric_families(line + "\n") for s in f.samples]
        except (ValueError, LookupError):
            return  # cut in the middle of it
        yield from found
