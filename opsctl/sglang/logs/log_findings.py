"""What a bundle says: summary of its log, health of its host, causes, state of its source. One text per part.

Made here of parts that have been redacted already, or of answers that hold settings and source code only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from opsctl.errors import OpsctlError, RemoteError
from opsctl.gpu.judge import judge
from opsctl.gpu.read import gathered
from opsctl.gpu.wanted import Wanted
from opsctl.sglang.logs import log_lines, timeline
from opsctl.text import printable
from opsctl.wire.calls.logs import Scan
from opsctl.wire.protocol import AgentError, Call, Reply

AskHost = Callable[[Call[Any]], Reply[Any]]


def scan(log: Path) -> Scan:
    """What matters in the part of the log that was collected."""
    return timeline.scan_files([log])


def summary(found: timeline.Summary) -> Iterator[tuple[str, str]]:
    """The timeline, for programs and for people."""
    yield "summary.json", _json(timeline.document(found))
    yield "summary.txt", "\n".join(printable(line) for line in log_lines.lines(found)) + "\n"


def health(host: str, evidence: str, wanted: Wanted) -> Iterator[tuple[str, str]]:
    """evidence: the answer of gpu.gather, as collected. Raises ValueError if it has been cut."""
    found = json.loads(evidence)
    report = judge(host, gathered.evidence(found, wanted), wanted.settings)
    yield "health.json", _json(report.as_json())
    told = str((found.get("smi") or {}).get("text", ""))
    if "<?xml" in told:
        yield "gpus.xml", told


def diagnosis(ask: AskHost, log: Scan | None, port: int | None) -> Iterator[tuple[str, str]]:
    """The drafter's check and what else bears on acceptance. log: the scan of it.

    The log is not read again, which takes long, and the server is not asked: it would answer with its keys.
    """
    from opsctl.sglang.diagnosis import gather
    from opsctl.sglang.diagnosis.causes import CAUSES
    from opsctl.sglang.diagnosis.hypotheses import diagnose, to_json
    from opsctl.sglang.diagnosis.seen import evidence

    def connect(port: int) -> Any:
        raise RemoteError("not asked, since it would answer with its keys")

    def one(call: Call[Any]) -> Reply[Any] | Exception:
        if call.name == "serverlog.scan":
            return Reply(log) if log is not None else RemoteError("the log was not collected")
        try:
            return ask(call)
        except (OpsctlError, AgentError) as error:
            return error

    asked = gather.Asked(port, log="collected", usual_port=port)
    seen = gather.look(lambda calls: [one(call) for call in calls], connect, asked)
    faults = [asdict(fault) for fault in seen.faults or ()]
    document = {"drafter_check": None if seen.faults is None else faults, "notes": list(seen.notes)}
    yield "diagnosis.json", _json(document | to_json(diagnose(evidence(seen), CAUSES)))


def patches(ask: AskHost, source: str) -> Iterator[tuple[str, str]]:
    """How the source tree stands to every known patch."""
    from opsctl.sglang.patches import patchset
    from opsctl.sglang.source.tree import load

    chosen = patchset.select()
    tree = load(ask, source, patchset.classes(chosen), patchset.files(chosen))
    yield "patches.json", _json(patchset.plan(tree, chosen).report.to_json())


def _json(document: Any) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n"
