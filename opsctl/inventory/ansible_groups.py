"""Ansible's inventories as they stand: groups, hosts and their variables, of YAML or INI and of the folders beside it.

Which variable counts where several files say it is Ansible's order: `merged`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from opsctl.errors import Place, UsageError
from opsctl.inventory import ini
from opsctl.localfiles import read
from opsctl.text import VARIABLE, did_you_mean, one_line
from opsctl.yaml_source import DocPath, Source, parse_yaml

GROUP_KEYS = ("children", "hosts", "vars")
VAULT = b"$ANSIBLE_VAULT;"
"""What a file begins with that is encrypted as a whole."""

_ENDINGS = ("", ".yml", ".yaml", ".json")
_PORT = re.compile(r"\[(?P<inner>.+)\]:(?P<behind>[0-9]+)|(?P<name>(?:[^:\[\]]|\[[^\]]*\])*):(?P<port>[0-9]+)")
_MOST_NAMES = 10_000
_MOST_RANGES = 10  # of one name


@dataclass(frozen=True, slots=True)
class Variable:
    """A value, and where it stands; `source` and `path` have the places of what is in it, where they are known."""

    value: Any
    place: Place
    source: Source | None = None
    path: DocPath = ()

    def places(self, at: DocPath) -> Iterator[tuple[DocPath, Place, Place]]:
        """Of the value and of all that is in it, as if it stood at `at`: the place of its key, and its own."""
        if self.source is None:
            yield at, self.place, self.place
            return
        stack: list[tuple[DocPath, DocPath, Any]] = [(at, self.path, self.value)]
        while stack:
            ours, theirs, value = stack.pop()
            yield ours, self.source.key_place(theirs), self.source.place(theirs)
            inner: Iterable[tuple[Any, Any]] = ()
            if isinstance(value, dict):
                inner = value.items()
            elif isinstance(value, list):
                inner = enumerate(value)
            stack += [((*ours, key), (*theirs, key), one) for key, one in inner]


Variables = dict[str, Variable]


@dataclass(slots=True)
class AnsibleGroup:
    """A group: `own` variables stand in the inventory, `filed` ones in group_vars."""

    place: Place
    hosts: dict[str, Place] = field(default_factory=dict)
    children: dict[str, Place] = field(default_factory=dict)
    own: Variables = field(default_factory=dict)
    filed: Variables = field(default_factory=dict)


@dataclass(slots=True)
class AnsibleHost:
    """A host: `own` variables stand in the inventory, `filed` ones in host_vars."""

    place: Place
    own: Variables = field(default_factory=dict)
    filed: Variables = field(default_factory=dict)


@dataclass
class Groups:
    """All groups and hosts, in the order of the file.

    Attributes:
        mistakes: what is wrong with it, each with its place.
        notes: what was not read, and why.
        vaults: files that are encrypted as a whole, whose variables nobody knows here.
    """

    file: str
    groups: dict[str, AnsibleGroup] = field(default_factory=dict)
    hosts: dict[str, AnsibleHost] = field(default_factory=dict)
    mistakes: list[UsageError] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    vaults: list[str] = field(default_factory=list)

    def add_group(self, name: str, place: Place) -> AnsibleGroup:
        return self.groups.setdefault(name, AnsibleGroup(place))

    def add_hosts(self, group: str, pattern: str, place: Place, variables: Variables) -> None:
        """The hosts of a group that `pattern` stands for (`web[01:10]`, `web:2222`), and what is said of them."""
        name, port = _apart(pattern)
        try:
            names = expand(name)
        except (ValueError, OverflowError) as error:
            raise UsageError(str(error), where=place) from None
        for one in names:
            host = self.hosts.get(one)
            if host is None:
                host = self.hosts[one] = AnsibleHost(place)
                if port is not None:
                    host.own["ansible_port"] = Variable(port, place)
            host.own |= variables
            self.add_group(group, place).hosts.setdefault(one, place)

    @cached_property
    def parents(self) -> Mapping[str, list[str]]:
        """The groups that each group is a child of; `all` is above every other."""
        found: dict[str, list[str]] = {name: [] for name in self.groups}
        for name, group in self.groups.items():
            for child in group.children:
                if child in found:
                    found[child].append(name)
        return {name: above or (["all"] if name != "all" else []) for name, above in found.items()}

    @cached_property
    def depths(self) -> Mapping[str, int]:
        """How far each group is from `all`, by the longest way."""
        depths: dict[str, int] = {"all": 0}

        def depth(name: str, trail: tuple[str, ...]) -> int:
            if name not in depths:
                above = [one for one in self.parents.get(name, ()) if one not in trail]
                depths[name] = 1 + max((depth(one, (*trail, name)) for one in above), default=0)
            return depths[name]

        for name in self.groups:
            depth(name, ())
        return depths

    def groups_of(self, host: str) -> list[str]:
        """All groups of a host, the nearest last: by their depth, their priority and their name."""
        found = {"all"}
        near = [name for name, group in self.groups.items() if host in group.hosts]
        while near:
            name = near.pop()
            if name not in found:
                found.add(name)
                near += self.parents[name]
        known = [name for name in found if name in self.groups]
        return sorted(known, key=lambda name: (self.depths[name], self._priority(name), name))

    def _priority(self, name: str) -> int:
        said = self.groups[name].own.get("ansible_group_priority")
        return int(said.value) if said and str(said.value).lstrip("-").isdigit() else 1

    def merged(self, host: str) -> Variables:
        """What holds for a host. Later wins: groups, their files (`all` first), the host's line, its file."""
        found: Variables = {}
        groups = [self.groups[name] for name in self.groups_of(host)]
        layers = [*(g.own for g in groups), *(g.filed for g in groups), self.hosts[host].own, self.hosts[host].filed]
        for layer in layers:
            for name, variable in layer.items():
                before = found.pop(name, None)
                both = before and isinstance(before.value, dict) and isinstance(variable.value, dict)
                # Of `sglang` the nearest wins key by key, as in every inventory here.
                found[name] = _over(before, variable) if name == "sglang" and before and both else variable
        found.pop("ansible_group_priority", None)
        return found


