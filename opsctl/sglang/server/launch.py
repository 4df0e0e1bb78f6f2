"""Launch commands of SGLang servers, as processes have them, read. `command` writes them. Pure.

Only the settings that opsctl reasons about have a name here; every other argument is kept as it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opsctl.wire import command_line

# The fields of `Launch` that flags fill.
_FIELDS = {
    "--model-path": "model",
    "--served-model-name": "served_name",
    "--host": "host",
    "--port": "port",
    "--tp-size": "tp",
    "--context-length": "context_length",
    "--mem-fraction-static": "mem_fraction",
    "--quantization": "quantization",
    "--attention-backend": "attention_backend",
    "--trust-remote-code": "trust_remote_code",
    "--enable-metrics": "metrics",
    "--disable-cuda-graph": "no_cuda_graph",
    "--speculative-algorithm": "algorithm",
    "--speculative-draft-model-path": "draft_model",
    "--speculative-num-steps": "steps",
    "--speculative-eagle-topk": "topk",
    "--speculative-num-draft-tokens": "draft_tokens",
    "--speculative-attention-mode": "attention_mode",
    "--speculative-draft-attention-backend": "draft_attention_backend",
    "--speculative-draft-model-quantization": "draft_quantization",
    "--config": "config",
}


@dataclass(frozen=True, slots=True)
class Launch:
    """The settings of a launch command; None and False where it does not say.

    others: arguments that have no name here, in their order, secrets masked. has_api_key: whether one stands in argv.
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

    A value of the wrong kind is kept among the others, since the server cannot have started with it.
    """
    words = command_line.arguments(argv)
    if words is None:
        return None
    found: dict[str, object] = {}
    others: list[str] = []
    for said in command_line.read(argv)[len(argv) - len(words) :]:
        field, value = _FIELDS.get(said.name), _typed(said)
        if field is None or value is None:
            others += command_line.masked(said.words)
        else:
            found[field] = value
    keys = any(said.name in command_line.API_KEYS for said in command_line.read(argv))
    return Launch(**found, others=tuple(others), has_api_key=keys)  # type: ignore[arg-type]


def _typed(said: command_line.Said) -> object | None:
    """The value of a flag in the kind that it takes; None where it has none such."""
    flag = command_line.flag_of(said.name)
    kind = flag.kind if flag else "text"
    try:
        if kind == "switch":
            return None if said.inline else True
        if said.value is None or kind == "text":
            return said.value
        return int(said.value) if kind == "int" else float(said.value)
    except ValueError:
        return None
