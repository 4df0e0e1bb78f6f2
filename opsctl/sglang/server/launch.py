"""Launch commands of SGLang servers, as processes have them, read. `command` writes them. Pure.

Only the settings that opsctl reasons about have a name here; every other argument is kept as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from opsctl.wire import command_line
from opsctl.wire.command_line import arguments


class Kind(Enum):
    TEXT = "text"
    INT = "int"
    FLOAT = "float"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Flag:
    """A launch flag. name: the field of `Launch`. aliases: other spellings."""

    flag: str
    name: str
    kind: Kind = Kind.TEXT
    aliases: tuple[str, ...] = ()


_T, _I, _F, _S = Kind.TEXT, Kind.INT, Kind.FLOAT, Kind.SWITCH

# server_args.py of 0.4.6 to 0.5.20 and arg_groups/fields/ of 0.5.23.
FLAGS = (
    Flag(command_line.MODEL[0], "model", aliases=command_line.MODEL[1:]),
    Flag("--served-model-name", "served_name"),
    Flag("--host", "host"),
    Flag("--port", "port", _I),
    Flag("--tp-size", "tp", _I, ("--tensor-parallel-size", "--tp")),
    Flag("--context-length", "context_length", _I),
    Flag("--mem-fraction-static", "mem_fraction", _F),
    Flag("--quantization", "quantization"),
    Flag("--attention-backend", "attention_backend"),
    Flag("--trust-remote-code", "trust_remote_code", _S),
    Flag("--enable-metrics", "metrics", _S),
    Flag("--disable-cuda-graph", "no_cuda_graph", _S),
    Flag("--speculative-algorithm", "algorithm"),
    Flag(command_line.DRAFTER[0], "draft_model", aliases=command_line.DRAFTER[1:]),
    Flag("--speculative-num-steps", "steps", _I),
    Flag("--speculative-eagle-topk", "topk", _I),
    Flag("--speculative-num-draft-tokens", "draft_tokens", _I),
    Flag("--speculative-attention-mode", "attention_mode"),
    Flag("--speculative-draft-attention-backend", "draft_attention_backend"),
    Flag("--speculative-draft-model-quantization", "draft_quantization"),
)
_BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in (flag.flag, *flag.aliases)}


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings of a launch command; None and False where it does not say.

    others: arguments that have no name here, in their order, secrets masked. has_api_key: whether one is given in argv.
    config: file of --config, whose settings are not known here.
    """

    model: str | None = None
    served_name: str | None = None
    host: str | None = None
    port: int | None = None
    tp: int | None = None
    context_length: int | None = None
    mem_fraction: float | None = None
    quantization: str | None = None
    attention_backend: str | None = None
    trust_remote_code: bool = False
    metrics: bool = False
    no_cuda_graph: bool = False
    algorithm: str | None = None
    draft_model: str | None = None
    steps: int | None = None
    topk: int | None = None
    draft_tokens: int | None = None
    attention_mode: str | None = None
    draft_attention_backend: str | None = None
    draft_quantization: str | None = None
    others: tuple[str, ...] = field(default=())
    has_api_key: bool = False
    config: str | None = None


def parse(argv: Sequence[str]) -> Launch | None:
    """The settings in a process's command line; None when it is no SGLang server.

    As in argparse the last of several wins, `--flag=value` is `--flag value`, and an unambiguous beginning of a flag
    is the flag. A value of the wrong kind is kept among the others, since the server cannot have started with it.
    """
    words = arguments(argv)
    if words is None:
        return None
    found: dict[str, object] = {}
    others: list[str] = []
    has_key, n = False, 0
    while n < len(words):
        word, _, inline = words[n].partition("=")
        flag = _flag(word)
        has_value = bool(inline) or (n + 1 < len(words) and not words[n + 1].startswith("--"))
        value = inline or (words[n + 1] if has_value else "")
        width = 1 if inline or not has_value else 2
        if word in command_line.SECRET:
            has_key = has_key or word == "--api-key"
            others += [word, "***"]
        elif word == "--config":
            found["config"] = value
        elif flag is None:
            others.append(words[n])
            width = 1
        elif flag.kind is Kind.SWITCH:
            found[flag.name] = True
            width = 1
        elif (typed := _typed(flag.kind, value)) is not None:
            found[flag.name] = typed
        else:
            others += words[n : n + width]
        n += width
    return Launch(**found, others=tuple(others), has_api_key=has_key)  # type: ignore[arg-type]


def _flag(word: str) -> Flag | None:
    if word in _BY_SPELLING:
        return _BY_SPELLING[word]
    if not word.startswith("--") or len(word) < 6:
        return None
    near = {flag.name: flag for spelling, flag in _BY_SPELLING.items() if spelling.startswith(word)}
    return next(iter(near.values())) if len(near) == 1 else None


def _typed(kind: Kind, value: str) -> object | None:
    if kind is Kind.TEXT:
        return value or None
    try:
        return int(value) if kind is Kind.INT else float(value)
    except ValueError:
        return None
