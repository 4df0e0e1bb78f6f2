"""Read `dcgmi diag`: its table and its JSON, DCGM 2 to 4."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from opsctl.gpu.model import DiagnosticResult

_TABLE = re.compile(r"^\|\s*Diagnostic\s*\|\s*Result\s*\|", re.MULTILINE)
_ROW = re.compile(r"^\|\s*(?P<test>[^|]*?)\s*\|\s*(?P<result>[^|]*?)\s*\|?\s*$")
_OUTCOME = re.compile(r"^(?P<word>Pass|Fail|Warn|Skip)(?:ed)?\b(?:\s*-\s*(?P<who>.*))?$", re.IGNORECASE)
_GPU = re.compile(r"\bGPU ?:? ?(\d+)", re.IGNORECASE)
_TOPS = ("DCGM GPU Diagnostic", "DCGM Diagnostic")


def read(text: str) -> tuple[DiagnosticResult, ...] | None:
    """The results in it; None when it is no output of dcgmi diag."""
    start = text.lstrip()
    if start.startswith("{"):
        try:
            document = json.loads(start)
        except (ValueError, RecursionError):
            return None
        top = next((document[name] for name in _TOPS if name in document), None) if isinstance(document, dict) else None
        return tuple(_of_document(top)) if isinstance(top, dict) else None
    return tuple(_of_table(text)) if _TABLE.search(text) else None


def _of_table(text: str) -> Iterator[DiagnosticResult]:
    """A row is a test with its outcome; a row without a test, `Warning` or `Error` continues the one before."""
    current: DiagnosticResult | None = None
    for line in text.splitlines():
        row = _ROW.match(line)
        if row is None:
            continue
        test, result = row["test"], row["result"]
        if outcome := _OUTCOME.match(result):
            if current:
                yield current
            gpu = _GPU.search(outcome["who"] or "")
            current = DiagnosticResult(test, outcome["word"].lower(), gpu[1] if gpu else None)
        elif current and result and (not test or test.lower().startswith(("warning", "error", "info"))):
            said = f"{current.text} {result}".strip()
            named = _GPU.search(said)
            gpu_index = current.gpu or (named[1] if named else None)
            current = DiagnosticResult(current.test, current.outcome, gpu_index, said)
    if current:
        yield current


def _of_document(top: Mapping[str, Any]) -> Iterator[DiagnosticResult]:
    for category in _dicts(top.get("test_categories")):
        for test in _dicts(category.get("tests")):
            for result in _dicts(test.get("results")):
                word = str(result.get("status", "")).lower()
                outcome = next((known for known in ("pass", "fail", "warn", "skip") if word.startswith(known)), None)
                if outcome is None:
                    continue
                gpu = result.get("gpu_id", result.get("entity_id"))
                said = [str(w.get("warning", "")) for w in _dicts(result.get("warnings"))]
                text = " ".join(filter(None, said))
                yield DiagnosticResult(str(test.get("name", "test")), outcome, None if gpu is None else str(gpu), text)


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []
