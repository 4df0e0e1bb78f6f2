"""A drafter's judgement as findings, each at the key of config.json or the file that is to blame."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from opsctl.drafter.folder import Folder
from opsctl.drafter.judge import Judgement
from opsctl.drafter.verdict import Remark, Verdict
from opsctl.drafter.view import spans
from opsctl.errors import Place
from opsctl.findings import Finding, Level

CONFIG = "config.json"
_LEVELS: dict[Verdict, Level] = {
    Verdict.OK: "passed",
    Verdict.NOTE: "notice",
    Verdict.NOT_JUDGED: "warning",
    Verdict.DEGRADED: "warning",
}
# A JSON string, and the colon that makes it a key.
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"(\s*:)?')


def findings(judgement: Judgement, group: str, config: str | None = None) -> list[Finding]:
    """One for everything found, then one for each version that nothing is said against.

    Args:
        group: the drafter, as the user named it.
        config: text of its config.json, where the folder lies on this machine and can be pointed at.
    """
    keys = None if config is None else key_lines(config)
    folder = judgement.case.folder
    found = [_finding(judgement, f, group, _place(folder, f.subject, keys)) for f in judgement.findings]
    if judgement.unreadable:
        return found
    blamed = {v for f in judgement.findings if f.verdict.rank > Verdict.NOTE.rank for v in f.versions}
    good = [v for v in judgement.versions if v not in blamed]
    return found + [Finding(f"SGLang {version}", "passed", "serves as trained", where=group) for version in good]


def key_lines(text: str) -> dict[str, int]:
    """The line of each key of a JSON document; of one that occurs often, the first."""
    lines: dict[str, int] = {}
    number, at = 1, 0
    for match in _STRING.finditer(text):
        number += text.count("\n", at, match.start())
        at = match.start()
        if match[2]:
            lines.setdefault(match[1], number)
    return lines


def _finding(judgement: Judgement, f: Remark, group: str, place: Place | None) -> Finding:
    everywhere = len(f.versions) == len(judgement.versions)
    when = "" if everywhere or not f.versions else f" ({spans(f.versions, judgement.versions)})"
    message = f"{f.verdict.value}: {f.detail}{when}"
    return Finding(f.check, _LEVELS.get(f.verdict, "error"), message, place, f.remedy, where=group, subject=f.subject)


def _place(folder: Folder, subject: str, keys: Mapping[str, int] | None) -> Place | None:
    """The weight file a tensor or name stands in, else the key of config.json. keys None: not on this machine."""
    if keys is None:
        return None
    if subject in {f.name for f in folder.files}:
        return Place(os.path.join(folder.path, subject))
    holder = next((c.file for c in folder.containers if any(t.name == subject for t in c.tensors)), None)
    if holder:
        return Place(os.path.join(folder.path, holder))
    # `rope_scaling.factor`: the innermost key that the file has.
    line = next((keys[word] for word in reversed(re.findall(r"\w+", subject)) if word in keys), None)
    return Place(os.path.join(folder.path, CONFIG), line)
