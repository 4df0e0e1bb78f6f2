"""Hosts with everything that holds for them: named by patterns, reached as their settings say."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opsctl.errors import Place, UsageError
from opsctl.inventory.model import Settings, SglangSettings
from opsctl.localfiles import from_home
from opsctl.remote.spec import ConnectionSpec, Timeouts
from opsctl.secret import Secret
from opsctl.secret_sources import know
from opsctl.text import did_you_mean

if TYPE_CHECKING:
    from opsctl.yaml_source import Source


@dataclass(frozen=True, slots=True)
class InventoryHost:
    """One host.

    Attributes:
        settings: what defaults, groups and the host itself say, the nearest first, key by key.
        groups: the groups it is in, from the outermost to the nearest.
        variables: for playbooks; `sglang`, `inventory_hostname` and `group_names` are among them.
        folder: what relative paths of the inventory are relative to.
        source: the inventory, to point at; None where there is no file.
        blocked: why it cannot be reached as the inventory says, where it cannot.
    """

    name: str
    settings: Settings
    groups: tuple[str, ...]
    variables: Mapping[str, Any]
    folder: Path
    source: Source | None = field(default=None, repr=False, compare=False)
    blocked: UsageError | None = field(default=None, repr=False, compare=False)

    def said(self, *path: str) -> Place | None:
        """Where the inventory says this of the host: itself, else its nearest group that does, else the defaults."""
        if self.source is None:
            return None
        layers = [("hosts", self.name), *(("groups", group) for group in reversed(self.groups)), ("defaults",)]
        found = next((layer for layer in layers if (*layer, *path) in self.source.keys), None)
        return self.source.key_place((*found, *path)) if found else None

    @property
    def place(self) -> Place | None:
        """The host's own line in the inventory."""
        return self.said()

    @property
    def sglang(self) -> SglangSettings:
        return self.settings.sglang or SglangSettings()

    def with_become_password(self, password: Secret) -> InventoryHost:
        if self.settings.become_password is not None:
            return self
        return replace(self, settings=self.settings.model_copy(update={"become_password": password}))

    def secrets(self) -> list[str]:
        """Those in its variables, for its agents to mask. What logs in to it is told to nobody there."""
        return know(self.variables)

    def connection(self) -> ConnectionSpec:
        """How to reach it. Raises UsageError where what the inventory says cannot be used."""
        if self.blocked is not None:
            raise self.blocked
        return connection_spec(self)


def demand_reachable(hosts: Iterable[InventoryHost]) -> None:
    """Raise UsageError for all hosts that cannot be reached as the inventory says."""
    blocked = [host.blocked for host in hosts if host.blocked]
    if blocked:
        raise UsageError.of(blocked)


@dataclass(frozen=True, slots=True)
class Inventory:
    """All hosts and groups of one file, in its order."""

    file: str | None
    hosts: Mapping[str, InventoryHost]
    groups: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> set[str]:
        """All files that it was read from."""
        sources = {id(host.source): host.source for host in self.hosts.values() if host.source}
        return set().union(*(source.files for source in sources.values()), {self.file} if self.file else ())

    def with_become_password(self, password: Secret) -> Inventory:
        """The same hosts, with a sudo password for those that name none themselves."""
        hosts = {name: host.with_become_password(password) for name, host in self.hosts.items()}
        return replace(self, hosts=hosts)

    def select(self, pattern: str = "all") -> list[InventoryHost]:
        """The hosts that `pattern` names (`a:&b:!c`). Raises UsageError if that is none.

        Without an inventory file, names that are no pattern are taken as SSH destinations, `localhost` as this machine.
        """
        if self.file is None:
            return _destinations(pattern)
        known = dict(self.hosts)
        if "localhost" in pattern and "localhost" not in known and "localhost" not in self.groups:
            known["localhost"] = _bare("localhost", "local")
            order: Sequence[str] = ["localhost", *self.hosts] if pattern != "all" else list(self.hosts)
        else:
            order = list(self.hosts)
        try:
            names = matching_hosts(pattern, order, self.groups)
        except UsageError as error:
            raise UsageError(error.message, where=self.file, hint=error.hint) from None
        if not names:
            raise UsageError(
                f"the pattern {pattern!r} matches no host",
                where=self.file,
                hint="opsctl inventory list shows all hosts and groups",
            )
        return [known[name] for name in names]


