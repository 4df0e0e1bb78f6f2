"""From an inventory file to hosts with merged settings. Precedence: defaults < group < nearer group < host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opsctl.errors import UsageError
from opsctl.inventory.ansible import Translated, read_inventory
from opsctl.inventory.hosts import Inventory, InventoryHost
from opsctl.inventory.model import NAME, Group, InventoryFile, Settings, SglangSettings
from opsctl.localfiles import read
from opsctl.schema_errors import validate
from opsctl.secret_sources import know_what_is_at_hand
from opsctl.text import did_you_mean, few
from opsctl.yaml_source import Source

NAMES = ("inventory.yaml", "inventory.yml")


def find(path: str | Path | None = None) -> Path | None:
    """The inventory to use: the one named, else $OPSCTL_INVENTORY, else inventory.yaml here or in a folder above."""
    named = path or os.environ.get("OPSCTL_INVENTORY")
    if named:
        return Path(named)
    here = Path.cwd()
    for folder in (here, *here.parents):
        for name in NAMES:
            if (folder / name).is_file():
                found = folder / name
                return found.relative_to(here) if folder == here else found
    return None


def known_as(file: str | Path | None) -> str | None:
    """The full path of an inventory file, by which the runs of one project are told from another's."""
    return str(Path(file).resolve()) if file else None


def load(path: str | Path | None = None) -> Inventory:
    """The inventory at `path` (see `find`). Without any file, an inventory that takes names as SSH destinations.

    Raises UsageError with the place of what is wrong.
    """
    found = find(path)
    if found is None:
        return Inventory(None, {}, {})
    try:
        text = read(found, piped=True)
    except IsADirectoryError:
        raise UsageError(f"{found} is a folder", hint=f"name one file of it: {_files_in(found)}") from None
    except OSError as error:
        raise UsageError(f"cannot read {found}: {error.strerror}") from None
    return parse(text, found)


def _files_in(folder: Path) -> str:
    return few([one.name for one in sorted(folder.iterdir()) if one.is_file()]) or "it has none"


def parse(text: bytes, path: Path) -> Inventory:
    """The inventory in the text of the file at `path`. Raises UsageError with every mistake."""
    said = read_inventory(path, text)
    if isinstance(said, Translated):
        return _build(said.source, tuple(said.notes), said.blocked)
    beside = [str(folder) for name in ("group_vars", "host_vars") if (folder := path.parent / name).is_dir()]
    notes = [f"{folder}: not read, since {path} is no inventory of Ansible's: say `vars` in it" for folder in beside]
    return _build(said, tuple(notes), {})


def _build(source: Source, notes: tuple[str, ...], blocked: Mapping[str, UsageError]) -> Inventory:
    model: InventoryFile = validate(InventoryFile, source.value, source)
    if wrong := list(_wrong_names(model, source)):
        raise UsageError.of(wrong)
    parents = _parents(model, source)
    hosts = {name: _host(name, model, parents, source, blocked.get(name)) for name in model.hosts}
    groups = {g: tuple(h for h in hosts if g in hosts[h].groups) for g in model.groups}
    know_what_is_at_hand(model.hosts, model.groups, model.defaults)
    return Inventory(source.file, hosts, groups, notes)


def _wrong_names(model: InventoryFile, source: Source) -> Iterator[UsageError]:
    for kind, names in (("hosts", model.hosts), ("groups", model.groups)):
        for name in names:
            if not NAME.match(name) or name == "all":
                yield UsageError(
                    f"{name!r} cannot name a {kind[:-1]}: letters, digits, - _ and . only, and not `all`",
                    where=source.key_place((kind, name)),
                )
    for name, group in model.groups.items():
        if name in model.hosts and group.hosts != [name]:
            yield UsageError(
                f"{name!r} is a host and a group: patterns could not tell which is meant",
                where=source.key_place(("groups", name)),
            )
        for kind, members, valid in (("hosts", group.hosts, model.hosts), ("children", group.children, model.groups)):
            for index, member in enumerate(members):
                if member not in valid:
                    yield UsageError(
                        f"group {name!r} names {member!r}, which is no {'host' if kind == 'hosts' else 'group'} here",
                        where=source.place(("groups", name, kind, index)),
                        hint=did_you_mean(member, valid) if valid else None,
                    )


def _parents(model: InventoryFile, source: Source) -> dict[str, list[str]]:
    """The groups that each group is a child of. Raises UsageError for a cycle."""
    parents: dict[str, list[str]] = {name: [] for name in model.groups}
    for name, group in model.groups.items():
        for child in group.children:
            parents[child].append(name)
    for name in model.groups:
        trail = _cycle(name, parents)
        if trail:
            raise UsageError(
                f"groups contain one another: {' -> '.join(reversed(trail))}",
                where=source.place(("groups", name, "children")),
            )
    return parents


def _cycle(start: str, parents: Mapping[str, Sequence[str]]) -> list[str]:
    stack: list[list[str]] = [[start]]
    seen: set[str] = set()
    while stack:
        trail = stack.pop()
        for parent in parents[trail[-1]]:
            if parent == start:
                return [*trail, parent]
            if parent not in seen:
                seen.add(parent)
                stack.append([*trail, parent])
    return []


def _host(
    name: str, model: InventoryFile, parents: Mapping[str, Sequence[str]], source: Source, blocked: UsageError | None
) -> InventoryHost:
    groups = _groups_of(name, model, parents)
    layers: list[Settings] = [model.defaults, *(model.groups[g] for g in groups), model.hosts[name]]
    settings = merge(layers)
    own: dict[str, Any] = {
        "inventory_hostname": name,
        "group_names": list(groups),
        "sglang": (settings.sglang or SglangSettings()).model_dump(),
    }
    return InventoryHost(name, settings, groups, {**settings.vars, **own}, Path(source.file).parent, source, blocked)


def _groups_of(host: str, model: InventoryFile, parents: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """All groups of a host, outer ones first; among equals, in the order of the file."""
    depth: dict[str, int] = {}
    level = [g for g, group in model.groups.items() if host in group.hosts]
    distance = 0
    while level:
        for group in level:
            depth[group] = distance
        level = [p for g in level for p in parents[g]]
        distance += 1
    order = {name: index for index, name in enumerate(model.groups)}
    return tuple(sorted(depth, key=lambda g: (-depth[g], order[g])))


def merge(layers: Sequence[Settings]) -> Settings:
    """Settings merged key by key, later layers over earlier ones; sections such as `sglang` key by key inside."""
    merged: dict[str, Any] = {}
    for layer in layers:
        for key in layer.model_fields_set:
            if key in ("hosts", "children") and isinstance(layer, Group):
                continue
            value = getattr(layer, key)
            if key == "vars":
                value = {**merged.get("vars", {}), **value}
            elif key in ("sglang", "ssh", "timeouts") and value is not None:
                said = {k: getattr(value, k) for k in value.model_fields_set}
                before = merged.get(key)
                value = before.model_copy(update=said) if before is not None else value
            merged[key] = value
    return Settings.model_construct(_fields_set=set(merged), **{**_unset(), **merged})


def _unset() -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
