"""A probe of a server on a host: what a module and a verb both do around the measuring."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from opsctl.drafter.folder import open_folder
from opsctl.errors import OpsctlError, RemoteError, UsageError
from opsctl.findings import Finding
from opsctl.sglang.diagnosis.gather import choose
from opsctl.sglang.probe.chat_template import ChatTemplate, read_template
from opsctl.sglang.probe.measure import Measurement
from opsctl.sglang.probe.probe_findings import findings, word
from opsctl.sglang.probe.probe_result import Baseline, Summary, summarise, to_json
from opsctl.sglang.server.served import ROOTED, ServerInfo, placed
from opsctl.text import printable
from opsctl.wire.calls.files import filelook_read
from opsctl.wire.calls.server import servers_find
from opsctl.wire.host import Host


@dataclass(frozen=True, slots=True)
class Process:
    """What a host tells of the process that serves, and the server does not.

    Attributes:
        simulated: SGLANG_SIMULATE_ACC_LEN, empty where it is not set or cannot be read.
        commit: of the checkout that SGLang was imported from; None where it is from none, or that is not known.
        draft_digest: what `drafter check` tells of the folder of the draft model; None where that cannot be read.
    """

    simulated: str = ""
    commit: str | None = None
    draft_digest: str | None = None


def process_on(host: Host, port: int) -> Process:
    """What the host tells of the process that serves on a port."""
    found = choose(host.call(servers_find(locate=True)).result, port)
    if found is None:
        return Process()
    draft = placed(found["cwd"], found["drafter"])
    digest = None
    if draft and draft[0] in ROOTED:
        with contextlib.suppress(OpsctlError):  # a draft model that cannot be read has no digest
            digest = open_folder(draft, host.call, follow_links=True, there=True).digest
    return Process((found["environment"] or {}).get("SGLANG_SIMULATE_ACC_LEN", ""), found["commit"], digest)


def reader(host: Host) -> Callable[[str], str | None]:
    """What reads the text of a file there; it gives None where that cannot be read."""

    def read(path: str) -> str | None:
        try:
            return host.call(filelook_read(path)).body.decode("utf-8", "replace")
        except RemoteError:
            return None

    return read


def template_of(info: ServerInfo, read: Callable[[str], str | None]) -> ChatTemplate | None:
    """The template in the served model's own folder, for servers that do not render messages themselves."""
    folder = info.tokenizer_path or info.model_path
    try:
        return read_template(lambda name: read(f"{folder}/{name}")) if folder else None
    except UsageError:
        return None  # one that cannot be read is as good as none: the finding `no-chat-template` says so


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe found. result: as JSON data, its findings included."""

    measured: Measurement
    summary: Summary
    findings: tuple[Finding, ...]
    result: dict[str, Any]


def concluded(
    measured: Measurement, name: str, process: Process, known: Baseline | None = None, *, with_key: bool
) -> Probed:
    """What the measuring of a server means.

    Args:
        name: what the result is kept under.
        process: what its host tells of it.
        known: how fast the server is without speculation.
        with_key: whether it was asked with an API key.
    """
    summary = summarise(measured, known)
    noticed = findings(measured, summary, with_key=with_key, simulated=process.simulated)
    told = [{"id": f.id, "severity": word(f.level), "message": printable(f.message), "hint": f.remedy} for f in noticed]
    result = to_json(measured, summary) | {"target": name, "findings": told}
    result["when"] = datetime.now(UTC).isoformat(timespec="seconds")
    result["server"] |= {"commit": process.commit, "draft_digest": process.draft_digest}
    result["server"]["simulated"] = bool(process.simulated)
    return Probed(measured, summary, tuple(noticed), result)
