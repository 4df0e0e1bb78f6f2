"""Writing inventories of ours: a host more in one that is there, or a whole one from one of Ansible's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from opsctl.errors import Place, UsageError
from opsctl.inventory.ansible import Meaning, Translated, read_inventory, says_how
from opsctl.inventory.ansible_groups import Variables
from opsctl.inventory.hosts import Inventory
from opsctl.inventory.load import parse
from opsctl.inventory.model import Settings
from opsctl.secret import Secret
from opsctl.secret_sources import LateSecret
from opsctl.wire.secret_names import holds_secret
from opsctl.yaml_source import plain_scalar

_DEEPER = "  "
_PASSWORDS = ("password", "become_password")


def add_host(text: str, path: Path, name: str, entry: Sequence[str], group: str | None = None) -> str:
    """The text of the inventory at `path` with one host more, as a member of `group` if one is named.

    Comments and order stay, and so does what is said of every other host.

    Args:
        entry: the lines of what is said of it, indented as from its name; may hold comments.

    Raises UsageError where the file is wrong, is none of ours, has the name already, or cannot be added to.
    """
    before = own(text, path)
    for kind, names in (("host", before.hosts), ("group", before.groups)):
        if name in names:
            raise UsageError(f"there is a {kind} {name!r} already", where=str(path), hint="choose another --name")
    lines = [f"{name}:", *(f"{_DEEPER}{line}".rstrip() for line in entry)]
    flow = f"{name}: {_on_one_line(entry)}"
    changed = _with_entry(text, ("hosts",), lines, flow)
    if group is not None:
        changed = _with_member(changed, group, name)
    by_hand = UsageError(
        "the host cannot be added without disturbing the rest", where=str(path), hint="add it by hand: opsctl doc host"
    )
    try:
        after = parse(changed.encode(), path)
    except UsageError as error:
        raise by_hand from error
    wanted = [*before.hosts, name]
    same = all(_said(before, host, group) == _said(after, host, group) for host in before.hosts if host in after.hosts)
    if list(after.hosts) != wanted or not same or (group and name not in after.groups[group]):
        raise by_hand
    return changed


def own(text: str, path: Path) -> Inventory:
    """The inventory in a text, where it is one of ours. Raises UsageError."""
    if isinstance(read_inventory(path, text.encode()), Translated):
        raise UsageError(
            "an inventory of Ansible's is read, and never changed",
            where=str(path),
            hint=f"opsctl inventory import {path} writes one of opsctl's",
        )
    return parse(text.encode(), path)


def _said(inventory: Inventory, host: str, group: str | None) -> Any:
    one = inventory.hosts[host]
    return repr(one.settings), [name for name in one.groups if name != group or host in inventory.groups[name]]


def _on_one_line(entry: Sequence[str]) -> str:
    value = yaml.compose("\n".join(entry), Loader=yaml.SafeLoader) if entry else None
    if value is None:
        return "{}"
    nodes = [value]
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = True
            nodes += [one for pair in node.value for one in (pair if isinstance(pair, tuple) else (pair,))]
    return yaml.serialize(value, Dumper=yaml.SafeDumper, width=10**6).strip()


def _with_entry(text: str, path: tuple[str, ...], lines: Sequence[str], flow: str) -> str:
    """The text with an entry more in the mapping at `path`, which is written where there is none.

    Args:
        lines: the entry in lines of its own.
        flow: the same for a mapping that is written in braces.
    """
    key, value = _found(text, path)
    if key is None:
        inner = [f"{path[-1]}:", *(f"{_DEEPER}{line}".rstrip() for line in lines)]
        if len(path) == 1:
            return _after(text, len(text.splitlines()), inner)
        return _with_entry(text, path[:-1], inner, f"{path[-1]}: {{{flow}}}")
    if not isinstance(value, yaml.MappingNode) or not value.value:  # nothing, or `{}`
        text = f"{text[: key.end_mark.index]}:{text[value.end_mark.index :]}"
        pad = " " * key.start_mark.column + _DEEPER
        return _after(text, key.end_mark.line + 1, [f"{pad}{line}".rstrip() for line in lines])
    if value.flow_style:
        at = value.value[-1][1].end_mark.index
        return f"{text[:at]}, {flow}{text[at:]}"
    column = value.value[0][0].start_mark.column
    return _after(text, _end(text, value, column), [f"{' ' * column}{line}".rstrip() for line in lines])


def _found(text: str, path: tuple[str, ...]) -> tuple[Any, Any]:
    """The nodes of the key and of the value at `path`; None where there is none."""
    key, node = None, yaml.compose(text, Loader=yaml.SafeLoader)
    for step in path:
        entries = node.value if isinstance(node, yaml.MappingNode) else []
        key, node = next(((k, v) for k, v in entries if k.value == step), (None, None))
    return key, node


def _end(text: str, node: yaml.Node, column: int) -> int:
    """The number of lines to the end of a block, with the comments below it that are indented as what is in it."""
    leaf, mark = node, node.end_mark
    while isinstance(leaf, yaml.CollectionNode) and leaf.value and not leaf.flow_style:
        last = leaf.value[-1]
        key, leaf = last if isinstance(last, tuple) else (None, last)
        mark = leaf.end_mark
        if key is not None and leaf.start_mark.index < key.end_mark.index:  # an alias
            leaf, mark = key, key.end_mark
    end = mark.line if mark.column == 0 and mark.line > leaf.start_mark.line else mark.line + 1
    rest = text.splitlines()[end:]
    for number, line in enumerate(rest, end + 1):
        bare = line.strip()
        if bare and not (bare[0] == "#" and len(line) - len(line.lstrip()) > column):
            break
        if bare:
            end = number
    return end


def _after(text: str, line: int, lines: Sequence[str]) -> str:
    """The text with lines more below its first `line` lines."""
    newline = "\r\n" if "\r\n" in text else "\n"
    kept = text.splitlines(keepends=True)
    if line and not kept[line - 1].endswith("\n"):
        kept[line - 1] += newline
    return "".join([*kept[:line], *(f"{one}{newline}" for one in lines), *kept[line:]])


def _with_member(text: str, group: str, name: str) -> str:
    """The text with a host more in a group, which is written where there is none."""
    _, members = _found(text, ("groups", group, "hosts"))
    if not isinstance(members, yaml.SequenceNode):
        return _with_entry(text, ("groups", group), [f"hosts: [{name}]"], f"hosts: [{name}]")
    if not members.value:
        return f"{text[: members.start_mark.index]}[{name}]{text[members.end_mark.index :]}"
    last = members.value[-1]
    if members.flow_style:
        return f"{text[: last.end_mark.index]}, {name}{text[last.end_mark.index :]}"
    return _after(text, last.end_mark.line + 1, [f"{' ' * members.start_mark.column}- {name}"])


def imported(text: bytes, path: Path, to: Path) -> tuple[str, list[str]]:
    """An inventory of ours, to be written at `to`, that says what Ansible's at `path` says; and what it leaves out.

    What is said of a group stays at the group, where that comes to the same for every host. Secrets are never copied.
    Raises UsageError.
    """
    said = read_inventory(path, text)
    if not isinstance(said, Translated):
        raise UsageError("this is an inventory of opsctl's own already", where=str(path))
    if to.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{to} would be no YAML file", hint="choose a name that ends with .yaml")
    return _Import(said, path).done(to)


class _Import:
    def __init__(self, said: Translated, path: Path) -> None:
        self.said, self.path = said, path
        self.told = [f"left out: {note}" for note in said.notes]
        self._named: dict[Any, str] = {}
        texts = repr([variable.value for host in said.groups.hosts for variable in said.groups.merged(host).values()])
        self._mentioned = set(re.findall(r"\bansible_\w+", texts))

    def done(self, to: Path) -> tuple[str, list[str]]:
        groups, blocked = self.said.groups, self.said.blocked
        for host in blocked:
            self.told.append(f"left out: the host {host}, since it cannot be reached as it is said")
        document: dict[str, Any] = {"defaults": {}, "groups": {}, "hosts": {}}
        for name, group in groups.groups.items():
            settings = self._of_layer(name, {**group.own, **group.filed})
            if name == "all":
                document["defaults"] = settings
            elif name != "ungrouped" or settings:
                said = self.said.source.value["groups"][name]
                members = {"hosts": [h for h in said["hosts"] if h not in blocked], "children": said["children"]}
                document["groups"][name] = {key: names for key, names in members.items() if names} | settings
        for name, one in groups.hosts.items():
            if name not in blocked:
                document["hosts"][name] = self._of_layer(name, {**one.own, **one.filed})
        flat = {name: self._of_host(name) for name in document["hosts"]}
        meant = parse(_dumped({"hosts": flat}).encode(), to)
        written = parse(_dumped(document).encode(), to)
        for name, settings in flat.items():
            mine = document["hosts"][name]
            wanted, found = _compared(meant.hosts[name].settings), _compared(written.hosts[name].settings)
            for path in [path for path in {**wanted, **found} if wanted.get(path) != found.get(path)]:
                _put(mine, path, _at(settings, path))
        head = f"# Written by `opsctl inventory import` from {self.path}. It is yours now.\n"
        head += "# What else can be said: `opsctl doc host` and `opsctl doc sglang`.\n\n"
        parts = [_dumped({key: value}) for key, value in document.items() if value]
        return head + "\n".join(parts), list(dict.fromkeys(self.told))

    def _of_layer(self, owner: str, variables: Variables) -> dict[str, Any]:
        """What a group or a host says by itself; a template that needs more than that is left to each host."""
        meaning = Meaning("", variables, self.path, self.said.groups.vaults)
        meaning.settle()
        return self._plain(owner, meaning.settings, meaning.values)

    def _of_host(self, name: str) -> dict[str, Any]:
        places = {path[2:]: place for path, place in self.said.source.values.items() if path[:2] == ("hosts", name)}
        return self._plain(name, self.said.source.value["hosts"][name], places)

    def _plain(self, owner: str, settings: Mapping[str, Any], places: Mapping[Any, Place]) -> dict[str, Any]:
        """Settings without what they make needless, their secrets as what is read from the environment."""
        said = {key: value for key, value in settings.items() if key != "vars"}
        variables = settings.get("vars", {})
        if kept := {n: v for n, v in variables.items() if not says_how(n) or n in self._mentioned}:
            said["vars"] = kept
        return {key: self._value(owner, (key,), value, places) for key, value in said.items()}

    def _value(self, owner: str, path: tuple[Any, ...], value: Any, places: Mapping[Any, Place]) -> Any:
        match value:
            case dict():
                return {key: self._value(owner, (*path, key), one, places) for key, one in value.items()}
            case list():
                return [self._value(owner, (*path, index), one, places) for index, one in enumerate(value)]
            case LateSecret() if value.described.startswith("!env "):
                return _FromEnv(value.described.removeprefix("!env "))
            case Secret():
                return self._from_env(owner, path, value, places)
            case str() if "{{" not in value and (path[0] in _PASSWORDS or holds_secret(str(path[-1]), value)):
                return self._from_env(owner, path, value, places)
        return value

    def _from_env(
        self, owner: str, path: tuple[Any, ...], value: Secret | str, places: Mapping[Any, Place]
    ) -> _FromEnv:
        place = value.place if isinstance(value, LateSecret) else places.get(path, places.get(path[:2]))
        known = place, value.described if isinstance(value, LateSecret) else value
        if known not in self._named:
            words = [owner, *(str(step) for step in path if step != "vars")]
            self._named[known] = re.sub(r"\W", "_", "_".join(words)).upper()
            what = "in clear" if isinstance(value, str) else "not opened here"
            name = self._named[known]
            self.told.append(f"a secret: {place}: {what}: written as `!env {name}`: say where it is, or export {name}")
        return _FromEnv(self._named[known])


class _FromEnv(str):
    """The name of an environment variable that holds a secret."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Writes what our reader takes for the same: its words in quotes, short lists on one line."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    plain = type(plain_scalar(text)) is str
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


