"""NVIDIA's Xid codes: what each means, what others do about it, how bad we hold it. The catalogue is data/xids.csv."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from opsctl.gpu.read.fields import table

UNKNOWN = "warn"
ASK = "look at the lines around it; when it returns, collect the logs and ask the vendor"


@dataclass(frozen=True, slots=True)
class Xid:
    code: int
    mnemonic: str
    description: str
    immediate: str
    investigatory: str
    others: tuple[tuple[str, str], ...]  # (who, what they do)
    base: str
    causes: str
    remedy: str  # what to do, in words
    effect_of: tuple[int, ...]  # Xids before it on the same GPU that are the cause
    by_text: tuple[tuple[str, str], ...]  # (severity, pattern): the last that matches wins

    def severity(self, message: str) -> str:
        """fail, warn or info for a line with this message."""
        found = self.base
        for severity, pattern in self.by_text:
            if re.search(pattern, message):
                found = severity
        return found


@cache
def catalogue() -> dict[int, Xid]:
    return {int(row["code"]): _xid(row) for row in table("xids.csv")}


@cache
def _actions() -> dict[str, str]:
    """NVIDIA's names of actions, in words."""
    return {row["action"]: row["remedy"] for row in table("actions.csv")}


@cache
def _notes() -> dict[int, dict[str, str]]:
    return {int(row["code"]): row for row in table("xid_notes.csv")}


def severity(code: int, message: str) -> str:
    known = catalogue().get(code)
    return known.severity(message) if known else UNKNOWN


def _xid(row: dict[str, str]) -> Xid:
    base, *rules = row["severity"].split(";")
    note = _notes().get(int(row["code"]), {})
    others = tuple((who, row[who]) for who in ("gpud", "dcgm", "azure", "aws") if row[who])
    return Xid(
        code=int(row["code"]),
        mnemonic=row["mnemonic"],
        description=row["description"],
        immediate=row["immediate"],
        investigatory=row["investigatory"],
        others=others,
        base=base,
        causes=note.get("causes", ""),
        remedy=note.get("remedy") or _actions().get(row["immediate"], ASK),
        effect_of=tuple(int(cause) for cause in note.get("effect_of", "").split()),
        by_text=tuple((word, pattern) for word, _, pattern in (rule.partition(":") for rule in rules)),
    )
