"""Checking and comparing draft models that lie on this machine or on hosts, named PATH or HOST:PATH."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from opsctl import this_machine
from opsctl.errors import OpsctlError, RemoteError, UsageError
from opsctl.verbs.frontend import SILENT, Frontend
from opsctl.verbs.hosts import choose_one, on_one

if TYPE_CHECKING:
    from opsctl.drafter.compare import Comparison
    from opsctl.drafter.folder import Reader
    from opsctl.drafter.judge import Judgement
    from opsctl.drafter.versions import Version
    from opsctl.inventory import InventoryHost
    from opsctl.remote.host import RemoteHost
    from opsctl.sglang.diagnosis.drafting import Met
    from opsctl.wire.protocol import Call, Reply


class Place(NamedTuple):
    """A folder; `host` None: on this machine."""

    host: str | None
    path: str


def place(text: str) -> Place:
    """PATH, or HOST:PATH where HOST has no slash and no such local path exists."""
    host, colon, path = text.partition(":")
    if not colon or "/" in host or not host or os.path.exists(text):
        return Place(None, text)
    if not path.startswith(("/", "~")):
        raise UsageError(
            f"{text}: the folder on a host is given as an absolute path",
            hint=f"{host}:/path, or ./{text} for a local one",
        )
    return Place(host, path)


def from_web(text: str) -> str | None:
    """An address or ORG/NAME[@REVISION] of the hub, None where it is a folder: one that exists always is."""
    if re.match(r"https?://", text):
        return text
    named = re.fullmatch(r"(?:hf:)?([A-Za-z0-9][\w.\-]*/[A-Za-z0-9][\w.\-]*(?:@[\w.\-/]+)?)", text)
    return named[1] if named and (text.startswith("hf:") or not os.path.exists(text)) else None


class Places:
    """Readers of places, each host connected to once. Leaves no connection open."""

    def __init__(self, inventory: str | None, front: Frontend) -> None:
        self._inventory = inventory
        self._front = front
        self._open = ExitStack()
        self._hosts: dict[str, tuple[RemoteHost, InventoryHost]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def reader(self, at: Place) -> Reader:
        """What reads a folder there. Raises UsageError, Unreachable."""
        if at.host is None:
            return this_machine.call
        remote, _ = self._host(at.host)

        def read(call: Call[Any]) -> Reply[Any]:
            try:
                return remote.call(call)
            except RemoteError as error:
                raise _wrong_folder(error, at) from None

        return read

    def meet(self, name: str, drafter: Place, *, follow_links: bool) -> Met:
        """What a drafter meets on the host; one that lies there is read in the same answer."""
        from opsctl.sglang.diagnosis import drafting

        remote, host = self._host(name)

        there = drafter.path if drafter.host == name else None
        try:
            return drafting.meet(remote.outcomes, host.sglang, drafter=there, follow_links=follow_links)
        except RemoteError as error:
            raise _wrong_folder(error, drafter) from None

    def _host(self, name: str) -> tuple[RemoteHost, InventoryHost]:
        if name not in self._hosts:
            host = choose_one(self._inventory, name)
            try:
                self._hosts[name] = self._open.enter_context(on_one(host, self._front)), host
            except OpsctlError as error:
                error.where = error.where or name
                raise
        return self._hosts[name]


def _wrong_folder(error: RemoteError, at: Place) -> OpsctlError:
    """A folder that is not there is the user's mistake, as it is on this machine."""
    if error.kind in ("not-found", "invalid"):
        return UsageError(error.message, where=f"{at.host}:{at.path}", hint="give the checkpoint's folder")
    error.where = error.where or at.host
    return error


@dataclass(frozen=True, slots=True)
class Serving:
    """What is to serve a drafter; what is None is the host's, or a usual value.

    Args:
        host: reads version, source, launch settings and target from this host of the inventory.
        versions: of SGLang; () for the host's, else all known ones.
        target: folder of the target model, PATH or HOST:PATH.
    """

    host: str | None = None
    versions: tuple[Version, ...] = ()
    target: str | None = None
    tp: int | None = None
    context_length: int | None = None


def check(
    path: str,
    serving: Serving,
    *,
    inventory: str | None = None,
    full: bool = False,
    follow_links: bool = False,
    front: Frontend = SILENT,
) -> tuple[Judgement, Met | None]:
    """Judge whether a drafter fits, and say what was found on the host that is to serve it.

    Args:
        path: PATH, or HOST:PATH.
        full: read every byte for NaN and zeros, not samples.
        follow_links: also links that leave the folder.

    Raises UsageError, Unreachable, Unreadable.
    """
    from opsctl.drafter.folder import open_folder, read_config
    from opsctl.sglang.diagnosis import drafting

    drafter = place(path)
    host = serving.host or drafter.host
    with Places(inventory, front) as places:
        met = places.meet(host, drafter, follow_links=follow_links and not full) if host else None
        target = None
        if serving.target is not None:
            at = place(serving.target)
            target = drafting.Target(read_config(at.path, places.reader(at)), at.path, places.reader(at))
        elif met and host:
            target = drafting.Target(met.target, met.target_path, places.reader(Place(host, met.target_path or "")))
        read = places.reader(drafter)
        folder = met.drafter if met else None
        if folder is None or full:
            there = drafter.host is not None
            folder = open_folder(drafter.path, read, full=full, follow_links=follow_links, there=there)
        judgement = drafting.judged(
            folder, read, met, target, versions=serving.versions, tp=serving.tp, context_length=serving.context_length
        )
    return judgement, met


def compare(
    a: str,
    b: str,
    *,
    counts: Mapping[str, int] | None = None,
    specials: Mapping[str, int] | None = None,
    top: int = 10,
    inventory: str | None = None,
    follow_links: bool = False,
    front: Frontend = SILENT,
) -> Comparison:
    """Compare two drafters, each PATH or HOST:PATH. Raises UsageError, Unreachable, Unreadable.

    Args:
        counts: frequencies of tokens in the user's traffic, by id.
        specials: ids of special tokens to look for, by name.
        top: how many uncovered tokens to list.
    """
    from opsctl.drafter.compare import compare_folders
    from opsctl.drafter.folder import open_folder

    first, second = place(a), place(b)
    with Places(inventory, front) as places:
        read_a, read_b = places.reader(first), places.reader(second)
        return compare_folders(
            open_folder(first.path, read_a, follow_links=follow_links),
            open_folder(second.path, read_b, follow_links=follow_links),
            counts=counts,
            specials=specials,
            top=top,
            read=read_a,
            read_b=read_b,
        )
