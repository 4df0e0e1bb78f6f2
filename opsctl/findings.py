"""One thing that a check found: in a playbook, a drafter, a source tree, on a host, in a measurement, in a run.

Whoever checks makes it; `opsctl.report` shows it in every format.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from opsctl.errors import OpsctlError, Place

Level = Literal["error", "warning", "notice", "passed", "skipped"]
"""How grave it is. A notice is no fault; `skipped` was not looked at, which does not mean that it is fine."""

LEVELS: tuple[Level, ...] = ("error", "warning", "notice", "passed", "skipped")  # the worst first
REMARKS: frozenset[Level] = frozenset({"error", "warning", "notice"})  # what somebody should look at


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found, or that it found nothing.

    Args:
        id: name of the check, rule, gate or patch.
        message: what was seen, one sentence.
        place: the file to blame, where it lies on this machine.
        remedy: what to do, ideally a command.
        where: what was checked: a host, a folder, a server.
        subject: the part of it that is meant, where a check looks at several.
        evidence: more lines than the message, for reports that have room.
        title: a headline, where `id`, `subject` and `where` do not make a good one.
        seconds: how long the check took.
    """

    id: str
    level: Level
    message: str = ""
    place: Place | None = None
    remedy: str = ""
    _: KW_ONLY
    where: str = ""
    subject: str = ""
    evidence: str = ""
    title: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, error: OpsctlError) -> Finding:
        """An error that ended the command."""
        place = error.where if isinstance(error.where, Place) else None
        return cls("error", "error", error.message, place, error.hint or "", where=str(error.where or "opsctl"))

    @property
    def name(self) -> str:
        """The check, with the part that it looked at."""
        return self.id if self.subject in ("", self.id) else f"{self.id} {self.subject}"

    @property
    def headline(self) -> str:
        """The name with what was checked, or the title of its own."""
        return self.title or (f"{self.name} ({self.where})" if self.where else self.name)

    @property
    def advice(self) -> str:
        """The message, and what to do."""
        return f"{self.message}\n→ {self.remedy}" if self.remedy else self.message
