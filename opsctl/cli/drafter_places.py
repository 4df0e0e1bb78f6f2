"""Folders on this machine and on hosts, named PATH or HOST:PATH, each host connected to once."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from opsctl.errors import OpsctlError, RemoteError, UsageError

if TYPE_CHECKING:
    from opsctl.drafter.folder import Reader
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
    """Readers of places. Leaves no connection open."""

    def __init__(self, inventory: str | None) -> None:
        self._inventory = inventory
        self._open = ExitStack()
        self._hosts: dict[str, tuple[RemoteHost, InventoryHost]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def reader(self, at: Place) -> Reader:
        """What reads a folder there. Raises UsageError, Unreachable."""
        from opsctl.drafter.folder import here

        if at.host is None:
            return here
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

        def ask(calls: Sequence[Call[Any]]) -> Sequence[Reply[Any] | Exception]:
            return remote.outcomes(calls)

        there = drafter.path if drafter.host == name else None
        try:
            return drafting.meet(ask, host.sglang, drafter=there, follow_links=follow_links)
        except RemoteError as error:
            raise _wrong_folder(error, drafter) from None

    def _host(self, name: str) -> tuple[RemoteHost, InventoryHost]:
        from opsctl.cli.hosts import on_one, the_host

        if name not in self._hosts:
            host = the_host(self._inventory, name)
            try:
                self._hosts[name] = self._open.enter_context(on_one(host)), host
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