def _destinations(pattern: str) -> list[InventoryHost]:
    if pattern in ("all", "*"):
        raise UsageError("there is no inventory.yaml here", hint="name one with -i FILE, or write one with opsctl init")
    hosts = []
    for word in pattern.split(","):
        user, _, name = word.strip().rpartition("@")
        if not name or any(c in name for c in "*?[]:&! /"):
            raise UsageError(
                f"there is no inventory.yaml here, and {pattern!r} is no host name",
                hint="name an inventory with -i FILE, or write one with opsctl init",
            )
        hosts.append(_bare(name, "local" if name == "localhost" else "ssh", user or None))
    return hosts


def _bare(name: str, connection: str, user: str | None = None) -> InventoryHost:
    settings = Settings.model_validate({"connection": connection, "user": user})
    variables = {"inventory_hostname": name, "group_names": [], "sglang": SglangSettings().model_dump()}
    return InventoryHost(name, settings, (), variables, Path.cwd())


def connection_spec(host: InventoryHost) -> ConnectionSpec:
    """What the inventory says about reaching `host`; what it leaves open is for the user's SSH configuration."""
    said = host.settings
    become = said.become
    given = said.timeouts
    timeouts = Timeouts(**{k: getattr(given, k) for k in given.model_fields_set}) if given else Timeouts()
    known_hosts = tuple(_local(host.folder, file) for file in _several(said.known_hosts))
    return ConnectionSpec(
        name=host.name,
        connection=said.connection or "ssh",
        address=said.address,
        port=said.port,
        user=said.user,
        keys=tuple(_local(host.folder, key) for key in _several(said.key)),
        jump=",".join(_several(said.jump)) or None,
        password=said.password,
        become_password=said.become_password,
        become="root" if become is True else become or None,
        python=said.python,
        host_key=said.host_key,
        known_hosts=known_hosts or None,
        ssh_config=_local(host.folder, said.ssh_config) if said.ssh_config not in (None, "none") else said.ssh_config,
        state_dir=said.state_dir,
        login=said.ssh.login if said.ssh else "pipelined",
        attempts=said.attempts or 3,
        timeouts=timeouts,
    )


def _several(value: list[str] | str | None) -> list[str]:
    if value is None:
        return []
    return [value] if isinstance(value, str) else value


def _local(folder: Path, path: str) -> str:
    """A path of this machine as the inventory means it: relative to its own folder."""
    return str(folder / from_home(path))


def matching_hosts(pattern: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The hosts that `pattern` names, in inventory order. Raises UsageError for a name that is nowhere.

    `a:b` or `a,b`: either, `a:&b`: both, `a:!c`: not, with * ? [] in names.
    """
    words = [word.strip() for word in pattern.replace(",", ":").split(":") if word.strip()]
    if not words:
        raise UsageError("the host pattern is empty", hint="say `all` for every host")
    chosen: set[str] = set()
    plain = [word for word in words if word[0] not in "&!"]
    for word in plain or ["all"]:
        chosen |= _named(word, hosts, groups)
    for word in words:
        if word[0] == "&":
            chosen &= _named(word[1:], hosts, groups)
    for word in words:
        if word[0] == "!":
            chosen -= _named(word[1:], hosts, groups)
    return [host for host in hosts if host in chosen]


def _named(word: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> set[str]:
    if word in ("all", "*"):
        return set(hosts)
    if word in groups:
        return set(groups[word])
    if word in hosts:
        return {word}
    if any(c in word for c in "*?["):
        found = set(fnmatch.filter(hosts, word))
        for group in fnmatch.filter(groups, word):
            found |= set(groups[group])
        if found:
            return found
    raise UsageError(f"no host or group is named {word!r}", hint=did_you_mean(word, [*hosts, *groups, "all"]))
