"""The files for a host: its inventory, with comments, and the shipped playbooks fitted to it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from opsctl.survey.found import Found
from opsctl.survey.settings import Section
from opsctl.text import one_line

PLAYBOOKS = ("deploy-drafter", "health", "pin-sglang", "probe", "restart-server", "start-server")
SCHEMAS = ".schema"


@dataclass(frozen=True, slots=True)
class Reached:
    """How the host is reached: the keys of its inventory entry, and the name that it has there."""

    name: str
    keys: Mapping[str, Any]


def inventory(reached: Reached, found: Found, section: Section) -> str:
    """The text of inventory.yaml."""
    return "\n".join(_lines(reached, found, section)) + "\n"


def playbook(text: str, host: str, found: Found) -> str:
    """A shipped playbook for this host: its name and its commit."""
    text = re.sub(r"^# yaml-language-server: .*\n", _modeline("playbook", "../"), text)
    text = re.sub(r"^  hosts: all$", f"  hosts: {_scalar(host)}", text, flags=re.M)
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
    yield "hosts:"
    yield f"  {_scalar(reached.name)}:"
    for key, value in reached.keys.items():
        yield f"    {key}: {_scalar(value)}"
    if found.owner:
        yield f"    become: {_scalar(found.owner)} # the server is a unit of that user's own systemd"
    else:
        yield "    # become: true              # become root through sudo, where logging in as root is not possible"
    yield "    sglang:"
    for key, value in section.values.items():
        yield from _entry(6, key, value, section.comments.get(key))
    yield from _missing(section)
    if section.has_key:
        yield from _key_hint(reached.name, section)
    if found.profile:
        yield "    vars:"
        yield "      health:"
        yield "        profile: # what `opsctl health` expects here, recorded from what is there now: is it right?"
        for key, value in found.profile.items():
            yield from _entry(10, key, value, None)


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
            yield f"      # {key}: {example}"
    if not {"launch", "unit"} & set(said) and not section.key_in_argv:
        yield "      # launch: # flags of sglang.launch_server, once model_path is said; or `unit: NAME.service`"
        yield "      #   speculative-algorithm: EAGLE3"


def _key_hint(name: str, section: Section) -> Iterator[str]:
    variable = re.sub(r"\W", "_", name).upper() + "_API_KEY"
    yield "      # The server wants an API key. Say where it is, never what it is:"
    yield f"      # api_key: !env {variable}"
    yield f"      # api_key: !file ~/.config/sglang/{name}.key"
    if section.key_in_argv:
        yield "      # It stands in the server's command line, where every user of the host can read it, so the command"
        yield "      # is not repeated here. Put the key into a file that only the server's user can read, and say:"
        yield "      # launch:"
        yield "      #   config: /etc/sglang/server.yaml   # holds `api-key: ...`"


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
