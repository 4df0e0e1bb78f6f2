"""Why the acceptance of a server is what it is."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

from opsctl.sglang.diagnosis import gather
from opsctl.sglang.diagnosis.causes import CAUSES
from opsctl.sglang.diagnosis.gather import Asked
from opsctl.sglang.diagnosis.hypotheses import Diagnosis
from opsctl.sglang.diagnosis.hypotheses import diagnose as walk
from opsctl.sglang.diagnosis.seen import Seen, evidence
from opsctl.sglang.server.api import Server
from opsctl.verbs.frontend import SILENT, Frontend
from opsctl.verbs.hosts import on_one

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.secret import Secret


def diagnose(
    host: InventoryHost, asked: Asked, key: Secret | None = None, front: Frontend = SILENT
) -> tuple[Diagnosis, Seen]:
    """Judge the server of a host, and what was seen of it. key: API key, where the inventory does not name it."""
    asked = replace(asked, usual_port=host.sglang.port, usual_log=host.sglang.log)
    with on_one(host, front) as remote:
        key = key or host.sglang.api_key
        seen = gather.look(remote.outcomes, lambda port: Server(remote.http(port), key), asked)
    return walk(evidence(seen), CAUSES), seen


def diagnose_here(asked: Asked, key: Secret | None = None) -> tuple[Diagnosis, Seen]:
    """Judge the server of this machine, without a connection."""
    from opsctl import http_client

    with ExitStack() as clients:

        def connect(port: int) -> Server:
            return Server(clients.enter_context(http_client.client(f"http://127.0.0.1:{port}")), key)

        seen = gather.look(gather.here, connect, asked)
    return walk(evidence(seen), CAUSES), seen
