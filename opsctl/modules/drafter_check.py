"""Whether a draft model fits the host that is to serve it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from opsctl import this_machine
from opsctl.drafter.folder import open_folder
from opsctl.drafter.judge import Judgement
from opsctl.drafter.verdict import SEEN, Remark, Verdict
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.modules.fields import HostPath
from opsctl.sglang.diagnosis import drafting
from opsctl.sglang.diagnosis.drafting import Met
from opsctl.text import did_you_mean, one_line
from opsctl.wire.host import Host
from opsctl.wire.protocol import Call, Reply


class DrafterCheckArgs(ModuleArgs):
    path: str | None = Field(None, description="Folder of the draft model on the controller.")
    host_path: HostPath | None = Field(None, description="Folder of the draft model on the host, instead of `path`.")
    accept: list[str] = Field([], description="Findings, by name, that do not fail the task.")
    full: bool = Field(False, description="Read every byte for NaN and zeros, not samples; only with `path`.")
    follow_links: bool = Field(False, description="Follow symbolic links that leave the folder.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.path is None) == (self.host_path is None):
            raise ValueError("give either `path` or `host_path`")
        if self.full and self.host_path is not None:
            raise ValueError("`full` goes with `path`")
        return self


class DrafterCheck(Action[DrafterCheckArgs]):
    """Check that a draft model fits the host's SGLang, its launch settings and its target, and fail if it does not.

    SGLang's version and what its source really does, tensor parallelism, context length, algorithm and the target's
    config are read from the host. Findings worse than a note fail the task unless `accept` names them.
    """

    name = "drafter_check"
    args = DrafterCheckArgs
    examples = """
- name: Does the drafter fit this host?
  when: false
  drafter_check: {path: ./my-drafter, accept: [context-length]}
"""

    def run(self, args: DrafterCheckArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        def ask(calls: Sequence[Call[Any]]) -> Sequence[Reply[Any] | Exception]:
            return host.outcomes(calls)

        def there(call: Call[Any]) -> Reply[Any]:
            (answer,) = ask([call])
            if isinstance(answer, Exception):
                raise answer
            return answer

        met = drafting.meet(ask, site.sglang, drafter=args.host_path, follow_links=args.follow_links)
        folder = met.drafter
        if folder is None:
            local = site.find("files", str(args.path))
            folder = open_folder(str(local), full=args.full, follow_links=args.follow_links)
        target = drafting.Target(met.target, met.target_path, there)
        judgement = drafting.judged(folder, there if met.drafter else this_machine.call, met, target)
        return outcome(judgement, met, args.accept)


def outcome(judgement: Judgement, met: Met, accept: Sequence[str]) -> Outcome:
    """What the play gets."""
    wrong = [f for f in judgement.findings if f.verdict not in (Verdict.OK, Verdict.NOTE)]
    refused = [f for f in wrong if f.check not in accept]
    found = {finding.check for finding in judgement.findings}
    notes = [f"note: {_said(f)}" for f in judgement.findings if f.verdict is Verdict.NOTE]
    lines = [
        *(f"not known: {text}" for text in met.unknown),
        *(
            f"not accepted by anything: no finding {name!r}{_meant(name, found)}"
            for name in accept
            if name not in found
        ),
        *(f"accepted: {_told(f)}" for f in wrong if f.check in accept),
    ]
    if not wrong:
        versions = ", ".join(map(str, judgement.versions)) if len(judgement.versions) == 1 else "every version"
        lines.insert(0, f"ok: {judgement.producer} drafter fits SGLang {versions}, {judgement.case.folder.digest[:20]}")
    return Outcome(
        values={**judgement.as_json(), "accepted": sorted({f.check for f in wrong} & set(accept))},
        failed=_why(refused) if refused else None,
        hint=_hint(refused) if refused else None,
        lines=tuple(one_line(line, 300) for line in lines),
        details=tuple(one_line(line, 300) for line in (*met.lines, *notes)),
    )


def _why(refused: Sequence[Remark]) -> str:
    first = refused[0]
    more = f"; and {len(refused) - 1} more" if len(refused) > 1 else ""
    return f"{_told(first)}{more}. Served anyway: {SEEN[first.verdict]}"


def _hint(refused: Sequence[Remark]) -> str:
    names = ", ".join(dict.fromkeys(finding.check for finding in refused))
    remedy = one_line(refused[0].remedy, 300)
    return f"{remedy}; or accept it by name: {names}" if remedy else f"accept it by name: {names}"


def _told(finding: Remark) -> str:
    return f"{finding.verdict.value} [{finding.check}] {_said(finding)}"


def _said(finding: Remark) -> str:
    named = finding.detail.startswith(finding.subject)
    return one_line(finding.detail if named else f"{finding.subject}: {finding.detail}", 300)


def _meant(name: str, found: set[str]) -> str:
    hint = did_you_mean(name, sorted(found))
    return f" ({hint})" if hint else ""