def _list_node(dumper: yaml.SafeDumper, values: list[Any]) -> yaml.Node:
    flow = not any(isinstance(one, dict | list) for one in values)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", values, flow_style=flow)


_Dumper.add_representer(str, _text_node)
_Dumper.add_representer(list, _list_node)
_Dumper.add_representer(_FromEnv, lambda dumper, name: dumper.represent_scalar("!env", name))


def _dumped(document: Mapping[str, Any]) -> str:
    return yaml.dump(
        dict(document), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=False
    )


def _compared(settings: Settings) -> dict[tuple[str, ...], Any]:
    """What settings say, key by key, with secrets as where they come from."""
    return dict(_keys((), {key: getattr(settings, key) for key in type(settings).model_fields}))


def _keys(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(value, "model_fields_set"):
        value = {key: getattr(value, key) for key in value.model_fields_set}
    if isinstance(value, dict) and len(path) < 2:
        for key, one in value.items():
            yield from _keys((*path, key), one)
    elif value is not None:
        yield path, _unrevealed(value)


def _unrevealed(value: Any) -> Any:
    match value:
        case LateSecret():
            return value.described
        case dict():
            return {key: _unrevealed(one) for key, one in value.items()}
        case list():
            return [_unrevealed(one) for one in value]
    return value


def _at(settings: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        settings = settings.get(step) if isinstance(settings, dict) else None
    return settings


def _put(settings: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for step in path[:-1]:
        settings = settings.setdefault(step, {})
    settings[path[-1]] = value
