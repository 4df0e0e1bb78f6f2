"""Why the acceptance of a server is what it is."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from opsctl import this_machine
from opsctl.sglang.diagnosis import gather
from opsctl.sglang.diagnosis.causes import CAUSES
from opsctl.sglang.diagnosis.gather import Asked
from opsctl.sglang.diagnosis.hypotheses import Diagnosis
from opsctl.sglang.diagnosis.hypotheses import diagnose as walk
from opsctl.sglang.diagnosis.seen import Seen, evidence
from opsctl.sglang.probe import ledger
from opsctl.sglang.server.api import Server
from opsctl.verbs.frontend import SILENT, Frontend
from opsctl.verbs.hosts import on_one

if TYPE_CHECKING:
    from opsctl.inventory import InventoryHost
    from opsctl.secret import Secret


@dataclass(frozen=True, slots=True)
class Found:
    """A diagnosis, what was seen, and what the ledger of acceptance has of the same draft model.

    notes: what could not be looked at, and other remarks.
    """

    diagnosis: Diagnosis
    seen: Seen
    earlier: ledger.Earlier | None
    notes: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether what was seen is certainly that of a drafter that works, and as well as it ever did."""
        return self.diagnosis.sound and not (self.earlier and self.earlier.fell)


def diagnose(host: InventoryHost, asked: Asked, key: Secret | None = None, front: Frontend = SILENT) -> Found:
    """Judge the server of a host. key: API key, where the inventory does not name it."""
    asked = replace(asked, usual_port=host.sglang.port, usual_log=host.sglang.log)
    with on_one(host, front) as remote:
        key = key or host.sglang.api_key
        seen = gather.look(remote.outcomes, lambda port: Server(remote.http(port), key), asked)
    return _found(seen, host.name)


def diagnose_here(asked: Asked, key: Secret | None = None) -> Found:
    """Judge the server of this machine, without a connection."""
    from opsctl import http_client

    with ExitStack() as clients:

        def connect(port: int) -> Server:
            return Server(clients.enter_context(http_client.client(f"http://127.0.0.1:{port}")), key)

        seen = gather.look(this_machine.outcomes, connect, asked)
    return _found(seen, "")


def _found(seen: Seen, name: str) -> Found:
    known = evidence(seen)
    diagnosis = walk(known, CAUSES)
    now = _now(seen, diagnosis, name)
    if now is None:
        return Found(diagnosis, seen, None, seen.notes)
    kept, unread = ledger.entries()
    notes = (*seen.notes, *(f"ledger: {text}" for text in unread))
    return Found(diagnosis, seen, ledger.earlier(now, kept), notes)


def _now(seen: Seen, diagnosis: Diagnosis, name: str) -> ledger.Entry | None:
    """What was measured now, as the ledger would have it; None where that is not known, or no drafter was looked at."""
    measured, info = diagnosis.measured, seen.info
    if measured is None or info is None or seen.draft_digest is None:
        return None
    if seen.probe and (entry := ledger.entry(seen.probe)):
        return entry
    low, high = (measured.length if end is None else end for end in (measured.low, measured.high))
    return ledger.Entry(
        when=datetime.now(UTC),
        target=name,
        server=ledger.Served(
            version=info.version,
            commit=seen.process["commit"] if seen.process else None,
            algorithm=info.speculative_algorithm,
            steps=info.speculative_num_steps,
            topk=info.speculative_eagle_topk,
            draft_tokens=info.speculative_num_draft_tokens,
            tp=info.tp_size,
            quantization=info.quantization,
            attention_backend=info.attention_backend,
            model=info.model_path,
            draft_model=info.speculative_draft_model_path,
            draft_digest=seen.draft_digest,
        ),
        plan=None,
        accept_length=ledger.Length(mean=measured.length, ci95=(low, high)),
    )
