"""The files for a host: its inventory, with comments, and the shipped playbooks fitted to it. Pure.

The `sglang` section of the inventory is made of what was found.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from opsctl.sglang.server import command
from opsctl.sglang.server.command import SPELLINGS, as_flags
from opsctl.survey.look import Found, Running, environment_of
from opsctl.text import one_line
from opsctl.wire.command_line import DEFAULT_PORT

PLAYBOOKS = ("deploy-drafter", "health", "pin-sglang", "probe", "restart-server", "start-server")
SCHEMAS = ".schema"
GROUP = "servers"
"""The hosts that the playbooks of a project are for."""
# Speculation as the EAGLE-3 papers and model cards use it, where no server shows what the host is used to.
USUAL_FLAGS: Mapping[str, Any] = {
    "trust-remote-code": True,
    "enable-metrics": True,
    "speculative-algorithm": "EAGLE3",
    "speculative-num-steps": 3,
    "speculative-eagle-topk": 1,
    "speculative-num-draft-tokens": 4,
}
_ANY = ("0.0.0.0", "::", "")


@dataclass(frozen=True, slots=True)
class Reached:
    """How the host is reached: the keys of its inventory entry, and the name that it has there."""

    name: str
    keys: Mapping[str, Any]


def inventory(reached: Reached, found: Found, section: Section) -> str:
    """The text of inventory.yaml."""
    return "\n".join(_lines(reached, found, section)) + "\n"


def playbook(text: str, found: Found) -> str:
    """A shipped playbook for the hosts of the group, with the commit of this one."""
    text = re.sub(r"^# yaml-language-server: .*\n", _modeline("playbook", "../"), text)
    text = re.sub(r"^  hosts: all$", f"  hosts: {GROUP}", text, flags=re.M)
    if found.checkout and found.checkout.commit:
        text = re.sub(
            r"^(    commit:\n)", rf'\1      default: "{found.checkout.commit}" # what it had when this was written\n',
            text, flags=re.M,
        )  # fmt: skip
    return text


def _lines(reached: Reached, found: Found, section: Section) -> Iterator[str]:
    yield _modeline("inventory", "").rstrip("\n")
    yield "#"
    yield f"# Written by `opsctl init` from what it found on {one_line(found.name)}. It is yours now."
    yield "# What else can be said: `opsctl doc host` and `opsctl doc sglang`."
    yield ""
    yield "groups:"
    yield f"  {GROUP}: # the hosts of playbooks/"
    yield f"    hosts: [{_scalar(reached.name)}]"
    yield ""
    yield "hosts:"
    yield f"  {_scalar(reached.name)}:"
    for line in host(reached, found, section):
        yield f"    {line}"


def host(reached: Reached, found: Found, section: Section) -> Iterator[str]:
    """The lines below the host's name in an inventory."""
    yield from lines(reached.keys)
    if found.owner:
        yield f"become: {_scalar(found.owner)} # the server is a unit of that user's own systemd"
    else:
        yield "# become: true              # become root through sudo, where logging in as root is not possible"
    yield "sglang:"
    for key, value in section.values.items():
        yield from _entry(2, key, value, section.comments.get(key))
    yield from _missing(section)
    if section.has_key:
        yield from _key_hint(reached.name, section)
    if found.profile:
        yield "vars:"
        yield "  health:"
        yield "    profile: # what `opsctl health` expects here, recorded from what is there now: is it right?"
        for key, value in found.profile.items():
            yield from _entry(6, key, value, None)


def lines(said: Mapping[str, Any]) -> Iterator[str]:
    """Plain settings, one on a line."""
    for key, value in said.items():
        yield f"{key}: {_scalar(value)}"


def _missing(section: Section) -> Iterator[str]:
    said = section.values
    if "container" in said:
        return
    for key, example in (
        ("checkout", "/root/sglang # the source tree, for `opsctl patch` and pinning"),
        ("environment", "/root/sglang/.venv # its bin/python serves"),
        ("model_path", "/data/models/NAME"),
    ):
        if key not in said and not (key == "environment" and "python" in said):
            yield f"  # {key}: {example}"
    if not {"launch", "unit"} & set(said) and not section.key_in_argv:
        yield "  # launch: # flags of sglang.launch_server, once model_path is said; or `unit: NAME.service`"
        yield "  #   speculative-algorithm: EAGLE3"


def _key_hint(name: str, section: Section) -> Iterator[str]:
    variable = re.sub(r"\W", "_", name).upper() + "_API_KEY"
    yield "  # The server wants an API key. Say where it is, never what it is:"
    yield f"  # api_key: !env {variable}"
    yield f"  # api_key: !file ~/.config/sglang/{name}.key"
    if section.key_in_argv:
        yield "  # It stands in the server's command line, where every user of the host can read it, so the command"
        yield "  # is not repeated here. Put the key into a file that only the server's user can read, and say:"
        yield "  # launch:"
        yield "  #   config: /etc/sglang/server.yaml   # holds `api-key: ...`"


