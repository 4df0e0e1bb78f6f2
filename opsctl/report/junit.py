"""JUnit XML, as CI systems read it: a suite of cases, each passed, failed or skipped."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from opsctl.secret import mask
from opsctl.text import printable


@dataclass(frozen=True, slots=True)
class Case:
    """One case. group: what JUnit calls the class, such as the host."""

    group: str
    name: str
    status: Literal["passed", "failed", "skipped"]
    message: str = ""
    detail: str = ""
    seconds: float = 0.0


def document(suite: str, cases: Iterable[Case]) -> str:
    """The XML of one suite; text from hosts is escaped and secrets are masked."""
    listed = tuple(cases)
    counts = {
        "tests": len(listed),
        "failures": sum(c.status == "failed" for c in listed),
        "skipped": sum(c.status == "skipped" for c in listed),
    }
    attributes = {name: str(n) for name, n in counts.items()}
    root = Element("testsuites", attributes)
    body = SubElement(root, "testsuite", {"name": _safe(suite), **attributes})
    for case in listed:
        seconds = f"{case.seconds:.3f}"
        element = SubElement(
            body, "testcase", {"classname": _safe(case.group), "name": _safe(case.name), "time": seconds}
        )
        if case.status != "passed":
            tag = "failure" if case.status == "failed" else "skipped"
            SubElement(element, tag, {"message": _safe(case.message)}).text = _safe(case.detail)
        elif case.message:
            SubElement(element, "system-out").text = _safe(case.message)
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _safe(text: str) -> str:
    return printable(mask(text))
