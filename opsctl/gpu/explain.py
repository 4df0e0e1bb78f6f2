"""What a check or an Xid means, in words."""

from __future__ import annotations

from dataclasses import dataclass

from opsctl.errors import UsageError
from opsctl.gpu import xids
from opsctl.gpu.checks.registry import checks
from opsctl.gpu.settings import thresholds
from opsctl.text import did_you_mean

_SEVERITY = {"fail": "a failure", "warn": "a warning", "info": "information only"}


@dataclass(frozen=True, slots=True)
class Explanation:
    topic: str
    lines: tuple[tuple[str, str], ...]  # (label, text)


def explain(topic: str) -> Explanation:
    """For a check id or an Xid (`79`, `xid 79`). Raises UsageError with the nearest name for anything else."""
    number = topic.lower().removeprefix("xid").strip(" :-")
    if number.isdecimal():
        return _xid(int(number))
    if topic in checks():
        return _check(topic)
    raise UsageError(f"no check and no Xid is called {topic!r}", hint=did_you_mean(topic, checks()))


def _xid(code: int) -> Explanation:
    known = xids.catalogue().get(code)
    if known is None:
        text = "not in NVIDIA's catalogue that we know; held for a warning"
        return Explanation(f"Xid {code}", (("meaning", text), ("remedy", xids.ASK)))
    lines = [
        ("name", known.mnemonic),
        ("meaning", known.description),
        ("causes", known.causes),
        ("remedy", known.remedy),
        ("NVIDIA: at once", known.immediate),
        ("NVIDIA: then", known.investigatory),
        ("held for", _SEVERITY[known.base]),
        *((f"held for {_SEVERITY[word]}", f"when the line matches {pattern}") for word, pattern in known.by_text),
        *((f"{who}", what) for who, what in known.others),
    ]
    return Explanation(f"Xid {code}", tuple((label, text) for label, text in lines if text))


def _check(name: str) -> Explanation:
    check = checks()[name]
    limits = [
        (f"threshold {t.name}", f"{t.value:g} {t.unit}".strip() + f": {t.meaning} ({t.source})")
        for t in thresholds().values()
        if f"thresholds.{t.name}" in check.settings
    ]
    lines = [
        ("asks", check.meaning),
        ("causes", check.causes),
        ("remedy", check.remedy),
        ("command", check.command),
        *limits,
    ]
    return Explanation(name, tuple((label, text) for label, text in lines if text))
