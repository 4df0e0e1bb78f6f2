"""Whether a GPU host is fit to serve."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Literal

from pydantic import Field

from opsctl.gpu import health, wanted
from opsctl.gpu.judge import HostReport, Result, selected
from opsctl.gpu.model import Verdict
from opsctl.modules.contract import Action, ModuleArgs, Outcome, Progress, Site
from opsctl.text import one_line, printable
from opsctl.wire.host import Host


class GpuHealthArgs(ModuleArgs):
    only: list[str] = Field([], description="Run only these checks or families: gpu.temp, klog.")
    skip: list[str] = Field([], description="Leave these out.")
    fail_on: Literal["fail", "warn"] = Field("fail", description="The verdict from which on the task fails.")
    profile: dict[str, Any] | None = Field(
        None, description="What is expected of the GPUs, as `health --record` prints."
    )
    thresholds: dict[str, float] | None = Field(None, description="Thresholds that differ from the shipped ones.")


class GpuHealth(Action[GpuHealthArgs]):
    """Check that the GPUs and the host around them are fit to serve, and fail with what is wrong and what to do.

    What is expected of the host stands in its inventory variable `health`; arguments of the task win over it. One
    round trip, nothing is changed on the host.
    """

    name = "gpu_health"
    args = GpuHealthArgs
    measures: ClassVar[tuple[str, ...]] = ("gpus", "failed", "warned")
    examples = """
- name: The host is fit to serve
  when: false
  gpu_health: {skip: [svc]}
"""

    def run(self, args: GpuHealthArgs, host: Host, site: Site, progress: Progress) -> Outcome:
        expected = wanted.of(_health(args, site), site.sglang, site.host)
        checks = selected(args.only, args.skip)
        seen = health.look(host, expected)
        report = health.report(site.host, seen, expected, checks)
        gpus = max((len(r.gpus) for r in seen.readings), default=0)
        return outcome(report, args.fail_on, gpus)


def outcome(report: HostReport, fail_on: Literal["fail", "warn"], gpus: int) -> Outcome:
    """What the play gets: failed by verdicts of `fail_on` and worse."""
    wrong = [r for r in report.results if r.verdict in (Verdict.FAIL, Verdict.WARN)]
    bad = [r for r in wrong if r.verdict.rank >= Verdict(fail_on).rank]
    counts = Counter(r.verdict for r in report.by_check.values())
    unknown = f"not known whether it is fit: {', '.join(report.undecided)}" if report.undecided else None
    return Outcome(
        values={"verdict": report.verdict.value, "checks": [r.as_json() for r in report.results]},
        failed="; ".join(_told(r) for r in bad[:5]) + (f"; and {len(bad) - 5} more" if len(bad) > 5 else "") or unknown,
        hint=bad[0].remedy if bad else None,
        measures={"gpus": gpus, "failed": counts[Verdict.FAIL], "warned": counts[Verdict.WARN]},
        lines=tuple(f"{r.verdict.value} {_told(r)}" for r in wrong),
    )


def _told(result: Result) -> str:
    subject = f"{printable(str(result.found.gpu))}: " if result.found.gpu else ""
    return f"{result.check} {subject}{one_line(result.found.evidence)}"


def _health(args: GpuHealthArgs, site: Site) -> Any:
    """The host's variable with the task's own words over it; what is no mapping is told by the reader of it."""
    known = site.variables.get("health")
    said = {k: v for k, v in (("profile", args.profile), ("thresholds", args.thresholds)) if v is not None}
    return {**known, **said} if isinstance(known, dict) else (known if known is not None else said)
