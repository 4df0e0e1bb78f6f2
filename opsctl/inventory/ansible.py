"""Ansible's YAML inventories, where the keys mean the same here."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from opsctl.errors import UsageError
from opsctl.text import did_you_mean
from opsctl.yaml_source import DocPath, Source, as_bool

_GROUP_KEYS = {"hosts", "children", "vars"}
_OURS = {"defaults", "groups", "hosts"}

# Ansible's variable -> our key. https://docs.ansible.com/ansible/latest/inventory_guide/connection_details.html
_KEYS = {
    "ansible_host": "address",
    "ansible_ssh_host": "address",
    "ansible_port": "port",
    "ansible_ssh_port": "port",
    "ansible_user": "user",
    "ansible_ssh_user": "user",
    "ansible_ssh_private_key_file": "key",
    "ansible_private_key_file": "key",
    "ansible_password": "password",
    "ansible_ssh_pass": "password",
    "ansible_ssh_password": "password",
    "ansible_become_password": "become_password",
    "ansible_become_pass": "become_password",
    "ansible_sudo_pass": "become_password",
    "ansible_python_interpreter": "python",
    "sglang": "sglang",
}
_MOST_NAMES = 10_000
_JUMP = re.compile(r"-J\s*(\S+)|-o\s*ProxyJump[= ](\S+)")


@dataclass(slots=True)
class Translated:
    """An Ansible inventory in our words; `origin` says where in the file each part of it stands."""

    value: dict[str, Any] = field(default_factory=lambda: {"defaults": {}, "groups": {}, "hosts": {}})
    origin: dict[DocPath, DocPath] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_ansible(value: Any) -> bool:
    """Whether the top level of an inventory file is Ansible's: groups by name, each with hosts, children or vars."""
    if not isinstance(value, dict) or not value or set(value) & _OURS:
        return False
    return all(v is None or (isinstance(v, dict) and set(v) <= _GROUP_KEYS) for v in value.values())


def translate(source: Source) -> Translated:
    """The inventory in our words. Raises UsageError."""
    result = Translated()
    for name, group in source.value.items():
        _group(result, source, name, group, (name,))
    return result


def _group(result: Translated, source: Source, name: str, group: Any, path: tuple[str, ...]) -> None:
    if group is None:
        group = {}
    if not isinstance(group, dict):
        raise UsageError(f"group {name!r}: expected a mapping", where=source.place(path))
    for key in group:
        if key not in _GROUP_KEYS:
            raise UsageError(
                f"unknown key {key!r} in group {name!r}",
                where=source.key_place((*path, key)),
                hint=did_you_mean(key, _GROUP_KEYS),
            )
    members = _mapping(source, (*path, "hosts"), group.get("hosts"))
    names: list[str] = []
    for host_name, said in members.items():
        here = (*path, "hosts", host_name)
        try:
            expanded = expand(host_name)
        except (ValueError, OverflowError) as error:
            raise UsageError(str(error), where=source.key_place(here)) from None
        names += expanded
        for one in expanded:
            result.origin.setdefault(("hosts", one), here)
            settings = _settings(result, source, said, here)
            _merge(result.value["hosts"].setdefault(one, {}), settings)
    children = _mapping(source, (*path, "children"), group.get("children"))
    variables = _settings(result, source, group.get("vars"), (*path, "vars"))
    if name == "all":
        _merge(result.value["defaults"], variables)
        result.origin.setdefault(("defaults",), (*path, "vars"))
    else:
        ours = result.value["groups"].setdefault(name, {"hosts": [], "children": []})
        result.origin.setdefault(("groups", name), path)
        ours["hosts"] += [one for one in dict.fromkeys(names) if one not in ours["hosts"]]
        ours["children"] += [c for c in children if c not in ours["children"]]
        _merge(ours, variables)
    for child, said in children.items():
        _group(result, source, child, said, (*path, "children", child))


def _mapping(source: Source, path: tuple[str, ...], value: Any) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{path[-1]}: expected a mapping of names", where=source.place(path))
    return value


def _settings(result: Translated, source: Source, said: Any, path: tuple[str, ...]) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    variables: dict[str, Any] = {}
    become, become_user = None, None
    for key, value in _mapping(source, path, said).items():
        if key in _KEYS:
            settings[_KEYS[key]] = value
        elif key == "ansible_connection":
            settings["connection"] = "ssh" if value in ("ssh", "smart", "paramiko", "paramiko_ssh") else value
        elif key == "ansible_become":
            become = value
        elif key == "ansible_become_user":
            become_user = value
        elif key in ("ansible_ssh_common_args", "ansible_ssh_extra_args"):
            _ssh_arguments(result, settings, str(value), str(source.key_place((*path, key))))
        elif key.startswith("ansible_"):
            result.notes.append(f"{source.key_place((*path, key))}: {key} has no meaning here and is not used")
        else:
            variables[key] = value
    if become is True or (isinstance(become, str) and as_bool(become)):
        settings["become"] = become_user or True
    elif become is not None:
        settings["become"] = False
    if variables:
        settings["vars"] = variables
    return settings


def _ssh_arguments(result: Translated, settings: dict[str, Any], text: str, place: str) -> None:
    jump = _JUMP.search(text)
    if jump:
        settings["jump"] = (jump[1] or jump[2]).strip("'\"").split(",")
    try:
        rest = shlex.split(_JUMP.sub("", text))
    except ValueError:
        rest = [text]
    if rest:
        result.notes.append(f"{place}: {' '.join(rest)} is not used; say it in ~/.ssh/config")


def _merge(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if key in ("vars", "sglang") and isinstance(into.get(key), dict) and isinstance(value, dict):
            into[key] = {**into[key], **value}
        else:
            into[key] = value


def expand(name: str) -> list[str]:
    """Host names of a range: `gpu[01:03]` -> gpu01, gpu02, gpu03; `n[a:c]` -> na, nb, nc.

    Raises ValueError for a range that is empty or stands for more than 10000 names.
    """
    found = re.search(r"\[(\w+):(\w+)(?::(\d+))?\]", name)
    if not found:
        return [name]
    first, last, step = found[1], found[2], int(found[3] or 1) or 1
    if first.isdigit() and last.isdigit():
        numbers = range(int(first), int(last) + 1, step)
        middle = (str(n).zfill(len(first)) for n in numbers)
    elif len(first) == len(last) == 1:
        numbers = range(ord(first), ord(last) + 1, step)
        middle = (chr(c) for c in numbers)
    else:
        return [name]
    rest = expand(name[found.end() :])
    if not 0 < len(numbers) * len(rest) <= _MOST_NAMES:
        raise ValueError(f"{name!r} stands for {len(numbers) * len(rest)} hosts, expected 1 to {_MOST_NAMES}")
    return [name[: found.start()] + m + end for m in middle for end in rest]
