"""Checking that hosts are reached as the inventory says, trusting their keys, and adding hosts to it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from opsctl.errors import HostKeyError, RemoteError, UsageError
from opsctl.verbs.frontend import SILENT, Done, Frontend
from opsctl.verbs.hosts import on_each

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.remote.spec import ConnectionSpec
    from opsctl.remote.trust import Found


@dataclass(frozen=True, slots=True)
class Seen:
    """Who we are on a host, with which Python, and what of the inventory is not honoured there."""

    host: str
    user: str
    node: str
    python: str
    host_key: str | None
    warnings: tuple[str, ...]


def check(hosts: Sequence[InventoryHost], front: Frontend = SILENT) -> list[Done[Seen]]:
    """Connect to every host, and say who we are there."""
    return on_each(hosts, _look, front)


def _look(remote: RemoteHost, host: InventoryHost) -> Seen:
    from opsctl.wire.calls import core

    told = remote.call(core.facts_gather(["host", "user", "python"]), timeout=60).result
    user, node, python = told.get("user"), told.get("host"), told.get("python")
    if user is None or node is None or python is None:
        raise RemoteError(f"it does not say what it is: {told['missing']}", where=host.name)
    warnings = tuple(remote.warnings)
    return Seen(host.name, user["name"], node["name"], python["version"], remote.fingerprint, warnings)


def entry(spec: ConnectionSpec, name: str | None, jump: str | None = None) -> tuple[str, list[str]]:
    """What a host is called in an inventory, and the lines that say how it is reached. Raises UsageError."""
    from opsctl.survey.write import lines

    address = spec.address or spec.name
    if name is None and re.fullmatch(r"[0-9.]+|.*:.*", address):
        raise UsageError(f"what is {address} called?", hint="say --name NAME")
    chosen = name or address.partition(".")[0]
    said = {"address": None if address == chosen else address, "port": spec.port, "user": spec.user,
            "key": spec.keys[0] if spec.keys else None, "jump": jump}  # fmt: skip
    return chosen, list(lines({key: value for key, value in said.items() if value is not None}))


def demand_free(path: Path, name: str | None) -> None:
    """Raise UsageError where no host, or none of this name, can be added to the inventory at `path`."""
    from opsctl.inventory import edit

    if name is None:
        edit.own(_text(path), path)
    else:
        edit.add_host(_text(path), path, name, [])


def add(path: Path, name: str, entry: Sequence[str], group: str | None = None) -> None:
    """Add a host to the inventory at `path`, with lines of what is said of it. Raises UsageError: nothing changed."""
    from opsctl import localfiles
    from opsctl.inventory import edit

    changed = edit.add_host(_text(path), path, name, entry, group)
    try:
        localfiles.replace(path, changed)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def import_(path: Path, to: Path) -> list[str]:
    """Write an inventory of ours at `to`, where nothing is yet, from one of Ansible's; what it leaves out, by line.

    Raises UsageError: nothing written.
    """
    from opsctl.inventory import edit

    text, told = edit.imported(_text(path).encode(), path, to)
    try:
        with open(to, "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise UsageError(f"{to} is here already: nothing was written", hint="choose another with --to") from None
    except OSError as error:
        raise UsageError(f"cannot write {to}: {error.strerror}") from None
    return told


def _text(path: Path) -> str:
    from opsctl.localfiles import read_text

    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {path}: {reason}") from None


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys that hosts show, by host."""

    found: tuple[tuple[str, Found], ...]

    @property
    def new(self) -> list[tuple[str, Found]]:
        """Of hosts that are not known yet."""
        from opsctl.remote.hostkeys import Verdict

        return [(name, shown) for name, shown in self.found if shown.verdict is Verdict.UNKNOWN]

    @property
    def changed(self) -> list[tuple[str, Found]]:
        """Of hosts that were known by another key."""
        from opsctl.remote.hostkeys import Verdict

        return [(name, shown) for name, shown in self.found if shown.verdict is Verdict.CHANGED]

    def demand_replaceable(self, fingerprints: Sequence[str]) -> None:
        """Raise for a key that is revoked, differs from a pin, or has changed and is none of `fingerprints`.

        Raises UsageError for a fingerprint that no host shows.
        """
        from opsctl.remote.hostkeys import Verdict

        for name, shown in self.found:
            if shown.verdict is Verdict.REVOKED:
                raise HostKeyError(
                    f"{shown.key.fingerprint} is marked @revoked in a known hosts file",
                    where=name,
                    hint="do not trust it",
                )
            if shown.verdict is not Verdict.CHANGED:
                continue
            if shown.pin:
                raise HostKeyError(
                    f"it is pinned in the inventory to {shown.pin}, and shows {shown.key.fingerprint}; nothing was "
                    "written",
                    where=name,
                    hint="if its own `ssh-keygen -lf` says the same, edit `host_key` of the host in the inventory",
                )
            if shown.key.fingerprint not in fingerprints:
                raise HostKeyError(
                    f"its key HAS CHANGED to {shown.key.fingerprint}; nothing was written",
                    where=name,
                    hint="somebody may be in between. If its own `ssh-keygen -lf` says the same: --replace FINGERPRINT",
                )
        shows = {shown.key.fingerprint for _, shown in self.found}
        for fingerprint in fingerprints:
            if fingerprint not in shows:
                raise UsageError(f"--replace {fingerprint}: no host shows this key; nothing was written")

    def trust(self, front: Frontend = SILENT) -> Iterator[str]:
        """Write the new and the changed keys; a line for each thing done."""
        for name, shown in self.new:
            yield f"{name}: added to {shown.trust()}"
        for name, shown in self.changed:
            for file in shown.replace():
                yield f"{name}: its other keys are out of {file}; {file}.old is as it was"
            yield f"{name}: {shown.key.fingerprint} is in {shown.files[0]}"
            for file in shown.contradicting():
                front.say(f"{name}: {file} still says otherwise, and counts too: change it as root")


def keys(hosts: Sequence[InventoryHost]) -> Keys:
    """Ask hosts for their keys, without logging in. Raises Unreachable."""
    from opsctl.remote.trust import fetch

    asked = (host for host in hosts if host.settings.connection != "local")
    return Keys(tuple((host.name, fetch(host.connection())) for host in asked))