def _entry(indent: int, key: str, value: Any, comment: str | None) -> Iterator[str]:
    pad = " " * indent
    after = f" # {one_line(comment)}" if comment else ""
    if isinstance(value, Mapping) and value:
        yield f"{pad}{key}:{after}"
        for name, each in value.items():
            yield f"{pad}  {_scalar(name)}: {_scalar(each)}"
    elif isinstance(value, list):
        yield f"{pad}{key}:{after}"
        yield from (f"{pad}  - {_scalar(each)}" for each in value)
    else:
        yield f"{pad}{key}: {_scalar(value)}{after}"


def _scalar(value: Any) -> str:
    """A value on one line, quoted where YAML would read it as something else."""
    text: str = yaml.safe_dump(value, default_flow_style=True, allow_unicode=False, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...").strip()


def _modeline(kind: str, up: str) -> str:
    return f"# yaml-language-server: $schema={up}{SCHEMAS}/{kind}.schema.json\n"


@dataclass(frozen=True, slots=True)
class Section:
    """The section, key by key; `has_key`: the server wants an API key, which is nowhere in it."""

    values: Mapping[str, Any]
    comments: Mapping[str, str]
    has_key: bool
    key_in_argv: bool


def section(found: Found) -> Section:
    return _of_server(found, found.server) if found.server else _of_files(found)


def _of_server(found: Found, server: Running) -> Section:
    started = command.parse(server.argv) or command.Launch()
    bind = started.host if started.host and started.host not in _ANY else None
    values: dict[str, Any] = {
        **_code(found),
        **_interpreter(server.python),
        "model_path": started.model,
        "tp": started.tp,
        "bind": bind,
        "port": started.port or DEFAULT_PORT,
        "log": server.log,
        "weights_root": _weights_root(started.draft_model, started.model, found.home),
        "unit": server.unit,
        "unit_scope": "user" if server.unit and server.user_unit else None,
        "container": server.container,
        "env": dict(sorted(server.env.items())) or None,
    }
    comments = {"weights_root": "releases of draft models go to releases/ below it"}
    if found.checkout and found.checkout.commit:
        comments["checkout"] = _state(found)
    if server.container:
        for name in ("checkout", "environment", "python", "env", "log"):
            values[name] = None  # they are the container's own
    elif not server.unit and not started.has_api_key:
        values["launch"] = _launch(server.argv, drop=_said(values, started))
    key = started.has_api_key or started.config is not None
    return Section({k: v for k, v in values.items() if v is not None}, comments, key, started.has_api_key)


def _of_files(found: Found) -> Section:
    gpus = found.profile.get("gpus")
    values: dict[str, Any] = {
        **_code(found),
        "environment": found.environment,
        "model_path": found.model,
        "tp": gpus or None,
        "port": found.port or DEFAULT_PORT,
        "weights_root": _weights_root(None, found.model, found.home),
        "unit": found.unit,
        "unit_scope": "user" if found.unit and found.user_unit else None,
        "launch": None if found.unit or not found.model else dict(USUAL_FLAGS),
    }
    comments = {
        "port": "nothing runs there now" + ("" if found.port else ": this is SGLang's default"),
        "weights_root": "releases of draft models go to releases/ below it",
    }
    if gpus:
        comments["tp"] = "one rank per GPU"
    if found.checkout and found.checkout.commit:
        comments["checkout"] = _state(found)
    for kind, paths in found.others.items():
        comments[kind] = "; ".join(filter(None, [comments.get(kind), f"also there: {', '.join(paths[:4])}"]))
    return Section({k: v for k, v in values.items() if v is not None}, comments, has_key=False, key_in_argv=False)


def _code(found: Found) -> dict[str, Any]:
    return {"checkout": found.checkout.path if found.checkout else None}


def _state(found: Found) -> str:
    tree = found.checkout
    assert tree is not None
    assert tree.commit is not None
    at = f"at {tree.commit[:12]}" + (f" on {tree.branch}" if tree.branch else "")
    return at + (f", {tree.changed} changed file{'' if tree.changed == 1 else 's'}" if tree.changed else "")


def _interpreter(python: str) -> dict[str, str]:
    environment = environment_of(python)
    return {"environment": environment} if environment else {"python": python}


def _weights_root(drafter: str | None, model: str | None, home: str) -> str:
    """Beside the draft model that is served, else beside the models, else in the home folder."""
    if drafter and drafter.startswith("/"):
        return drafter.partition("/releases/")[0] if "/releases/" in drafter else posixpath.dirname(drafter.rstrip("/"))
    if model and model.startswith("/"):
        return posixpath.join(posixpath.dirname(posixpath.dirname(model.rstrip("/"))), "drafters")
    return posixpath.join(home, "drafters")


def _said(values: Mapping[str, Any], started: command.Launch) -> set[str]:
    """Flags that the section says in words of its own, in every spelling."""
    names = {"model-path", "tp-size", "port"} | ({"host"} if values["bind"] else set())
    return names | {spelling for name in names for spelling in SPELLINGS.get(name, ())}


def _launch(argv: Sequence[str], drop: set[str]) -> dict[str, Any] | list[str]:
    """The command as a mapping of flags without those, or as it stands where that would lose something."""
    flags = as_flags(argv)
    return list(argv) if flags is None else {flag: value for flag, value in flags.items() if flag not in drop}
