"""What a probe says, as findings: its figures, what it noticed beside them, and its gates."""

from __future__ import annotations

from collections.abc import Sequence

from opsctl.errors import Place
from opsctl.report.findings import Finding, Status
from opsctl.sglang.probe.gates import Outcome
from opsctl.sglang.probe.probe_findings import Finding as Noticed
from opsctl.sglang.probe.probe_findings import Severity

_STATUS: dict[Severity, Status] = {Severity.NOTE: "noted", Severity.WARNING: "warned", Severity.ERROR: "failed"}


def findings(
    server: str, figures: str, noticed: Sequence[Noticed], outcomes: Sequence[Outcome], place: Place | None = None
) -> list[Finding]:
    """figures: the result in a line. place: of the host in the inventory."""
    return [
        *(Finding(server, "gate", "passed" if o.holds else "failed", str(o), str(o.gate), place) for o in outcomes),
        *(Finding(server, n.id, _STATUS[n.severity], n.message, place=place, remedy=n.hint) for n in noticed),
        Finding(server, "measured", "passed", figures),
    ]
