"""What a server can be, one file a kind.

A new kind is a file here, its line in KINDS, and its setting in the inventory.
"""

from __future__ import annotations

import posixpath

from opsctl.errors import UsageError
from opsctl.modules.contract import Site
from opsctl.modules.server_kinds.base import Kind, Server, ServerArgs, settings_file, unsaid
from opsctl.modules.server_kinds.container import ContainerServer
from opsctl.modules.server_kinds.process import ProcessServer
from opsctl.modules.server_kinds.unit import UnitServer
from opsctl.sglang.server import command
from opsctl.wire.command_line import CONFIG

KINDS: tuple[type[Kind], ...] = (UnitServer, ContainerServer)  # those that a setting names; else it is a process


def of(args: ServerArgs, site: Site) -> Kind:
    """The server that the inventory describes. Raises UsageError where it describes two, or none to give a drafter."""
    settings = site.sglang
    said = [kind for kind in KINDS if kind.key and getattr(settings, kind.key)]
    if len(said) > 1:
        names = " and ".join(f"`{kind.key}`" for kind in said)
        raise UsageError(f"{site.host}: both {names} are set; its server is one of them")
    kind = said[0] if said else ProcessServer
    launch = command.words(settings) if kind.launches else None
    if args.drafter is not None and launch is None and kind.key is None:
        raise unsaid(site)
    log = settings.log
    folder = posixpath.dirname(log) if log else settings.weights_root or settings.checkout or "~"
    if log is None and kind.key is None:
        log = posixpath.join(folder, f"sglang-{settings.port}.log")
    folder = folder.rstrip("/") or "/"
    key = settings.api_key
    if launch is None or command.keeps_key_itself(launch):
        key = None
    if launch is not None and key is not None:
        launch = [*launch, CONFIG[0], settings_file(folder, settings.port)]
    return kind(args, Server(settings, launch, log, folder, key), site)
