"""Launch commands of SGLang servers: written from the settings of a host, and read as processes have them. Pure.

Only the settings that opsctl reasons about have a name here; every other argument is kept as it stands.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from opsctl.errors import UsageError
from opsctl.inventory.model import SglangSettings
from opsctl.wire import command_line

SPECULATIVE = "--speculative-"
ENTRY = "sglang.launch_server"
# A setting of the host, and the flag that says it; used where `launch` is a mapping that does not say it itself.
DEFAULTS = (("model_path", "model-path"), ("tp", "tp-size"), ("bind", "host"), ("port", "port"))
SPELLINGS = {"model-path": ("model",), "tp-size": ("tp", "tensor-parallel-size")}


def words(settings: SglangSettings) -> list[str] | None:
    """The launch command in `launch`: words, one shell line, or a mapping of flags; None where there is none.

    Raises UsageError for a value that cannot stand in a command, such as a secret.
    """
    launch = settings.launch
    if launch is None:
        return None
    if isinstance(launch, str):
        return shlex.split(launch)
    if isinstance(launch, Mapping):
        return _from_flags(settings, launch)
    return [_word("launch", value) for value in launch]


def with_drafter(argv: Sequence[str], drafter: str) -> list[str]:
    """The command with another draft model: its flag is replaced where it stands, else EAGLE-3 is added."""
    changed: list[str] = []
    found = algorithm = False
    for said in command_line.read(argv):
        if said.name != command_line.DRAFTER[0]:
            changed += said.words
            algorithm = algorithm or said.name == command_line.ALGORITHM[0]
        elif not found:
            changed += [command_line.DRAFTER[0], drafter]
            found = True
    if found:
        return changed
    eagle3 = [] if algorithm else [command_line.ALGORITHM[0], "EAGLE3"]
    return [*changed, *eagle3, command_line.DRAFTER[0], drafter]


def keeps_key_itself(argv: Sequence[str]) -> bool:
    """Whether the command says where its API key is: in itself, or in a file of settings.

    A key in a command line can be read by every user of the host. SGLang takes it from no environment variable in any
    version to 0.5.23; from 0.5.3 on a file of settings can hold it (server_args_config_parser.py).
    """
    return any(said.name in (*command_line.API_KEYS, *command_line.CONFIG) for said in command_line.read(argv))


def settings_text(api_key: str) -> str:
    """The file of settings that holds an API key."""
    return f"# Written by opsctl\napi-key: {json.dumps(api_key)}\n"


def as_flags(argv: Sequence[str]) -> dict[str, Any] | None:
    """The flags of a command as `words` would write them again; None where that would lose something."""
    if list(argv[1:3]) != ["-m", ENTRY]:
        return None
    flags: dict[str, Any] = {}
    for said in command_line.read(argv)[3:]:
        name = said.words[0].partition("=")[0].removeprefix("--")
        if not said.words[0].startswith("--") or name in flags or "_" in name:
            return None  # no flag, said twice, or spelled in a way that a mapping does not keep
        values = [_typed(value) for value in said.values]
        flags[name] = True if not values else values[0] if len(values) == 1 else values
    return flags


def _from_flags(settings: SglangSettings, flags: Mapping[str, Any]) -> list[str]:
    named = {str(name).lstrip("-").replace("_", "-"): value for name, value in flags.items()}
    for setting, flag in DEFAULTS:
        said = any(spelling in named for spelling in (flag, *SPELLINGS.get(flag, ())))
        value = getattr(settings, setting)
        if not said and value is not None:
            named[flag] = value
    argv = [settings.interpreter or "python3", "-m", ENTRY]
    for name, value in named.items():
        if value is None or value is False:
            continue
        argv.append(f"--{name}")
        if isinstance(value, list | tuple):
            argv += [_word(name, each) for each in value]
        elif value is not True:
            argv.append(_word(name, value))
    return argv


def _word(name: str, value: Any) -> str:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    kind = type(value).__name__
    raise UsageError(
        f"`launch` of the host: {name} is a {kind}, which cannot stand in a command",
        hint="secrets do not belong in a command line, which every user of the host can read: "
        "`api_key` of the host goes into a file that only the server's user can read",
    )


def _typed(word: str) -> Any:
    """A number where it would be written back as the same word."""
    for kind in (int, float):
        try:
            if str(kind(word)) == word:
                return kind(word)
        except ValueError:
            continue
    return word


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
        field, value = _FIELDS.get(said.name), _value(said)
        if field is None or value is None:
            others += command_line.masked(said.words)
        else:
            found[field] = value
    keys = any(said.name in command_line.API_KEYS for said in command_line.read(argv))
    return Launch(**found, others=tuple(others), has_api_key=keys)  # type: ignore[arg-type]


def _value(said: command_line.Said) -> object | None:
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