def _over(before: Variable, variable: Variable) -> Variable:
    return Variable({**before.value, **variable.value}, variable.place, variable.source, variable.path)


def of_yaml(source: Source) -> Groups:
    """The groups of a YAML inventory."""
    found = Groups(source.file)
    found.add_group("all", source.place())
    for name, said in source.value.items():
        _yaml_group(found, source, name, said, (name,))
    return _settled(found)


def _yaml_group(found: Groups, source: Source, name: str, said: Any, path: tuple[str, ...]) -> None:
    group = found.add_group(name, source.key_place(path))
    if said is None:
        return
    if not isinstance(said, dict):
        found.mistakes.append(
            UsageError(
                f"the group {name!r} is no mapping", where=source.place(path), hint="it has hosts, children and vars"
            )
        )
        return
    for key, value in said.items():
        here = (*path, key)
        value = {value: None} if isinstance(value, str) else value
        if key not in GROUP_KEYS:
            found.mistakes.append(
                UsageError(
                    f"unknown key {one_line(key)!r} in the group {name!r}",
                    where=source.key_place(here),
                    hint=did_you_mean(key, GROUP_KEYS),
                )
            )
        elif value is not None and not isinstance(value, dict):
            found.mistakes.append(
                UsageError(
                    f"{key} of the group {name!r}: expected a mapping, not a list: `NAME:` on each line",
                    where=source.place(here),
                )
            )
        elif key == "vars":
            group.own |= _variables(source, value, here)
        elif key == "hosts":
            for pattern, variables in (value or {}).items():
                try:
                    place = source.key_place((*here, pattern))
                    found.add_hosts(name, pattern, place, _variables(source, variables, (*here, pattern)))
                except UsageError as error:
                    found.mistakes.append(error)
        else:
            for child, inner in (value or {}).items():
                group.children.setdefault(child, source.key_place((*here, child)))
                _yaml_group(found, source, child, inner, (*here, child))


def _variables(source: Source, said: Any, path: DocPath) -> Variables:
    if said is None:
        return {}
    if not isinstance(said, dict):
        what = f"{path[-1]}: " if path else ""
        raise UsageError(f"{what}expected a mapping of variables", where=source.place(path))
    return {
        name: Variable(value, source.key_place((*path, name)), source, (*path, name)) for name, value in said.items()
    }


def of_ini(text: str, file: str) -> Groups:
    """The groups of an INI inventory."""
    found = Groups(file)
    found.add_group("all", Place(file, 1, 1))
    declared = {"all", "ungrouped"}
    for line in ini.lines(text, file):
        if isinstance(line, UsageError):
            found.mistakes.append(line)
            continue
        group = found.add_group(line.group, line.place)
        values = {name: Variable(value, line.place) for name, value in line.values.items()}
        match line.kind:
            case "group":
                declared.add(line.group)
            case "vars":
                group.own |= values
            case "children":
                group.children.setdefault(line.name, line.place)
            case _:
                try:
                    found.add_hosts(line.group, line.name, line.place, values)
                except UsageError as error:
                    found.mistakes.append(error)
    for name, group in found.groups.items():
        if name not in declared:
            found.mistakes.append(UsageError(
                f"[{name}:vars] is of a group that is nowhere", where=group.place, hint=did_you_mean(name, declared)
            ))  # fmt: skip
        for child, place in group.children.items():
            if child not in declared:
                found.mistakes.append(UsageError(
                    f"[{name}:children] names {child!r}, which is no group here",
                    where=place,
                    hint=did_you_mean(child, declared) if child not in found.hosts
                    else f"{child} is a host: hosts stand under [{name}]",
                ))  # fmt: skip
    return _settled(found)


