"""From a case to a verdict: run every check for every version, merge what is the same, take the worst."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from opsctl.drafter.case import Case
from opsctl.drafter.checks import CHECKS
from opsctl.drafter.checks.files import refused
from opsctl.drafter.kind import Kind
from opsctl.drafter.verdict import Remark, Verdict, worst
from opsctl.drafter.versions import KNOWN, InTree, Version
from opsctl.errors import Exit
from opsctl.sglang.releases import nearest
from opsctl.text import printable


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found.

    Args:
        unreadable: something in the folder is damaged or hostile, and nothing was judged.
        outcome: how the drafter fares on each version, given a target class that can capture.
    """

    case: Case
    versions: tuple[Version, ...]
    producer: str
    unreadable: bool
    findings: tuple[Remark, ...]
    outcome: Mapping[Version, Verdict]

    @property
    def verdict(self) -> Verdict:
        return worst([finding.verdict for finding in self.findings])

    @property
    def exit_code(self) -> Exit:
        if self.unreadable:
            return Exit.UNREADABLE
        if self.verdict in (Verdict.OK, Verdict.NOTE):
            return Exit.DONE
        if self.verdict is Verdict.NOT_JUDGED:
            return Exit.UNKNOWN
        return Exit.DEGRADED if self.verdict.serves else Exit.UNFIT

    def as_json(self) -> dict[str, Any]:
        """The machine interface: plain data, safe to print."""
        return {
            "path": printable(self.case.folder.path),
            "format": self.producer,
            "kind": self.case.recognised.kind.value,
            "digest": self.case.folder.digest,
            "verdict": self.verdict.value,
            "outcome": {str(version): verdict.value for version, verdict in self.outcome.items()},
            "findings": [
                {
                    "check": finding.check,
                    "verdict": finding.verdict.value,
                    "subject": printable(finding.subject),
                    "detail": printable(finding.detail),
                    "versions": [str(version) for version in finding.versions],
                    "remedy": printable(finding.remedy),
                }
                for finding in self.findings
            ],
        }


def judge(case: Case, versions: Sequence[Version]) -> Judgement:
    """Judge `case` for `versions`."""
    versions = tuple(versions)
    refusals = refused(case)
    if refusals:
        found = tuple(replace(finding, versions=versions) for finding in refusals)
        return Judgement(case, versions, layout(case), True, found, {})
    by_version = {version: _run(case, version) for version in versions}
    merged: dict[Remark, list[Version]] = {}
    for version, findings in by_version.items():
        for finding in findings:
            merged.setdefault(finding, []).append(version)
    findings = sorted(
        (replace(finding, versions=tuple(found_for)) for finding, found_for in merged.items()),
        key=lambda finding: -finding.verdict.rank,
    )
    findings += _unknown(versions)
    outcome = {version: _outcome(found) for version, found in by_version.items()}
    return Judgement(case, versions, layout(case), False, tuple(findings), outcome)


def _run(case: Case, version: Version) -> list[Remark]:
    checks = [check for check in CHECKS if check.applies(case)]
    return list(dict.fromkeys(finding for check in checks for finding in check.run(case, version)))


def _outcome(findings: list[Remark]) -> Verdict:
    found = worst([finding.verdict for finding in findings if finding.in_outcome])
    return Verdict.OK if found is Verdict.NOTE else found


def _unknown(versions: Sequence[Version]) -> list[Remark]:
    newest, oldest = KNOWN[-1], KNOWN[0]
    found = []
    for version in versions:
        if version in KNOWN:
            continue
        verdict, rules = Verdict.NOT_JUDGED, f"judged by the rules of {max(oldest, nearest(version))}"
        if version > newest:
            why = f"later than {newest}, the newest version read"
        elif version < oldest:
            why = f"earlier than {oldest}, the oldest version read"
        else:
            why = "not among the versions read"
        if isinstance(version, InTree) and version.target is not None:
            verdict, rules = Verdict.NOTE, f"its source tells what its target's class does; the rest is {rules}"
        detail = f"{why}: {rules}"
        found.append(Remark("sglang-version", verdict, str(version), detail, "", (version,), in_outcome=False))
    return found


_MODELOPT_KEYS = (
    "use_last_layernorm",
    "use_mtp_layernorm",
    "parallel_draft_step",
    "use_input_layernorm_in_first_layer",
)


def layout(case: Case) -> str:
    """The layout's name, as `specforge-0.1`; `unknown` when nothing tells."""
    folder = case.folder
    if folder.speculators and folder.raw_config is not None:
        version = re.match(r"\d+\.\d+", str(folder.raw_config.get("speculators_version", "")), re.ASCII)
        return f"speculators-{version.group()}" if version else "speculators"
    draft = case.draft
    kind = case.recognised.kind
    if not kind.eagle3 and kind is not Kind.UNKNOWN:
        return str(kind.value)
    if draft is None or not case.tensors:
        return "unknown"
    if folder.pickled:
        return "eagle-safeailab" if draft.architecture == "LlamaForCausalLM" else "torch-pickle"
    layers0 = any(tensor.startswith("layers.0.") for tensor in case.tensors)
    modelopt = any(key in draft.eagle for key in _MODELOPT_KEYS)
    if draft.mla:
        return "modelopt-mla" if modelopt else "torchspec-mla"
    if any(tensor.startswith("model.") for tensor in case.tensors):
        return "automodel"
    if draft.headless:
        return "modelopt-headless"
    if modelopt or (case.d2t is not None and case.t2d is None):
        return "modelopt>=0.42" if layers0 else "modelopt<=0.41"
    if case.d2t is None and draft.draft_vocab == draft.vocab:
        return "torchspec"
    if case.d2t is not None and case.t2d is not None and not layers0:
        return "specforge-0.2" if draft.eagle and "rope_parameters" in draft.raw else "specforge-0.1"
    return "unknown"
