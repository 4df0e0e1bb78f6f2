"""Lint findings as SARIF 2.1.0. https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from opsctl import __version__
from opsctl.engine.lint import RULES, Finding
from opsctl.text import printable

_LEVELS = {"error": "error", "warning": "warning", "notice": "note"}


def sarif(findings: Sequence[Finding]) -> str:
    """The findings as one SARIF log."""
    rules = [{"id": r.name, "shortDescription": {"text": r.about}} for r in RULES]
    results = []
    for one in findings:
        text = printable(one.message + (f" ({one.hint})" if one.hint else ""))
        region = {"startLine": one.place.line or 1, "startColumn": one.place.column or 1}
        location = {"artifactLocation": {"uri": _uri(one.place.file)}, "region": region}
        results.append({
            "ruleId": one.rule, "level": _LEVELS[one.level], "message": {"text": text},
            "locations": [{"physicalLocation": location}],
        })  # fmt: skip
    driver = {"name": "opsctl lint", "version": __version__, "rules": rules}
    log = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0",
        "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
    }  # fmt: skip
    return json.dumps(log, indent=2)


def _uri(file: str) -> str:
    """Relative where the file lies in this folder, as code hosts want it."""
    path = Path(file)
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