def _settled(found: Groups) -> Groups:
    """With every host that is of no other group in `ungrouped`, as Ansible has it."""
    named = {host for name, group in found.groups.items() if name not in ("all", "ungrouped") for host in group.hosts}
    alone = {name: host.place for name, host in found.hosts.items() if name not in named}
    group = found.groups.pop("ungrouped", None)
    if alone or (group and group.children):
        group = group or AnsibleGroup(next(iter(alone.values())))
        group.hosts = alone
        found.groups["ungrouped"] = group
    return found


def read_beside(found: Groups, folder: Path) -> None:
    """Add what group_vars/ and host_vars/ in `folder` say of these groups and hosts."""
    for kind, named in (("group_vars", found.groups), ("host_vars", found.hosts)):
        top = folder / kind
        if not top.is_dir():
            continue
        used: set[Path] = set()
        try:
            for name, one in named.items():
                for path in _files_of(top, name, used):
                    one.filed |= _filed(found, path)
            for path in sorted(set(top.iterdir()) - used):
                if path.name[0] != "." and path.name[-1] != "~":
                    found.notes.append(f"{path}: not read: no {kind[:-5]} is named {path.stem!r}, or another file of "
                                       "it comes first")  # fmt: skip
        except OSError as error:
            found.mistakes.append(UsageError(f"cannot read {error.filename or top}: {error.strerror}"))


def check_names(found: Groups) -> None:
    """Note as a mistake each variable that no template could name."""
    layers = [layer for group in found.groups.values() for layer in (group.own, group.filed)]
    layers += [layer for host in found.hosts.values() for layer in (host.own, host.filed)]
    for layer in layers:
        for name, variable in layer.items():
            if not VARIABLE.match(name):
                found.mistakes.append(UsageError(
                    f"{one_line(repr(name), 60)} cannot be a variable: letters, digits and _ only, no digit first",
                    where=variable.place,
                ))  # fmt: skip


def _files_of(top: Path, name: str, used: set[Path]) -> list[Path]:
    """The files of a group or host: of the first of NAME, NAME.yml, NAME.yaml and NAME.json that is there."""
    if name.startswith("/"):
        return []
    first = next((path for ending in _ENDINGS if (path := top / f"{name}{ending}").exists()), None)
    if first is None:
        return []
    used.add(first)
    return list(_in_folder(first)) if first.is_dir() else [first]


def _in_folder(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir(), key=lambda one: one.name):
        if path.name[0] == "." or path.name[-1] == "~":
            continue
        if path.is_dir() and not path.suffix:
            yield from _in_folder(path)
        elif path.is_file() and path.suffix in _ENDINGS:
            yield path


def _filed(found: Groups, path: Path) -> Variables:
    text = read(path)
    if text.startswith(VAULT):
        found.vaults.append(str(path))
        found.notes.append(f"{path}: an Ansible vault, not read: what it defines is not known here")
        return {}
    try:
        source = parse_yaml(text, str(path), is_ansible=lambda keys: True)
        return _variables(source, source.value, ())
    except UsageError as error:
        found.mistakes.append(error)
        return {}


def _apart(pattern: str) -> tuple[str, int | None]:
    """A name and the port behind it: `web:2222`, `[2001:db8::1]:22`. An IPv6 address without brackets has none."""
    found = _PORT.fullmatch(pattern)
    if found is None:
        return pattern, None
    return (found["inner"], int(found["behind"])) if found["inner"] else (found["name"], int(found["port"]))


def expand(name: str) -> list[str]:
    """Host names of a range: `gpu[01:03]` -> gpu01, gpu02, gpu03; `n[a:e:2]` -> na, nc, ne.

    Raises ValueError for what is no range, or is empty, or stands for more than 10000 names.
    """
    head, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    inner, closed, tail = rest.partition("]")
    bounds = inner.split(":")
    if tail.count("[") > _MOST_RANGES or not closed or len(bounds) not in (2, 3) or not bounds[1]:
        raise ValueError(f"{one_line(repr(name))} has no range: expected NAME[FIRST:LAST] or NAME[FIRST:LAST:STEP]")
    ends = expand(tail)
    middle = list(_range(name, bounds[0] or "0", bounds[1], bounds[2] if len(bounds) == 3 else "1", len(ends)))
    return [f"{head}{one}{end}" for one in middle for end in ends]


def _range(name: str, first: str, last: str, step: str, times: int) -> Iterator[str]:
    letters, width = string.ascii_letters, len(first) if first[0] == "0" and len(first) > 1 else 0
    if width and width != len(last):
        raise ValueError(f"{one_line(repr(name))}: {first} and {last} differ in length")
    spelled = len(first) == len(last) == 1 and first in letters and last in letters
    try:
        span = (letters.index(first), letters.index(last)) if spelled else (int(first), int(last))
        numbers = range(span[0], span[1] + 1, int(step))
    except ValueError:
        raise ValueError(f"{one_line(repr(name))}: a range is of numbers or of two letters") from None
    if not 0 < len(numbers) * times <= _MOST_NAMES:
        raise ValueError(f"{name!r} stands for {len(numbers) * times} hosts, expected 1 to {_MOST_NAMES}")
    return (letters[n] if spelled else str(n).zfill(width) for n in numbers)
