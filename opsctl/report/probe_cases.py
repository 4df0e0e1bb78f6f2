"""What a probe says, as findings: its figures, what it noticed beside them, and its gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opsctl.errors import Place
from opsctl.findings import Finding
from opsctl.sglang.probe.gates import Outcome


def findings(
    server: str, figures: str, noticed: Sequence[Finding], outcomes: Sequence[Outcome], place: Place | None = None
) -> list[Finding]:
    """figures: the result in a line. place: of the host in the inventory."""
    return [
        *(
            Finding("gate", "passed" if o.holds else "error", str(o), place, where=server, subject=str(o.gate))
            for o in outcomes
        ),
        *(replace(n, where=server, place=place) for n in noticed),
        Finding("measured", "passed", figures, where=server),
    ]
