"""What CI systems read: GitHub's workflow commands and GitLab's Code Quality report.

GitHub: https://docs.github.com/actions/reference/workflow-commands-for-github-actions
GitLab: https://docs.gitlab.com/ci/testing/code_quality/#code-quality-report-format
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from opsctl.errors import OpsctlError, Place
from opsctl.secret import mask
from opsctl.text import printable

Level = Literal["error", "warning", "notice"]
_COMMAND = re.compile(r"^\s*::|##\[", re.M)  # what a runner looks for in each line
_SEVERITY = {"error": "major", "warning": "minor", "notice": "info"}


@dataclass(frozen=True, slots=True)
class Annotation:
    """A remark at a place in a file of the repository, or at none."""

    level: Level
    title: str
    message: str
    place: Place | None = None
    rule: str = "opsctl"

    @classmethod
    def of(cls, error: OpsctlError, title: str = "opsctl") -> Annotation:
        message = error.message + (f"\n→ {error.hint}" if error.hint else "")
        return cls("error", title, message, error.where if isinstance(error.where, Place) else None)


def from_here(place: Place) -> Place | None:
    """With a path from the working folder, as CI systems know files; None for a file outside of it."""
    file = os.path.relpath(place.file)
    return None if file.startswith("..") else replace(place, file=file)


def _located(annotation: Annotation) -> Annotation:
    """With a path that the CI system knows; a file outside of the working folder is named in the message."""
    place = annotation.place and from_here(annotation.place)
    outside = f"\nat {annotation.place}" if annotation.place and not place else ""
    return replace(annotation, place=place, message=annotation.message + outside)


def github(annotation: Annotation) -> str:
    """The annotation as a workflow command."""
    annotation = _located(annotation)
    fields = {"title": annotation.title}
    if annotation.place:
        place = annotation.place
        fields = {"file": place.file} | _present(line=place.line, col=place.column) | fields
    properties = ",".join(f"{name}={_escaped(str(value), ':,')}" for name, value in fields.items())
    return f"::{annotation.level} {properties}::{_escaped(annotation.message)}"


def github_mask(secret: str) -> str:
    """The command that has GitHub hide a value in all that follows."""
    return f"::add-mask::{_percent(secret)}"


def github_fence(text: str) -> str:
    """The text, in which a line of a host's that looks like a workflow command is none."""
    if not _COMMAND.search(text):
        return text
    token = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()  # not to be foreseen inside of the text
    return f"::stop-commands::{token}\n{text.rstrip(chr(10))}\n::{token}::"


def github_group(title: str) -> str:
    """The command that begins a fold of the log; `::endgroup::` ends it."""
    return f"::group::{_escaped(title)}"


def gitlab(annotations: Iterable[Annotation]) -> str:
    """A Code Quality report."""
    entries = []
    for annotation in annotations:
        one = _located(annotation)
        place = one.place or Place("inventory.yaml")
        text = printable(mask(f"{one.title}: {one.message}"))
        digest = hashlib.sha256(f"{one.rule}\0{place.file}\0{place.line}\0{text}".encode()).hexdigest()
        entries.append({
            "description": text, "check_name": one.rule, "fingerprint": digest, "severity": _SEVERITY[one.level],
            "location": {"path": place.file, "lines": {"begin": place.line or 1}},
        })  # fmt: skip
    return json.dumps(entries, indent=2) + "\n"


def _present(**values: int | None) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _escaped(text: str, more: str = "") -> str:
    result = _percent(printable(mask(text)))
    for c in more:
        result = result.replace(c, f"%{ord(c):02X}")
    return result


def _percent(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
