"""The command that serves a host's model, from its settings: words, files and environment. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
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
